"""What all attention kernels do with a tile of query rows: the same operations in the same order.

Keys are cut into spans of SPAN positions counted from position 0, and a span into blocks. A query's partial
result over a span is flash attention (arXiv 2205.14135) over its blocks; the partial results are folded in
the order of the spans, by another kernel or in registers. Tile, block and span are equal in every kernel, and
keys that a query does not see leave its sums as they are: so a token's result is meant to have the same bits
decoded, in a chunk of any length, in a shared tile, alone or batched. In the interpreter it has.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ramet.kernels.gpu.formats import INT8, stored_values

SPAN = 256
"""Keys of a split. At 128 channels in fp16 a KV head's span is 128 KiB: much more than its partial results (2
KiB at 4 queries a group), and a row of 4,096 tokens still has 16 programs a KV head."""
TENSOR_CORE_ROWS = 64
"""Query rows of a tile in fp16 and bf16: (query, head of the group) pairs. The least for which Hopper's own
instruction is used; at 64 rows a tile of decode still waits for memory (64 operations a byte)."""
FP32_ROWS = 16
"""Rows of a tile in fp32, which is computed without tensor cores (theirs would round to 10 bits)."""


@dataclass(frozen=True, slots=True)
class TileShape:
    """How heads of one size are computed. Channels are padded to a power of two; the rest was chosen by what
    compiles without spills (``python -m benchmarks.gpu --compile-only``; with 256 channels sm_100 spills 16
    bytes)."""

    rows: int
    channels: int
    block_keys: int
    num_warps: int
    num_stages: int


def tile_shape(head_dim: int, dtype: torch.dtype, *, is_stored_plain: bool = True) -> TileShape:
    """The shape for heads of 1 to 256 channels; raises ValueError for larger ones. is_stored_plain: False for
    caches of eight bits, whose numbers take registers until they are unpacked."""
    if not 1 <= head_dim <= 256:
        raise ValueError(f"head_dim is {head_dim}: the kernels hold 1 to 256 channels")
    channels = max(16, triton.next_power_of_2(head_dim))
    if dtype is torch.float32:
        return TileShape(
            FP32_ROWS, channels, block_keys=32, num_warps=8 if channels >= 128 else 4, num_stages=1
        )
    return TileShape(
        TENSOR_CORE_ROWS,
        channels,
        block_keys=32 if channels <= 128 and is_stored_plain else 16,
        num_warps=8 if channels == 256 or (channels == 128 and not is_stored_plain) else 4,
        num_stages=2,
    )


@triton.jit
def attend_span(
    q,
    positions,
    pages,
    keys,
    values,
    key_scales,
    value_scales,
    stride_slot,
    stride_scale,
    begin,
    end,
    lowest,
    scale,
    softcap,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    FORMAT: tl.constexpr,
):
    """Partial attention of a tile over the keys at positions begin..end (exclusive) of one span.

    q: [rows, CHANNELS]; positions: [rows] int32, -1 for a row without a query; pages: a row of the page table;
    keys, values: the KV head's channels of slot 0, in FORMAT; key_scales, value_scales: the head's of slot 0,
    read for int8 only; lowest: no row sees keys before it; scale includes log2(e).
    Returns (maximum of the scores in base 2, sum of weights, weighted values), all fp32.
    """
    rows: tl.constexpr = q.shape[0]
    dims = tl.arange(0, CHANNELS)
    maximum = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    weighted = tl.zeros([rows, CHANNELS], tl.float32)
    first = tl.maximum(begin, lowest // BLOCK_KEYS * BLOCK_KEYS)
    for start in range(first, end, BLOCK_KEYS):
        at = start + tl.arange(0, BLOCK_KEYS)
        inside = at < end
        page = tl.load(pages + at // PAGE_SIZE, mask=inside, other=0)
        slots = page.to(tl.int64) * PAGE_SIZE + at % PAGE_SIZE
        k = tl.load(
            keys + slots[None, :] * stride_slot + dims[:, None],
            mask=inside[None, :] & (dims < HEAD_DIM)[:, None],
            other=0,
        )
        scores = tl.dot(q, stored_values(k, FORMAT).to(q.dtype), input_precision="ieee") * scale
        if FORMAT == INT8:
            scores = scores * tl.load(key_scales + slots * stride_scale, mask=inside, other=0.0)[None, :]
        if HAS_SOFTCAP:
            # log2(e) * cap * tanh(s / cap): scale already holds log2(e) / cap, and softcap log2(e) * cap.
            doubled = tl.minimum(2.0 * scores, 120.0, propagate_nan=tl.PropagateNan.ALL)
            scores = softcap * (1.0 - 2.0 / (tl.exp2(doubled) + 1.0))
        visible = inside[None, :] & (at[None, :] <= positions[:, None])
        if WINDOW > 0:
            visible = visible & (at[None, :] > positions[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        reference = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(scores - reference[:, None])
        fade = tl.exp2(maximum - reference)
        total = tl.fma(total, fade, tl.sum(weights, 1))
        v = tl.load(
            values + slots[:, None] * stride_slot + dims[None, :],
            mask=inside[:, None] & (dims < HEAD_DIM)[None, :],
            other=0,
        )
        weighted = weighted * fade[:, None]
        v = stored_values(v, FORMAT)
        if FORMAT == INT8:
            v_scale = tl.load(value_scales + slots * stride_scale, mask=inside, other=0.0)
            v = v.to(tl.float32) * v_scale[:, None]
        weighted = tl.dot(weights.to(q.dtype), v.to(q.dtype), weighted, input_precision="ieee")
        maximum = new_maximum
    return maximum, total, weighted


@triton.jit
def fold(maximum, total, weighted, span_maximum, span_total, span_weighted):
    """Add a span's partial result to those of the spans before it: [rows], [rows] and [rows, CHANNELS] fp32."""
    new_maximum = tl.maximum(maximum, span_maximum)
    reference = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    before = tl.exp2(maximum - reference)
    added = tl.exp2(span_maximum - reference)
    total = tl.fma(total, before, span_total * added)
    weighted = tl.fma(
        weighted, tl.broadcast_to(before[:, None], weighted.shape), span_weighted * added[:, None]
    )
    return new_maximum, total, weighted
