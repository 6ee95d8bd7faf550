"""Paged attention through the Triton kernels. Importing it imports triton."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ramet.kernels.gpu.attention import (
    AttentionOp,
    Partials,
    decode_attention,
    extend_attention,
    fold_partials,
    max_tile_queries,
    tree_attention,
)
from ramet.kernels.gpu.attention_tile import SPAN, tile_shape
from ramet.kernels.gpu.rope import write_kv
from ramet.runtime.attention.base import AttentionMetadata
from ramet.runtime.attention.gpu_graph import DeviceMemory, GpuShape, GraphBuffers, unit_stride
from ramet.runtime.attention.gpu_layout import GpuLayout, gpu_layout, has_shared_items
from ramet.runtime.attention.layout import PageSlots, written_slots
from ramet.runtime.forward import AttentionSpec, HostStaging, device_copy


class GpuAttentionBackend:
    """Implements ``AttentionBackend`` over a KV pool on a GPU.

    A token's result has the same bits in whatever batch and however its prompt was cut; what rows share is read
    once for all of them.
    """

    def __init__(
        self,
        pool: DeviceMemory,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """dtype: of the queries. Raises ValueError for heads that ``supports`` denies."""
        tile_shape(head_dim, dtype)
        self._pool = pool
        tile_queries = max_tile_queries(num_heads // num_kv_heads, dtype)
        self._shape = GpuShape(num_heads, head_dim, page_size, tile_queries, dtype, device)
        self._staging = HostStaging.of(device)

    @staticmethod
    def supports(num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> bool:
        """Whether the kernels hold heads of this size and these groups."""
        try:
            tile_shape(head_dim, dtype)
            max_tile_queries(num_heads // num_kv_heads, dtype)
        except ValueError:
            return False
        return True

    def graph_buffers(self, max_rows: int, max_pages: int) -> GraphBuffers:
        """What decoding steps of up to ``max_rows`` rows read when they are computed by a captured graph."""
        return GraphBuffers(self._pool, self._shape, max_rows=max_rows, max_pages=max_pages)

    def plan(self, metadata: AttentionMetadata) -> "GpuAttentionPlan":
        return GpuAttentionPlan(self._pool, metadata, self._shape, self._staging)


class GpuAttentionPlan:
    """One step's attention; an ``AttentionPlan``."""

    def __init__(
        self, pool: DeviceMemory, metadata: AttentionMetadata, shape: GpuShape, staging: HostStaging | None
    ) -> None:
        self._pool = pool
        self._staging = staging
        self._shape = shape
        self._metadata = metadata
        self._longest = max(metadata.kv_lens)
        # Made when a layer first needs them: a step that a graph computes needs none.
        self._indices: tuple[Tensor, Tensor] | None = None
        self._by_window: dict[int | None, _WindowAttention] = {}

    @property
    def metadata(self) -> AttentionMetadata:
        return self._metadata

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """See ``AttentionPlan``."""
        window = spec.sliding_window
        if window is not None and window >= self._longest:
            window = None
        attention = self._by_window.get(window)
        if attention is None:
            layout = gpu_layout(
                self._metadata,
                page_size=self._shape.page_size,
                span=SPAN,
                tile_queries=self._shape.tile_queries,
                sliding_window=window,
            )
            attention = self._by_window[window] = _WindowAttention(self._metadata, layout, self._to_device)
        page_table, written = self._on_device()
        cache = self._pool.layer(spec.layer_id)
        given = q.dtype
        # A tile's rows depend on the dtype, and the layout on the tile.
        q, k, v = unit_stride(q.to(self._shape.dtype)), unit_stride(k), unit_stride(v)
        write_kv(k, v, written, cache).run()
        op = AttentionOp(self._shape.page_size, spec.scale, window, spec.softcap)
        return attention.attend(q, cache, page_table, op).to(given)

    def _on_device(self) -> tuple[Tensor, Tensor]:
        """The page table and the slots that are written."""
        if self._indices is None:
            num_pages = -(-self._longest // self._shape.page_size)
            slots = written_slots(self._metadata, PageSlots(self._metadata, self._shape.page_size))
            table = self._to_device(self._metadata.page_table[:, :num_pages])
            self._indices = table, self._to_device(slots)
        return self._indices

    def _to_device(self, array: npt.NDArray[np.generic]) -> Tensor:
        return device_copy(array, self._shape.device, self._staging)


class _WindowAttention:
    """The index tensors of the layers with one sliding window."""

    def __init__(
        self,
        metadata: AttentionMetadata,
        layout: GpuLayout,
        to_device: Callable[[npt.NDArray[np.generic]], Tensor],
    ) -> None:
        self._num_partials = layout.num_partials
        self._kv_lens = None
        folds = layout.folds
        if max(metadata.query_lens) == 1 and not has_shared_items(layout):
            # Nothing to share: the kernel that finds a row's spans by itself reads no items.
            self._kv_lens = to_device(np.array(metadata.kv_lens, dtype=np.int32))
            self._max_spans = int(folds[:, 2].max())
            self._num_partials = len(folds) * self._max_spans
            folds = folds.copy()
            folds[:, 1] = folds[:, 0] * self._max_spans
        self._folds, self._tiles = to_device(folds), to_device(layout.tiles)
        if self._kv_lens is None:
            self._items, self._pairs = to_device(layout.items), to_device(layout.pairs)

    def attend(self, q: Tensor, cache: tuple[Tensor, ...], page_table: Tensor, op: AttentionOp) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if len(self._tiles):
            extend_attention(q, cache, page_table, self._tiles, out, op).run()
        if not len(self._folds):
            return out
        partials = Partials.empty(self._num_partials, q)
        if self._kv_lens is not None:
            spans = self._max_spans
            decode_attention(q, cache, page_table, self._kv_lens, partials, op, max_spans=spans).run()
        else:
            tree_attention(q, cache, page_table, self._items, self._pairs, partials, op).run()
        fold_partials(partials, self._folds, out).run()
        return out
