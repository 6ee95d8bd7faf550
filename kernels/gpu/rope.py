"""Rotary position embedding and the write of keys and values into the cache, together or apart."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ramet.kernels.gpu.formats import E4M3, PLAIN, format_of, to_e4m3, to_int8
from ramet.kernels.gpu.launch import Launch, next_power_of_two, require_unit_stride

_HEADS = 4
"""Heads of a program: at 128 channels in fp16 it moves 1 KiB, 32 bytes a thread."""


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """See ``kernels.apply_rope``; new contiguous tensors of the same bits as the oracle's."""
    rotated_q, rotated_k = _like(q), _like(k)
    rope_launch((q, rotated_q), (k, rotated_k), (cos, sin)).run()
    return rotated_q, rotated_k


def rope_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rope: tuple[Tensor, Tensor],
    slots: Tensor,
    cache: tuple[Tensor, Tensor],
) -> Tensor:
    """``apply_rope`` and ``KVPool.write`` in one call, without a copy of k between them. Returns q rotated.

    q: [num_tokens, num_heads, head_dim]; k, v: [num_tokens, num_kv_heads, head_dim]; rope: cos and sin,
    [num_tokens, rotary_dim / 2] fp32; slots: [num_tokens] int64, no slot twice; cache: keys and values,
    [num_slots, num_kv_heads, head_dim].
    """
    rotated_q = _like(q)
    rope_launch((q, rotated_q), (k, cache[0]), rope, slots=slots, v=(v, cache[1])).run()
    return rotated_q


