"""Paged attention through the compiled CPU kernel: no copies of keys or values, shared spans read once."""

import torch
from torch import Tensor

from ramet.kernels.native import AttentionItems, AttentionScratch, NativeLibrary
from ramet.runtime.attention.base import AttentionMetadata
from ramet.runtime.attention.layout import PageSlots, written_slots
from ramet.runtime.attention.native_layout import NativeLayout
from ramet.runtime.forward import AttentionSpec, KVPool

HEAD_DIM_STEP = 16
"""The kernel's vectors are whole: head dimensions are a multiple of it."""


class NativeAttentionBackend:
    """Implements ``AttentionBackend`` on CPU over a KV pool in fp32, or what else the library takes. One plan
    is in use at a time.
    """

    def __init__(self, library: NativeLibrary, pool: KVPool, *, page_size: int) -> None:
        self._library = library
        self._pool = pool
        self._page_size = page_size
        self._scratch = AttentionScratch()

    def plan(self, metadata: AttentionMetadata) -> "NativeAttentionPlan":
        return NativeAttentionPlan(self._library, self._pool, metadata, self._scratch, self._page_size)


class NativeAttentionPlan:
    """One step's attention; an ``AttentionPlan``."""

    def __init__(
        self,
        library: NativeLibrary,
        pool: KVPool,
        metadata: AttentionMetadata,
        scratch: AttentionScratch,
        page_size: int,
    ) -> None:
        self._library = library
        self._pool = pool
        self._metadata = metadata
        self._scratch = scratch
        self._longest = max(metadata.kv_lens)
        self._pages = PageSlots(metadata, page_size)
        self._written = torch.from_numpy(written_slots(metadata, self._pages))
        # Of the layers with different windows, each made when a layer first needs it.
        self._by_window: dict[int | None, AttentionItems] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """See ``AttentionPlan``."""
        window = spec.sliding_window
        if window is not None and window >= self._longest:
            window = None
        items = self._by_window.get(window)
        if items is None:
            layout = NativeLayout(self._metadata, self._pages, sliding_window=window)
            items = self._by_window[window] = layout.items()
        return self._library.attention(
            (q, k, v),
            self._pool.layer(spec.layer_id),
            self._written,
            items,
            self._scratch,
            scale=spec.scale,
            softcap=spec.softcap,
        )
