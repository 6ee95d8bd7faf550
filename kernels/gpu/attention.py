"""Paged attention: decoding rows, queries that share a span, chunks of a prompt, the fold of partial results.

The oracle of all of them is ``reference.attention`` over a row's keys.

Tensors, in all launchers:
    q, out: [num_tokens, num_heads, head_dim], fp16, bf16 or fp32; heads of a group are neighbours
    cache: keys, values: [num_slots, num_kv_heads, head_dim], contiguous, fp16, bf16, fp32 or (uint8) e4m3; or
        int8, followed by the scales of both: [num_slots, num_kv_heads] fp32, contiguous
    page_table: [num_rows, max_pages] int32; position p of a row lies in slot page * page_size + p % page_size
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ramet.kernels.gpu.attention_tile import (
    FP32_ROWS,
    SPAN,
    TENSOR_CORE_ROWS,
    TileShape,
    attend_span,
    fold,
    tile_shape,
)
from ramet.kernels.gpu.formats import PLAIN, format_of
from ramet.kernels.gpu.launch import Launch, require_unit_stride

_LOG2_E = math.log2(math.e)
FOLD_HEADS = 4
"""Heads that a program of the fold takes, one after another."""


@dataclass(frozen=True, slots=True)
class AttentionOp:
    """What is the same in every call of a layer's attention."""

    page_size: int
    scale: float
    sliding_window: int | None = None
    """A query at position p sees positions p - sliding_window + 1 .. p."""
    softcap: float | None = None

    def scales(self) -> tuple[float, float]:
        """(factor of the scores, factor of their soft cap), for weights that are powers of two."""
        if self.softcap is None:
            return self.scale * _LOG2_E, 0.0
        return self.scale * _LOG2_E / self.softcap, self.softcap * _LOG2_E


@dataclass(frozen=True, slots=True)
class Partials:
    """Results over single spans: weighted values and, apart, the maximum and the sum of the weights."""

    weighted: Tensor  # [num_partials, num_heads, channels] fp32
    norms: Tensor  # [num_partials, num_heads, 2] fp32

    @classmethod
    def empty(cls, num_partials: int, q: Tensor) -> "Partials":
        channels = tile_shape(q.shape[2], q.dtype).channels
        return cls(
            torch.empty((num_partials, q.shape[1], channels), dtype=torch.float32, device=q.device),
            torch.empty((num_partials, q.shape[1], 2), dtype=torch.float32, device=q.device),
        )


def max_tile_queries(group_size: int, dtype: torch.dtype) -> int:
    """Queries of a tile. Raises ValueError where a KV head has more query heads than a tile has rows."""
    rows = FP32_ROWS if dtype is torch.float32 else TENSOR_CORE_ROWS
    if not 1 <= group_size <= rows:
        raise ValueError(f"{group_size} query heads share a KV head: the kernels hold 1 to {rows} in {dtype}")
    return rows // group_size


def decode_attention(
    q: Tensor,
    cache: tuple[Tensor, ...],
    page_table: Tensor,
    kv_lens: Tensor,
    partials: Partials,
    op: AttentionOp,
    *,
    max_spans: int,
) -> Launch:
    """One query a row, the row's last token; row i is token i. A program takes a row, a KV head and a span.

    kv_lens: [num_rows] int32, 0 for a row of padding. Span s of row i, counted from the first that the query
    sees, becomes partial result i * max_spans + s. Nothing on the host depends on kv_lens but max_spans, which
    may be larger than needed: such a call can be captured in a CUDA graph.
    """
    shape, shared, constants = _shared_arguments(q, cache, page_table, op)
    return Launch(
        _decode_kernel,
        (q.shape[0], cache[0].shape[1], max_spans),
        {**shared, **_partial_arguments(partials), "kv_lens": kv_lens, "max_spans": max_spans},
        constants,
        shape.num_warps,
        shape.num_stages,
    )


def tree_attention(
    q: Tensor,
    cache: tuple[Tensor, ...],
    page_table: Tensor,
    items: Tensor,
    pairs: Tensor,
    partials: Partials,
    op: AttentionOp,
) -> Launch:
    """Items of a span and the queries that read it: what branches share is read once for all of them.

    items: [num_items, 4] int32: a row of the page table, the span's number, the item's first pair, how many
    (at most ``max_tile_queries``). pairs: [num_pairs, 3] int32: token, its position, its partial result.
    """
    shape, shared, constants = _shared_arguments(q, cache, page_table, op)
    return Launch(
        _tree_kernel,
        (items.shape[0], cache[0].shape[1]),
        {**shared, **_partial_arguments(partials), "items": items, "pairs": pairs},
        constants,
        shape.num_warps,
        shape.num_stages,
    )


