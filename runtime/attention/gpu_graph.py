"""Decoding steps for a captured graph: the same kernels over buffers that stay where they are.

A graph repeats launches with the arguments that they were captured with, so everything that differs from step
to step is read from memory: a step's indices are copied into the buffers, and padding fills what is left. The
kernels are those of eager steps, with the same cuts: a token has the same bits either way.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ramet.kernels.gpu.attention import AttentionOp, Partials, fold_partials, tree_attention
from ramet.kernels.gpu.attention_tile import SPAN, tile_shape
from ramet.kernels.gpu.rope import write_kv
from ramet.runtime.attention.base import AttentionMetadata, GraphSize
from ramet.runtime.attention.gpu_layout import GpuLayout, gpu_layout
from ramet.runtime.forward import AttentionSpec, HostStaging

MAX_PARTIAL_BYTES = 1 << 28
"""Of the partial results of a step; one with more is computed eagerly. 16,384 spans of Llama 3 8B."""
SMALL_BATCH = 8
"""Up to here batches are padded to powers of two, beyond to multiples of it."""


class DeviceMemory(Protocol):
    """A KV pool whose layers the kernels read and write as they are."""

    def layer(self, layer_id: int) -> tuple[Tensor, ...]:
        """K and V, and the scales of both where they are int8 (see ``kernels.gpu.attention``)."""
        ...


@dataclass(frozen=True, slots=True)
class _Indices:
    """Of the layers with one sliding window."""

    items: Tensor  # [max_partials, 4] int32
    pairs: Tensor  # [max_partials, 3] int32
    folds: Tensor  # [max_rows, 3] int32


@dataclass(frozen=True, slots=True)
class GpuShape:
    """What does not change while a model runs."""

    num_heads: int
    head_dim: int
    page_size: int
    tile_queries: int
    """The most queries of an item or a tile."""
    dtype: torch.dtype
    """Of the queries."""
    device: torch.device


class GraphBuffers:
    """The buffers of all graphs of an engine; a graph uses the first part of each.

    ``load`` overwrites them: a graph reads what was loaded last.
    """

    def __init__(self, pool: DeviceMemory, shape: GpuShape, *, max_rows: int, max_pages: int) -> None:
        device = shape.device
        self._pool = pool
        self._shape = shape
        self._max_rows = padded_rows(max_rows)
        self._staging = HostStaging.of(device)
        self._page_table = torch.zeros((self._max_rows, max_pages), dtype=torch.int32, device=device)
        self._slots = torch.full((self._max_rows,), -1, dtype=torch.int64, device=device)
        bytes_each = 4 * shape.num_heads * (tile_shape(shape.head_dim, shape.dtype).channels + 2)
        spans = -(-max_pages * shape.page_size // SPAN)
        self._max_partials = max(1, min(self._max_rows * spans, MAX_PARTIAL_BYTES // bytes_each))
        heads = torch.empty((0, shape.num_heads, shape.head_dim), dtype=shape.dtype, device=device)
        self._partials = Partials.empty(self._max_partials, heads)
        self._by_window: dict[int | None, _Indices] = {None: self._empty()}
        self._loaded: tuple[AttentionMetadata, GraphSize] | None = None

    def load(self, metadata: AttentionMetadata) -> GraphSize | None:
        """Take in a step of one token a row. None, with nothing changed, where it has too many rows or spans,
        or rows of several tokens."""
        num_rows = len(metadata.query_lens)
        if num_rows > self._max_rows or max(metadata.query_lens) > 1:
            return None
        layout = self._layout(metadata, None)
        if layout.num_partials > self._max_partials:
            return None
        num_items = min(_power_of_two(len(layout.items)), self._max_partials)
        size = GraphSize(padded_rows(num_rows), num_items)
        page_size, last = self._shape.page_size, np.asarray(metadata.kv_lens, np.int64) - 1
        num_pages = int(last.max()) // page_size + 1
        self._copy(self._page_table[:num_rows, :num_pages], metadata.page_table[:, :num_pages])
        slots = np.full(size.num_rows, -1, dtype=np.int64)
        pages = metadata.page_table[np.arange(num_rows), last // page_size].astype(np.int64)
        slots[:num_rows] = pages * page_size + last % page_size
        self._copy(self._slots[: size.num_rows], slots)
        for window in self._by_window:
            self._fill(window, layout if window is None else self._layout(metadata, window), size)
        self._loaded = metadata, size
        return size

    def plan(self, size: GraphSize) -> "GraphPlan":
        """The attention of what is loaded, now and whenever a graph that was captured with it is replayed."""
        return GraphPlan(self, size)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, size: GraphSize) -> Tensor:
        """As ``AttentionPlan``, of size.num_rows tokens."""
        if spec.sliding_window not in self._by_window:
            # The first call of a layer with this window, which is before anything of it is captured.
            assert self._loaded is not None, "nothing is loaded"
            self._by_window[spec.sliding_window] = self._empty()
            self._fill(spec.sliding_window, self._layout(self._loaded[0], spec.sliding_window), size)
        indices = self._by_window[spec.sliding_window]
        given, cache = q.dtype, self._pool.layer(spec.layer_id)
        q, k, v = unit_stride(q.to(self._shape.dtype)), unit_stride(k), unit_stride(v)
        write_kv(k, v, self._slots[: size.num_rows], cache).run()
        op = AttentionOp(self._shape.page_size, spec.scale, spec.sliding_window, spec.softcap)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        items = indices.items[: size.num_items]
        tree_attention(q, cache, self._page_table, items, indices.pairs, self._partials, op).run()
        fold_partials(self._partials, indices.folds[: size.num_rows], out).run()
        return out.to(given)

    def _layout(self, metadata: AttentionMetadata, window: int | None) -> GpuLayout:
        return gpu_layout(
            metadata,
            page_size=self._shape.page_size,
            span=SPAN,
            tile_queries=self._shape.tile_queries,
            sliding_window=window,
        )

    def _empty(self) -> _Indices:
        items, pairs, folds = (
            torch.zeros(rows, width, dtype=torch.int32, device=self._shape.device)
            for rows, width in ((self._max_partials, 4), (self._max_partials, 3), (self._max_rows, 3))
        )
        return _Indices(items, pairs, folds)

    def _fill(self, window: int | None, layout: GpuLayout, size: GraphSize) -> None:
        """Padding: items without queries, and tokens without partial results."""
        indices = self._by_window[window]
        items = np.zeros((size.num_items, 4), dtype=np.int32)
        items[: len(layout.items)] = layout.items
        folds = np.zeros((size.num_rows, 3), dtype=np.int32)
        folds[:, 0] = np.arange(size.num_rows)
        folds[: len(layout.folds)] = layout.folds
        self._copy(indices.items[: size.num_items], items)
        self._copy(indices.pairs[: len(layout.pairs)], layout.pairs)
        self._copy(indices.folds[: size.num_rows], folds)

    def _copy(self, target: Tensor, array: npt.NDArray[np.generic]) -> None:
        if self._staging is None:
            target.copy_(torch.from_numpy(np.ascontiguousarray(array)))
        else:
            self._staging.copy_into(target, array)


class GraphPlan:
    """An ``AttentionPlan`` over ``GraphBuffers``."""

    def __init__(self, buffers: GraphBuffers, size: GraphSize) -> None:
        self._buffers = buffers
        self._size = size

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        return self._buffers.attend(q, k, v, spec, self._size)


def padded_rows(num_rows: int) -> int:
    """The rows of the graph that computes so many."""
    if num_rows <= SMALL_BATCH:
        return _power_of_two(num_rows)
    return -(-num_rows // SMALL_BATCH) * SMALL_BATCH


def unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()
