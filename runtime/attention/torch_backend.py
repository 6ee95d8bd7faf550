"""Paged attention in plain torch, for any device.

See ``layout`` for how a step is cut so that a token's result does not depend on what it is batched with.
"""

import torch
from torch import Tensor

from ramet.runtime.attention.base import AttentionMetadata
from ramet.runtime.attention.chunk import ChunkAttention
from ramet.runtime.attention.layout import SPAN, HeadLayout, PageSlots, StepLayout, written_slots
from ramet.runtime.attention.tokenwise import TokenwiseAttention
from ramet.runtime.forward import AttentionSpec, KVPool

_GATHER_BYTES = 4 << 20
"""Keys and values that one call gathers at the most on CPU, so that they are still cached when they are read.
Of 1, 2, 4, 8 and 64 MiB the best for 32 rows of 160 tokens and for 16 of 1,056 (64 MiB takes up to 3.5x)."""

_DEVICE_GATHER_BYTES = 256 << 20
"""The same on other devices, where it only bounds memory."""


class TorchAttentionBackend:
    """Implements ``AttentionBackend`` over a KV pool."""

    def __init__(
        self,
        pool: KVPool,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        device: torch.device,
    ) -> None:
        assert num_heads % num_kv_heads == 0, f"{num_heads} query heads, {num_kv_heads} KV heads"
        self._pool = pool
        self._heads = HeadLayout(num_kv_heads, num_heads // num_kv_heads, head_dim)
        self._page_size = page_size
        self._device = device

    def plan(self, metadata: AttentionMetadata) -> "TorchAttentionPlan":
        return TorchAttentionPlan(
            self._pool, metadata, self._heads, page_size=self._page_size, device=self._device
        )


class TorchAttentionPlan:
    """One step's attention; an ``AttentionPlan``."""

    def __init__(
        self,
        pool: KVPool,
        metadata: AttentionMetadata,
        heads: HeadLayout,
        *,
        page_size: int,
        device: torch.device,
    ) -> None:
        self._pool = pool
        self._metadata = metadata
        self._heads = heads
        self._device = device
        self._longest = max(metadata.kv_lens)
        self._pages = PageSlots(metadata, page_size)
        self._written_slots = torch.from_numpy(written_slots(metadata, self._pages)).to(device)
        # The layouts of layers with different windows, each made when a layer first needs it.
        self._by_window: dict[int | None, _WindowAttention] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """See ``AttentionPlan``."""
        window = spec.sliding_window
        if window is not None and window >= self._longest:
            window = None
        attention = self._by_window.get(window)
        if attention is None:
            attention = self._by_window[window] = self._make_attention(window)
        self._pool.write(spec.layer_id, self._written_slots, k, v)
        keys, values = self._pool.layer(spec.layer_id)
        return attention.attend(q, keys, values, spec)

    def _make_attention(self, window: int | None) -> "_WindowAttention":
        gather_bytes = _GATHER_BYTES if self._device.type == "cpu" else _DEVICE_GATHER_BYTES
        span_bytes = 2 * SPAN * self._heads.num_kv_heads * self._heads.head_dim * 4
        max_items = max(2, gather_bytes // span_bytes)
        layout = StepLayout(self._metadata, self._pages, sliding_window=window, max_items=max_items)
        return _WindowAttention(layout, self._heads, self._device)


class _WindowAttention:
    """The attention of the layers with one sliding window."""

    def __init__(self, layout: StepLayout, heads: HeadLayout, device: torch.device) -> None:
        self._tokenwise = None
        self._tokens: Tensor | slice = slice(0, 0)
        if layout.tokenwise is not None:
            self._tokenwise = TokenwiseAttention(
                layout.tokenwise, heads, num_batch_tokens=layout.num_tokens, device=device
            )
            tokens = layout.tokenwise.tokens
            first, last = int(tokens[0]), int(tokens[-1]) + 1
            in_a_run = last - first == len(tokens)
            self._tokens = slice(first, last) if in_a_run else torch.from_numpy(tokens).to(device)
        self._chunks = [
            (slice(chunk.start, chunk.start + chunk.num_tokens), ChunkAttention(chunk, heads, device=device))
            for chunk in layout.chunks
        ]

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec) -> Tensor:
        if self._tokenwise is not None and not self._chunks:
            return self._tokenwise(q, keys, values, spec).to(q.dtype)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if self._tokenwise is not None:
            out[self._tokens] = self._tokenwise(q, keys, values, spec).to(q.dtype)
        for tokens, chunk in self._chunks:
            out[tokens] = chunk(q[tokens], keys, values, spec)
        return out