def rope_launch(
    q: tuple[Tensor, Tensor],
    k: tuple[Tensor, Tensor],
    rope: tuple[Tensor, Tensor],
    *,
    slots: Tensor | None = None,
    v: tuple[Tensor, Tensor] | None = None,
) -> Launch:
    """The call behind both ops. q, k, v: (from, to); with ``slots`` k and v go to those rows."""
    cos, sin = rope
    values = k if v is None else v
    for name, x in (("q", q[0]), ("k", k[0]), ("v", values[0]), ("cos", cos), ("sin", sin)):
        require_unit_stride(name, x)
    num_tokens, num_heads, head_dim = q[0].shape
    num_kv_heads, half = k[0].shape[1], cos.shape[1]
    if 2 * half > head_dim or cos.shape != sin.shape or cos.shape[0] != num_tokens:
        raise ValueError(f"cos is {tuple(cos.shape)} for {num_tokens} tokens with heads of {head_dim} channels")
    q_blocks = -(-num_heads // _HEADS)
    return Launch(
        _rope_kernel,
        (num_tokens, q_blocks + -(-num_kv_heads // _HEADS)),
        {
            "q": q[0],
            "q_out": q[1],
            "k": k[0],
            "k_out": k[1],
            "v": values[0],
            "v_out": values[1],
            "cos": cos,
            "sin": sin,
            "slots": cos if slots is None else slots,
            "rope_stride": cos.stride(0),
            **_strides("q", q),
            **_strides("k", k),
            **_strides("v", values),
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "q_blocks": q_blocks,
        },
        {
            "HAS_SLOTS": slots is not None,
            "HAS_V": v is not None,
            "HALF": half,
            "HALF_CHANNELS": next_power_of_two(half),
            "HEAD_DIM": head_dim,
            "CHANNELS": next_power_of_two(head_dim),
            "HEADS": _HEADS,
        },
        1,
        2,
    )


def write_kv(k: Tensor, v: Tensor, slots: Tensor, cache: tuple[Tensor, ...]) -> Launch:
    """Put k and v, rope applied, into the cache. Arguments as of ``rope_write_kv``; a token whose slot is -1 is
    not written. cache: also of e4m3 or int8, as the attention kernels take it (see ``attention``)."""
    for name, x in (("k", k), ("v", v)):
        require_unit_stride(name, x)
    if k.shape != v.shape or cache[0].shape[1:] != k.shape[1:] or cache[0].shape != cache[1].shape:
        raise ValueError(
            f"k is {tuple(k.shape)}, v {tuple(v.shape)}, a slot of the cache {tuple(cache[0].shape[1:])}"
        )
    num_tokens, num_heads, head_dim = k.shape
    return Launch(
        _write_kernel,
        (num_tokens, -(-num_heads // _HEADS)),
        {
            "k": k,
            "k_out": cache[0],
            "v": v,
            "v_out": cache[1],
            "slots": slots,
            "k_scales": cache[2] if len(cache) > 2 else slots,
            "v_scales": cache[3] if len(cache) > 2 else slots,
            **_strides("k", (k, cache[0])),
            **_strides("v", (v, cache[1])),
            "num_heads": num_heads,
        },
        {
            "HEAD_DIM": head_dim,
            "CHANNELS": next_power_of_two(head_dim),
            "HEADS": _HEADS,
            "FORMAT": format_of(cache[0]),
        },
        1,
        2,
    )


def _like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _strides(name: str, tensors: tuple[Tensor, Tensor]) -> dict[str, Tensor | int | float]:
    source, target = tensors
    return {
        f"{name}_stride_token": source.stride(0),
        f"{name}_stride_head": source.stride(1),
        f"{name}_out_stride_token": target.stride(0),
        f"{name}_out_stride_head": target.stride(1),
    }


@triton.jit
def _rotate_heads(
    x,
    out,
    stride_head,
    out_stride_head,
    cos,
    sin,
    heads,
    active,
    HALF: tl.constexpr,
    HALF_CHANNELS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """x, out, cos, sin: of one token. Pairs (i, i + HALF) turn; channels from 2 * HALF on are copied."""
    dims = tl.arange(0, HALF_CHANNELS)
    c = tl.load(cos + dims, mask=dims < HALF, other=0.0)[None, :]
    s = tl.load(sin + dims, mask=dims < HALF, other=0.0)[None, :]
    mask = active[:, None] & (dims < HALF)[None, :]
    source = x + heads[:, None] * stride_head + dims[None, :]
    target = out + heads[:, None] * out_stride_head + dims[None, :]
    first = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(target, (first * c - second * s).to(out.dtype.element_ty), mask=mask)
    tl.store(target + HALF, (second * c + first * s).to(out.dtype.element_ty), mask=mask)
    if 2 * HALF < HEAD_DIM:
        rest = tl.arange(0, CHANNELS)
        keep = active[:, None] & ((rest >= 2 * HALF) & (rest < HEAD_DIM))[None, :]
        passed = tl.load(x + heads[:, None] * stride_head + rest[None, :], mask=keep, other=0.0)
        tl.store(
            out + heads[:, None] * out_stride_head + rest[None, :], passed.to(out.dtype.element_ty), mask=keep
        )


@triton.jit
def _copy_heads(
    x, out, stride_head, out_stride_head, heads, active, HEAD_DIM: tl.constexpr, CHANNELS: tl.constexpr
):
    dims = tl.arange(0, CHANNELS)
    mask = active[:, None] & (dims < HEAD_DIM)[None, :]
    value = tl.load(x + heads[:, None] * stride_head + dims[None, :], mask=mask, other=0.0)
    tl.store(out + heads[:, None] * out_stride_head + dims[None, :], value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _store_heads(
    x,
    out,
    scales,
    stride_head,
    out_stride_head,
    heads,
    active,
    HEAD_DIM: tl.constexpr,
    CHANNELS: tl.constexpr,
    FORMAT: tl.constexpr,
):
    """``_copy_heads`` into a cache of FORMAT; scales: of the token's heads, written for int8 only."""
    if FORMAT == PLAIN:
        _copy_heads(x, out, stride_head, out_stride_head, heads, active, HEAD_DIM, CHANNELS)
    else:
        dims = tl.arange(0, CHANNELS)
        mask = active[:, None] & (dims < HEAD_DIM)[None, :]
        value = tl.load(x + heads[:, None] * stride_head + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        at = out + heads[:, None] * out_stride_head + dims[None, :]
        if FORMAT == E4M3:
            tl.store(at, to_e4m3(value), mask=mask)
        else:
            scale = tl.div_rn(tl.max(tl.abs(value), 1), 127.0)
            tl.store(at, to_int8(value, scale[:, None]), mask=mask)
            tl.store(scales + heads, scale, mask=active)


@triton.jit
def _rope_kernel(
    q,
    q_out,
    k,
    k_out,
    v,
    v_out,
    cos,
    sin,
    slots,
    rope_stride,
    q_stride_token,
    q_stride_head,
    q_out_stride_token,
    q_out_stride_head,
    k_stride_token,
    k_stride_head,
    k_out_stride_token,
    k_out_stride_head,
    v_stride_token,
    v_stride_head,
    v_out_stride_token,
    v_out_stride_head,
    num_heads,
    num_kv_heads,
    q_blocks,
    HAS_SLOTS: tl.constexpr,
    HAS_V: tl.constexpr,
    HALF: tl.constexpr,
    HALF_CHANNELS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHANNELS: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    cos += token * rope_stride
    sin += token * rope_stride
    if block < q_blocks:
        heads = block * HEADS + tl.arange(0, HEADS)
        _rotate_heads(
            q + token * q_stride_token,
            q_out + token * q_out_stride_token,
            q_stride_head,
            q_out_stride_head,
            cos,
            sin,
            heads,
            heads < num_heads,
            HALF,
            HALF_CHANNELS,
            HEAD_DIM,
            CHANNELS,
        )
    else:
        heads = (block - q_blocks) * HEADS + tl.arange(0, HEADS)
        active = heads < num_kv_heads
        place = token
        if HAS_SLOTS:
            place = tl.load(slots + token)
        _rotate_heads(
            k + token * k_stride_token,
            k_out + place * k_out_stride_token,
            k_stride_head,
            k_out_stride_head,
            cos,
            sin,
            heads,
            active,
            HALF,
            HALF_CHANNELS,
            HEAD_DIM,
            CHANNELS,
        )
        if HAS_V:
            _copy_heads(
                v + token * v_stride_token,
                v_out + place * v_out_stride_token,
                v_stride_head,
                v_out_stride_head,
                heads,
                active,
                HEAD_DIM,
                CHANNELS,
            )


@triton.jit
def _write_kernel(
    k,
    k_out,
    v,
    v_out,
    slots,
    k_scales,
    v_scales,
    k_stride_token,
    k_stride_head,
    k_out_stride_token,
    k_out_stride_head,
    v_stride_token,
    v_stride_head,
    v_out_stride_token,
    v_out_stride_head,
    num_heads,
    HEAD_DIM: tl.constexpr,
    CHANNELS: tl.constexpr,
    HEADS: tl.constexpr,
    FORMAT: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    active = tl.where(slot >= 0, heads, num_heads) < num_heads
    _store_heads(
        k + token * k_stride_token,
        k_out + slot * k_out_stride_token,
        k_scales + slot * num_heads,
        k_stride_head,
        k_out_stride_head,
        heads,
        active,
        HEAD_DIM,
        CHANNELS,
        FORMAT,
    )
    _store_heads(
        v + token * v_stride_token,
        v_out + slot * v_out_stride_token,
        v_scales + slot * num_heads,
        v_stride_head,
        v_out_stride_head,
        heads,
        active,
        HEAD_DIM,
        CHANNELS,
        FORMAT,
    )
