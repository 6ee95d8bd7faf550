"""Paged attention through the Triton kernels. Importing it imports triton."""

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
from ramet.runtime.attention.gpu_layout import GpuLayout, gpu_layout, has_shared_items
from ramet.runtime.attention.layout import PageSlots, written_slots
from ramet.runtime.forward import AttentionSpec, KVPool


class GpuAttentionBackend:
    """Implements ``AttentionBackend`` over a KV pool on a GPU.

    A token's result has the same bits in whatever batch and however its prompt was cut; what rows share is read
    once for all of them.
    """

    def __init__(
        self,
        pool: KVPool,
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
        self._page_size = page_size
        self._tile_queries = max_tile_queries(num_heads // num_kv_heads, dtype)
        self._dtype = dtype
        self._device = device

    @staticmethod
    def supports(num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> bool:
        """Whether the kernels hold heads of this size and these groups."""
        try:
            tile_shape(head_dim, dtype)
            max_tile_queries(num_heads // num_kv_heads, dtype)
        except ValueError:
            return False
        return True

    def plan(self, metadata: AttentionMetadata) -> "GpuAttentionPlan":
        return GpuAttentionPlan(
            self._pool,
            metadata,
            self._page_size,
            tile_queries=self._tile_queries,
            dtype=self._dtype,
            device=self._device,
        )


class GpuAttentionPlan:
    """One step's attention; an ``AttentionPlan``."""

    def __init__(
        self,
        pool: KVPool,
        metadata: AttentionMetadata,
        page_size: int,
        *,
        tile_queries: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._pool = pool
        self._dtype = dtype
        self._metadata = metadata
        self._page_size = page_size
        self._tile_queries = tile_queries
        self._device = device
        self._longest = max(metadata.kv_lens)
        num_pages = -(-self._longest // page_size)
        self._page_table = torch.from_numpy(metadata.page_table[:, :num_pages]).to(device).contiguous()
        slots = written_slots(metadata, PageSlots(metadata, page_size))
        self._written = torch.from_numpy(slots).to(device)
        # Of the layers with different windows, each made when a layer first needs it.
        self._by_window: dict[int | None, _WindowAttention] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """See ``AttentionPlan``."""
        window = spec.sliding_window
        if window is not None and window >= self._longest:
            window = None
        attention = self._by_window.get(window)
        if attention is None:
            layout = gpu_layout(
                self._metadata,
                page_size=self._page_size,
                span=SPAN,
                tile_queries=self._tile_queries,
                sliding_window=window,
            )
            attention = self._by_window[window] = _WindowAttention(self._metadata, layout, self._device)
        cache = self._pool.layer(spec.layer_id)
        given = q.dtype
        # A tile's rows depend on the dtype, and the layout on the tile.
        q, k, v = _unit_stride(q.to(self._dtype)), _unit_stride(k), _unit_stride(v)
        write_kv(k, v, self._written, cache).run()
        op = AttentionOp(self._page_size, spec.scale, window, spec.softcap)
        return attention.attend(q, cache, self._page_table, op).to(given)


class _WindowAttention:
    """The index tensors of the layers with one sliding window."""

    def __init__(self, metadata: AttentionMetadata, layout: GpuLayout, device: torch.device) -> None:
        self._num_partials = layout.num_partials
        self._folds = torch.from_numpy(layout.folds).to(device)
        self._tiles = torch.from_numpy(layout.tiles).to(device)
        self._items = torch.from_numpy(layout.items).to(device)
        self._pairs = torch.from_numpy(layout.pairs).to(device)
        self._kv_lens = None
        if max(metadata.query_lens) == 1 and not has_shared_items(layout):
            # Nothing to share: the kernel that finds a row's spans by itself reads no items.
            self._kv_lens = torch.tensor(metadata.kv_lens, dtype=torch.int32).to(device)
            self._max_spans = int(layout.folds[:, 2].max())
            self._num_partials = len(layout.folds) * self._max_spans
            self._folds[:, 1] = self._folds[:, 0] * self._max_spans

    def attend(self, q: Tensor, cache: tuple[Tensor, Tensor], page_table: Tensor, op: AttentionOp) -> Tensor:
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


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