def fold_partials(partials: Partials, folds: Tensor, out: Tensor) -> Launch:
    """Fold each token's partial results in their order.

    folds: [num, 3] int32: token, its first partial result, how many follow each other from there (0: the
    token's output is zeros).
    """
    require_unit_stride("out", out)
    num_heads = out.shape[1]
    return Launch(
        _fold_kernel,
        (folds.shape[0], -(-num_heads // FOLD_HEADS)),
        {
            **_partial_arguments(partials),
            "folds": folds,
            "out": out,
            "out_stride_token": out.stride(0),
            "out_stride_head": out.stride(1),
            "num_heads": num_heads,
        },
        {"HEAD_DIM": out.shape[2], "CHANNELS": partials.weighted.shape[2], "HEADS": FOLD_HEADS},
        1,
        2,
    )


def extend_attention(
    q: Tensor,
    cache: tuple[Tensor, ...],
    page_table: Tensor,
    tiles: Tensor,
    out: Tensor,
    op: AttentionOp,
) -> Launch:
    """Tiles of neighbouring queries of one row over all keys before them and their own, which are in the cache.

    tiles: [num_tiles, 4] int32: a row of the page table, the tile's first token, how many (at most
    ``max_tile_queries``), the position of the first.
    """
    require_unit_stride("out", out)
    shape, shared, constants = _shared_arguments(q, cache, page_table, op)
    return Launch(
        _extend_kernel,
        (tiles.shape[0], cache[0].shape[1]),
        {
            **shared,
            "tiles": tiles,
            "out": out,
            "out_stride_token": out.stride(0),
            "out_stride_head": out.stride(1),
        },
        constants,
        shape.num_warps,
        shape.num_stages,
    )


def _shared_arguments(
    q: Tensor, cache: tuple[Tensor, ...], page_table: Tensor, op: AttentionOp
) -> tuple[TileShape, dict[str, Tensor | int | float], dict[str, object]]:
    keys, values = cache[:2]
    require_unit_stride("q", q)
    _check_scales(cache)
    if keys.shape != values.shape or not keys.is_contiguous() or not values.is_contiguous():
        raise ValueError("keys and values are contiguous tensors of one shape")
    num_heads, head_dim = q.shape[1:]
    group_size, rest = divmod(num_heads, keys.shape[1])
    if rest or keys.shape[2] != head_dim:
        raise ValueError(
            f"q has {num_heads} heads of {head_dim} channels, the cache {keys.shape[1]} of {keys.shape[2]}"
        )
    max_tile_queries(group_size, q.dtype)
    shape = tile_shape(head_dim, q.dtype, is_stored_plain=format_of(keys) == PLAIN.value)
    scale, softcap = op.scales()
    arguments: dict[str, Tensor | int | float] = {
        "q": q,
        "keys": keys,
        "values": values,
        "key_scales": cache[2] if len(cache) > 2 else keys,
        "value_scales": cache[3] if len(cache) > 2 else keys,
        "page_table": page_table,
        "q_stride_token": q.stride(0),
        "q_stride_head": q.stride(1),
        "stride_slot": keys.stride(0),
        "stride_scale": keys.shape[1],
        "stride_row": page_table.stride(0),
        "scale": scale,
        "softcap": softcap,
    }
    constants: dict[str, object] = {
        "GROUP": group_size,
        "ROWS": shape.rows,
        "SPAN": SPAN,
        "PAGE_SIZE": op.page_size,
        "HEAD_DIM": head_dim,
        "CHANNELS": shape.channels,
        "BLOCK_KEYS": shape.block_keys,
        "WINDOW": op.sliding_window or 0,
        "HAS_SOFTCAP": op.softcap is not None,
        "FORMAT": format_of(keys),
    }
    return shape, arguments, constants


def _check_scales(cache: tuple[Tensor, ...]) -> None:
    shape = cache[0].shape[:2]
    is_scaled = len(cache) == 4 and all(x.shape == shape and x.is_contiguous() for x in cache[2:])
    if (cache[0].dtype is torch.int8) != is_scaled or len(cache) not in (2, 4):
        raise ValueError(
            f"a cache of {cache[0].dtype} with {len(cache) - 2} scales: int8 keys and values have one of "
            f"{tuple(shape)} each, others none"
        )


def _partial_arguments(partials: Partials) -> dict[str, Tensor | int | float]:
    return {
        "weighted": partials.weighted,
        "norms": partials.norms,
        "partial_stride": partials.weighted.stride(0),
        "norm_stride": partials.norms.stride(0),
    }


@triton.jit
def _load_queries(
    q, tokens, heads, active, q_stride_token, q_stride_head, HEAD_DIM: tl.constexpr, CHANNELS: tl.constexpr
):
    dims = tl.arange(0, CHANNELS)
    at = q + tokens.to(tl.int64) * q_stride_token + heads * q_stride_head
    return tl.load(at[:, None] + dims[None, :], mask=active[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def _store_partials(
    weighted, norms, partial_stride, norm_stride, numbers, heads, active, result, CHANNELS: tl.constexpr
):
    maximum, total, values = result
    dims = tl.arange(0, CHANNELS)
    numbers = numbers.to(tl.int64)
    at = numbers * partial_stride + heads * CHANNELS
    tl.store(weighted + at[:, None] + dims[None, :], values, mask=active[:, None])
    tl.store(norms + numbers * norm_stride + heads * 2, maximum, mask=active)
    tl.store(norms + numbers * norm_stride + heads * 2 + 1, total, mask=active)


@triton.jit
def _decode_kernel(
    q,
    keys,
    values,
    key_scales,
    value_scales,
    page_table,
    weighted,
    norms,
    kv_lens,
    q_stride_token,
    q_stride_head,
    stride_slot,
    stride_scale,
    stride_row,
    partial_stride,
    norm_stride,
    max_spans,
    scale,
    softcap,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    SPAN: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    FORMAT: tl.constexpr,
):
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    kv_len = tl.load(kv_lens + row)
    lowest = 0
    if WINDOW > 0:
        lowest = tl.maximum(kv_len - WINDOW, 0)
    begin = (lowest // SPAN + tl.program_id(2)) * SPAN
    if begin < kv_len:
        members = tl.arange(0, ROWS)
        active = members < GROUP
        heads = kv_head * GROUP + members
        tokens = tl.zeros([ROWS], tl.int32) + row
        positions = tl.where(active, kv_len - 1, -1)
        queries = _load_queries(q, tokens, heads, active, q_stride_token, q_stride_head, HEAD_DIM, CHANNELS)
        result = attend_span(
            queries,
            positions,
            page_table + row.to(tl.int64) * stride_row,
            keys + kv_head * HEAD_DIM,
            values + kv_head * HEAD_DIM,
            key_scales + kv_head,
            value_scales + kv_head,
            stride_slot,
            stride_scale,
            begin,
            tl.minimum(begin + SPAN, kv_len),
            lowest,
            scale,
            softcap,
            PAGE_SIZE,
            HEAD_DIM,
            CHANNELS,
            BLOCK_KEYS,
            WINDOW,
            HAS_SOFTCAP,
            FORMAT,
        )
        numbers = tokens * max_spans + tl.program_id(2)
        _store_partials(weighted, norms, partial_stride, norm_stride, numbers, heads, active, result, CHANNELS)


@triton.jit
def _tree_kernel(
    q,
    keys,
    values,
    key_scales,
    value_scales,
    page_table,
    weighted,
    norms,
    items,
    pairs,
    q_stride_token,
    q_stride_head,
    stride_slot,
    stride_scale,
    stride_row,
    partial_stride,
    norm_stride,
    scale,
    softcap,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    SPAN: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    FORMAT: tl.constexpr,
):
    item = items + tl.program_id(0) * 4
    kv_head = tl.program_id(1)
    row = tl.load(item)
    begin = tl.load(item + 1) * SPAN
    first_pair = tl.load(item + 2)
    num_pairs = tl.load(item + 3)
    members = tl.arange(0, ROWS)
    active = members < num_pairs * GROUP
    pair = pairs + (first_pair + members // GROUP) * 3
    tokens = tl.load(pair, mask=active, other=0)
    positions = tl.load(pair + 1, mask=active, other=-1)
    numbers = tl.load(pair + 2, mask=active, other=0)
    heads = kv_head * GROUP + members % GROUP
    last = tl.max(positions, 0)
    lowest = 0
    if WINDOW > 0:
        nearest = tl.min(tl.where(active, positions, last), 0)
        lowest = tl.maximum(nearest - WINDOW + 1, 0)
    queries = _load_queries(q, tokens, heads, active, q_stride_token, q_stride_head, HEAD_DIM, CHANNELS)
    result = attend_span(
        queries,
        positions,
        page_table + row.to(tl.int64) * stride_row,
        keys + kv_head * HEAD_DIM,
        values + kv_head * HEAD_DIM,
        key_scales + kv_head,
        value_scales + kv_head,
        stride_slot,
        stride_scale,
        begin,
        tl.minimum(begin + SPAN, last + 1),
        lowest,
        scale,
        softcap,
        PAGE_SIZE,
        HEAD_DIM,
        CHANNELS,
        BLOCK_KEYS,
        WINDOW,
        HAS_SOFTCAP,
        FORMAT,
    )
    _store_partials(weighted, norms, partial_stride, norm_stride, numbers, heads, active, result, CHANNELS)


@triton.jit
def _fold_kernel(
    weighted,
    norms,
    folds,
    out,
    partial_stride,
    norm_stride,
    out_stride_token,
    out_stride_head,
    num_heads,
    HEAD_DIM: tl.constexpr,
    CHANNELS: tl.constexpr,
    HEADS: tl.constexpr,
):
    entry = folds + tl.program_id(0) * 3
    token = tl.load(entry).to(tl.int64)
    first = tl.load(entry + 1).to(tl.int64)
    count = tl.load(entry + 2)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    active = heads < num_heads
    dims = tl.arange(0, CHANNELS)
    maximum = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    values = tl.zeros([HEADS, CHANNELS], tl.float32)
    for span in range(count):
        norm = norms + (first + span) * norm_stride + heads * 2
        at = weighted + (first + span) * partial_stride + heads * CHANNELS
        maximum, total, values = fold(
            maximum,
            total,
            values,
            tl.load(norm, mask=active, other=float("-inf")),
            tl.load(norm + 1, mask=active, other=0.0),
            tl.load(at[:, None] + dims[None, :], mask=active[:, None], other=0.0),
        )
    values = values / tl.where(total == 0.0, 1.0, total)[:, None]
    at = out + token * out_stride_token + heads * out_stride_head
    tl.store(
        at[:, None] + dims[None, :],
        values.to(out.dtype.element_ty),
        mask=active[:, None] & (dims < HEAD_DIM)[None, :],
    )


@triton.jit
def _extend_kernel(
    q,
    keys,
    values,
    key_scales,
    value_scales,
    page_table,
    tiles,
    out,
    q_stride_token,
    q_stride_head,
    out_stride_token,
    out_stride_head,
    stride_slot,
    stride_scale,
    stride_row,
    scale,
    softcap,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    SPAN: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    FORMAT: tl.constexpr,
):
    tile = tiles + tl.program_id(0) * 4
    kv_head = tl.program_id(1)
    row = tl.load(tile)
    first_token = tl.load(tile + 1)
    num_tokens = tl.load(tile + 2)
    position = tl.load(tile + 3)
    members = tl.arange(0, ROWS)
    active = members < num_tokens * GROUP
    tokens = first_token + members // GROUP
    heads = kv_head * GROUP + members % GROUP
    positions = tl.where(active, position + members // GROUP, -1)
    end = position + num_tokens
    lowest = 0
    if WINDOW > 0:
        lowest = tl.maximum(position - WINDOW + 1, 0)
    queries = _load_queries(q, tokens, heads, active, q_stride_token, q_stride_head, HEAD_DIM, CHANNELS)
    dims = tl.arange(0, CHANNELS)
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, CHANNELS], tl.float32)
    for begin in range(lowest // SPAN * SPAN, end, SPAN):
        span_maximum, span_total, span_weighted = attend_span(
            queries,
            positions,
            page_table + row.to(tl.int64) * stride_row,
            keys + kv_head * HEAD_DIM,
            values + kv_head * HEAD_DIM,
            key_scales + kv_head,
            value_scales + kv_head,
            stride_slot,
            stride_scale,
            begin,
            tl.minimum(begin + SPAN, end),
            lowest,
            scale,
            softcap,
            PAGE_SIZE,
            HEAD_DIM,
            CHANNELS,
            BLOCK_KEYS,
            WINDOW,
            HAS_SOFTCAP,
            FORMAT,
        )
        maximum, total, weighted = fold(maximum, total, weighted, span_maximum, span_total, span_weighted)
    weighted = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
    at = out + tokens.to(tl.int64) * out_stride_token + heads * out_stride_head
    tl.store(
        at[:, None] + dims[None, :],
        weighted.to(out.dtype.element_ty),
        mask=active[:, None] & (dims < HEAD_DIM)[None, :],
    )
