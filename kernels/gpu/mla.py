"""Decoding with latent attention (MLA): all heads read the same latent vector of a token, as key and as value.

Its oracle is ``reference.mla_decode``. Spans and folds are those of ``attention``.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ramet.kernels.gpu.attention import Partials
from ramet.kernels.gpu.attention_tile import SPAN
from ramet.kernels.gpu.launch import Launch, next_power_of_two, require_unit_stride

HEADS = 16
"""Heads of a program. Each reads the span again, from the second-level cache; 512 channels of more heads would
not fit the registers."""
_BLOCK_KEYS = 32
MAX_RANK = 512


def mla_partials(num_partials: int, q_latent: Tensor) -> Partials:
    """Room for partial results. q_latent: [num_rows, num_heads, rank]."""
    num_heads, rank = q_latent.shape[1:]
    return Partials(
        torch.empty(
            (num_partials, num_heads, next_power_of_two(rank)), dtype=torch.float32, device=q_latent.device
        ),
        torch.empty((num_partials, num_heads, 2), dtype=torch.float32, device=q_latent.device),
    )


def mla_decode(
    q: tuple[Tensor, Tensor],
    cache: Tensor,
    page_table: Tensor,
    kv_lens: Tensor,
    partials: Partials,
    *,
    page_size: int,
    scale: float,
    max_spans: int,
) -> Launch:
    """One query a row. Span s of row i becomes partial result i * max_spans + s, for ``fold_partials``.

    q: latent [num_rows, num_heads, rank] and rotated [num_rows, num_heads, rope_dim] parts; cache: [num_slots,
    rank + rope_dim], contiguous; page_table: [num_rows, max_pages] int32; kv_lens: [num_rows] int32, 0 for a
    row of padding.
    """
    latent, rope = q
    num_rows, num_heads, rank = latent.shape
    rope_dim = rope.shape[2]
    for name, x in (("the latent query", latent), ("the rotated query", rope)):
        require_unit_stride(name, x)
    if cache.shape[1] != rank + rope_dim or not cache.is_contiguous():
        raise ValueError(f"the cache is {tuple(cache.shape)}: contiguous, {rank} + {rope_dim} channels a slot")
    if not 16 <= rank <= MAX_RANK:
        raise ValueError(f"the latent part has {rank} channels: the kernel holds 16 to {MAX_RANK}")
    return Launch(
        _mla_kernel,
        (num_rows, -(-num_heads // HEADS), max_spans),
        {
            "latent": latent,
            "rope": rope,
            "cache": cache,
            "page_table": page_table,
            "kv_lens": kv_lens,
            "weighted": partials.weighted,
            "norms": partials.norms,
            "latent_stride_token": latent.stride(0),
            "latent_stride_head": latent.stride(1),
            "rope_stride_token": rope.stride(0),
            "rope_stride_head": rope.stride(1),
            "stride_row": page_table.stride(0),
            "num_heads": num_heads,
            "max_spans": max_spans,
            "scale": scale * math.log2(math.e),
        },
        {
            "RANK": rank,
            "CHANNELS": next_power_of_two(rank),
            "ROPE_DIM": rope_dim,
            "ROPE_CHANNELS": max(16, next_power_of_two(rope_dim)),
            "HEADS": HEADS,
            "SPAN": SPAN,
            "PAGE_SIZE": page_size,
            "BLOCK_KEYS": _BLOCK_KEYS,
        },
        4,
        1 if latent.dtype is torch.float32 else 2,
    )


@triton.jit
def _mla_kernel(
    latent,
    rope,
    cache,
    page_table,
    kv_lens,
    weighted,
    norms,
    latent_stride_token,
    latent_stride_head,
    rope_stride_token,
    rope_stride_head,
    stride_row,
    num_heads,
    max_spans,
    scale,
    RANK: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    ROPE_CHANNELS: tl.constexpr,
    HEADS: tl.constexpr,
    SPAN: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    active = heads < num_heads
    begin = tl.program_id(2) * SPAN
    kv_len = tl.load(kv_lens + row)
    if begin < kv_len:
        dims = tl.arange(0, CHANNELS)
        rope_dims = tl.arange(0, ROPE_CHANNELS)
        at = latent + row * latent_stride_token + heads[:, None] * latent_stride_head + dims[None, :]
        q = tl.load(at, mask=active[:, None] & (dims < RANK)[None, :], other=0.0)
        at = rope + row * rope_stride_token + heads[:, None] * rope_stride_head + rope_dims[None, :]
        q_rope = tl.load(at, mask=active[:, None] & (rope_dims < ROPE_DIM)[None, :], other=0.0)
        maximum = tl.full([HEADS], float("-inf"), tl.float32)
        total = tl.zeros([HEADS], tl.float32)
        values = tl.zeros([HEADS, CHANNELS], tl.float32)
        end = tl.minimum(begin + SPAN, kv_len)
        for start in range(begin, end, BLOCK_KEYS):
            keys = start + tl.arange(0, BLOCK_KEYS)
            inside = keys < end
            page = tl.load(page_table + row * stride_row + keys // PAGE_SIZE, mask=inside, other=0)
            slots = (page.to(tl.int64) * PAGE_SIZE + keys % PAGE_SIZE) * (RANK + ROPE_DIM)
            c = tl.load(
                cache + slots[:, None] + dims[None, :],
                mask=inside[:, None] & (dims < RANK)[None, :],
                other=0.0,
            )
            k_rope = tl.load(
                cache + slots[None, :] + RANK + rope_dims[:, None],
                mask=inside[None, :] & (rope_dims < ROPE_DIM)[:, None],
                other=0.0,
            )
            scores = tl.dot(q_rope, k_rope.to(q.dtype), input_precision="ieee")
            scores = tl.dot(q, tl.trans(c.to(q.dtype)), scores, input_precision="ieee") * scale
            scores = tl.where(inside[None, :], scores, float("-inf"))
            new_maximum = tl.maximum(maximum, tl.max(scores, 1))
            weights = tl.exp2(scores - new_maximum[:, None])
            fade = tl.exp2(maximum - new_maximum)
            total = tl.fma(total, fade, tl.sum(weights, 1))
            values = values * fade[:, None]
            values = tl.dot(weights.to(q.dtype), c.to(q.dtype), values, input_precision="ieee")
            maximum = new_maximum
        number = row * max_spans + tl.program_id(2)
        target = weighted + (number * num_heads + heads)[:, None] * CHANNELS + dims[None, :]
        tl.store(target, values, mask=active[:, None])
        tl.store(norms + (number * num_heads + heads) * 2, maximum, mask=active)
        tl.store(norms + (number * num_heads + heads) * 2 + 1, total, mask=active)
