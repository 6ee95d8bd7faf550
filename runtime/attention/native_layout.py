"""How a step's attention is cut for the compiled kernel; index arithmetic only.

The cuts are those of ``layout``: spans of SPAN positions counted from position 0, whose partial results are
folded in order. An item is a span and the queries that read it: a tile of one row's queries, or the queries of
all rows whose slots in a whole span are equal. Nothing is padded, and each query says which keys it sees.
"""

from dataclasses import dataclass, field

import numpy as np

from ramet.kernels.native import SPAN, AttentionItems
from ramet.runtime.attention.base import AttentionMetadata
from ramet.runtime.attention.layout import MAX_TOKENWISE_QUERIES, Ints, PageSlots

TILE = 32
"""Queries of one item: with 3 heads a group their scores take 72 KiB, which the second-level cache holds."""
_STEP = 16
"""Keys before a window that begins inside a span are left out in whole vectors: sums keep their lanes."""


@dataclass(slots=True)
class _Item:
    slots: Ints
    pairs: list[tuple[int, int, int, int]] = field(default_factory=list)


class NativeLayout:
    """The items of one step for one sliding window (None: all keys are seen)."""

    def __init__(self, metadata: AttentionMetadata, pages: PageSlots, *, sliding_window: int | None) -> None:
        self._pages = pages
        self._window = sliding_window
        self._items: list[_Item] = []
        self._shared: dict[tuple[int, bytes], _Item] = {}
        self._several = len(metadata.kv_lens) > 1
        self._num_partials = 0
        self._folds: list[tuple[int, int]] = []
        start = 0
        for source, (query_len, kv_len) in enumerate(zip(metadata.query_lens, metadata.kv_lens, strict=True)):
            for first in range(0, query_len, TILE):
                tokens = range(start + first, start + min(first + TILE, query_len))
                may_share = self._several and query_len <= MAX_TOKENWISE_QUERIES
                self._add_tile(tokens, kv_len - query_len + first, source, may_share=may_share)
            start += query_len

    def items(self) -> AttentionItems:
        bounds = np.zeros((len(self._items), 4), np.int64)
        bounds[:, 1] = [len(item.slots) for item in self._items]
        bounds[:, 3] = [len(item.pairs) for item in self._items]
        bounds[1:, 0] = np.cumsum(bounds[:-1, 1])
        bounds[1:, 2] = np.cumsum(bounds[:-1, 3])
        return AttentionItems(
            slots=np.concatenate([item.slots for item in self._items]),
            items=bounds,
            pairs=np.array([pair for item in self._items for pair in item.pairs], np.int32),
            folds=np.array(self._folds, np.int64),
            num_partials=self._num_partials,
            max_pairs=int(bounds[:, 3].max()),
        )

    def _add_tile(self, tokens: range, position: int, source: int, *, may_share: bool) -> None:
        """tokens: of the batch, at positions ``position`` and following."""
        last = position + len(tokens) - 1
        first_spans = []
        for offset in range(len(tokens)):
            first_span = self._first_key(position + offset) // SPAN
            first_spans.append(first_span)
            count = (position + offset) // SPAN - first_span + 1
            self._folds.append((self._num_partials, count))
            self._num_partials += count
        folds = self._folds[-len(tokens) :]
        lowest = self._first_key(position)
        for span in range(lowest // SPAN, last // SPAN + 1):
            begin = span * SPAN
            low = begin + max(lowest - begin, 0) // _STEP * _STEP
            slots = self._pages.slots(source, low, min(begin + SPAN, last + 1))
            item = self._item(slots, begin, shared=may_share and self._sees_whole(position, last, begin))
            for offset, token in enumerate(tokens):
                seen_from = max(self._first_key(position + offset) - low, 0)
                seen_to = min(position + offset + 1 - low, len(slots))
                if seen_from < seen_to:
                    item.pairs.append(
                        (token, seen_from, seen_to, folds[offset][0] + span - first_spans[offset])
                    )

    def _item(self, slots: Ints, begin: int, *, shared: bool) -> _Item:
        if shared:
            key = (begin, slots.tobytes())
            item = self._shared.get(key)
            if item is not None and len(item.pairs) < TILE:
                return item
        item = _Item(slots)
        self._items.append(item)
        if shared:
            self._shared[key] = item
        return item

    def _sees_whole(self, first_position: int, last_position: int, begin: int) -> bool:
        return first_position >= begin + SPAN - 1 and self._first_key(last_position) <= begin

    def _first_key(self, position: int) -> int:
        return 0 if self._window is None else max(0, position - self._window + 1)
