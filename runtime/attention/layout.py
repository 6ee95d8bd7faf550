"""How a step's attention is cut into equal pieces; index arithmetic only.

Keys are cut into spans of SPAN positions, counted from position 0. A query attends to each span apart, and the
partial results are merged by their log-sum-exp, in the order of the spans. Where the cuts are depends on
positions alone, so a token's attention goes through the same sums whether it is decoded, part of a prompt
chunk, drafted or recomputed, and whatever is batched with it (batch-invariant flash decoding's fixed splits).
Rows of the step whose slots in a span are equal share it: it is read once, for the queries of all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ramet.runtime.attention.base import AttentionMetadata

SPAN = 192
"""MKL's fp32 products add up to 192 terms in one order whatever the shapes are, and cut longer sums in two at
places that depend on them. Partial attention over 128, 192, 256 and 512 keys is equally fast."""
SPAN_STEP = 64
"""The keys of a span that is not full are padded to a multiple of this: at most three shapes of calls."""
ROW_STEP = 4
"""MKL has other kernels for 1, 2 and 3 rows, and a row's sums are equal in all sizes from 4 on."""
CALL_KEYS = 256
"""A call costs about as much as gathering this many keys: fewer are read in vain to save one."""
MAX_JOINED_QUERIES = 4096
"""Spans times queries that a chunk attends to in one call: it bounds the memory of their partial results."""
MAX_TOKENWISE_QUERIES = 4
"""Rows with up to this many queries (decoding, verified drafts) are attended token by token, batched with those
of other rows; longer ones are chunks with a call of their own."""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Query heads come in groups that share a KV head: head = kv_head * group_size + member of the group."""

    num_kv_heads: int
    group_size: int
    head_dim: int

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group_size


@dataclass(frozen=True, slots=True)
class SpanGroup:
    """Pieces of equal shape: num_items spans of `length` keys, each read by `num_queries` tokens."""

    num_items: int
    num_queries: int
    length: int
    tokens: Ints  # [num_items * num_queries] into the flattened batch
    slots: Ints  # [num_items * length] into the pool
    visible: Bools | None  # [num_items, length]; None: all


@dataclass(frozen=True, slots=True)
class TokenwiseLayout:
    """Single queries. The groups' (item, query) pairs, group after group, number the partial results."""

    tokens: Ints  # [num_tokens] ascending
    groups: list[SpanGroup]
    partials: (
        Ints  # [max_spans, num_tokens]: each token's partial results in span order, then the first one again
    )
    padding: Bools  # [max_spans, num_tokens]: True where partials repeats


@dataclass(frozen=True, slots=True)
class ChunkCall:
    """Queries first_token..last_token of a chunk over one span, or over several that all of them see whole."""

    first_token: int
    last_token: int  # exclusive
    spans: range  # which of the chunk's spans, counted from its first visible one
    length: int
    slots: Ints  # [len(spans) * length]
    visible: Bools | None  # [last_token - first_token, length]; None: all


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """One row of several queries: tokens start..start + num_tokens of the flattened batch."""

    start: int
    num_tokens: int
    num_spans: int
    calls: list[ChunkCall]


@dataclass(slots=True)
class _Item:
    """A span and the rows (indices into the tokenwise rows) that read it."""

    slots: Ints
    first_visible: int
    """Keys before it are outside of the sliding window."""
    rows: list[int]
    spans: list[int]
    """Which of the row's spans it is, for each of rows."""


@dataclass(slots=True)
class _Rows:
    """The tokenwise rows: one a query."""

    tokens: list[int] = field(default_factory=list)
    kv_lens: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    """Rows of the page table."""


class PageSlots:
    """The slots of each row's positions, through the page table; each row's are worked out once a step."""

    def __init__(self, metadata: AttentionMetadata, page_size: int) -> None:
        self._metadata = metadata
        self._page_size = page_size
        self._rows: dict[int, Ints] = {}

    def slots(self, row: int, first: int, last: int) -> Ints:
        """Slots of positions first..last (exclusive) of a row of the table. Not to be written to."""
        slots = self._rows.get(row)
        if slots is None:
            slots = self._rows[row] = self._slots_of(row)
        return slots[first:last]

    def _slots_of(self, row: int) -> Ints:
        kv_len, size = self._metadata.kv_lens[row], self._page_size
        pages = self._metadata.page_table[row, : -(-kv_len // size)].astype(np.int64)
        assert len(pages) * size >= kv_len, f"row {row} has {len(pages)} pages of {size} for {kv_len} tokens"
        if size == 1:
            return pages
        paged: Ints = pages[:, None] * size + np.arange(size)
        return paged.reshape(-1)[:kv_len]


class StepLayout:
    """The cuts of one step for one sliding window."""

    def __init__(
        self, metadata: AttentionMetadata, pages: PageSlots, *, sliding_window: int | None, max_items: int
    ) -> None:
        """max_items: the most spans that one group gathers."""
        self._pages = pages
        self._window = sliding_window
        rows, chunks, start = _Rows(), [], 0
        for source, (query_len, kv_len) in enumerate(zip(metadata.query_lens, metadata.kv_lens, strict=True)):
            if query_len <= MAX_TOKENWISE_QUERIES:
                rows.tokens.extend(range(start, start + query_len))
                rows.kv_lens.extend(range(kv_len - query_len + 1, kv_len + 1))
                rows.sources.extend([source] * query_len)
            else:
                chunks.append(self._chunk(start, query_len, kv_len, source))
            start += query_len
        self.num_tokens = start
        self.tokenwise = self._tokenwise(rows, max_items) if rows.tokens else None
        self.chunks: list[ChunkLayout] = chunks

    def _tokenwise(self, rows: _Rows, max_items: int) -> TokenwiseLayout:
        by_shape = _by_shape(self._items(rows))
        num_spans = [0] * len(rows.tokens)
        groups, places, first_partial = [], [], 0
        for (num_queries, length), members in sorted(by_shape.items()):
            for begin in range(0, len(members), max_items):
                block = members[begin : begin + max_items]
                groups.append(_group(block, rows.tokens, num_queries, length))
                for index, item in enumerate(block):
                    for query, (row, span) in enumerate(zip(item.rows, item.spans, strict=True)):
                        places.append((span, row, first_partial + index * num_queries + query))
                        num_spans[row] = max(num_spans[row], span + 1)
                first_partial += len(block) * num_queries
        partials = np.full((max(num_spans), len(rows.tokens)), -1, np.int64)
        span_ids, row_ids, ids = np.array(places, np.int64).T
        partials[span_ids, row_ids] = ids
        padding = partials < 0
        # A repeated result of the row itself has no weight, and no other row's NaN can reach it.
        partials = np.where(padding, partials[0], partials)
        return TokenwiseLayout(np.array(rows.tokens, np.int64), groups, partials, padding)

    def _items(self, rows: _Rows) -> list[_Item]:
        """Each row's spans; whole ones that several rows read from the same slots appear once.

        Two rows are enough: sharing one span of theirs costs as much as reading it twice, two spans take 0.8 of
        the time, and 5 spans of 16 rows 0.15.
        """
        items: list[_Item] = []
        whole: dict[tuple[int, bytes], _Item] = {}
        several = len(rows.tokens) > 1
        for row, (kv_len, source) in enumerate(zip(rows.kv_lens, rows.sources, strict=True)):
            first_key = 0 if self._window is None else max(0, kv_len - self._window)
            for span, begin in enumerate(range(first_key // SPAN * SPAN, kv_len, SPAN)):
                low = max(first_key - begin, 0) // SPAN_STEP * SPAN_STEP
                slots = self._pages.slots(source, begin + low, min(begin + SPAN, kv_len))
                first_visible = max(first_key - begin - low, 0)
                item = _Item(slots, first_visible, [row], [span])
                if several and first_visible == 0 and len(slots) == SPAN:
                    same = whole.setdefault((begin, slots.tobytes()), item)
                    if same is not item:
                        same.rows.append(row)
                        same.spans.append(span)
                        continue
                items.append(item)
        return items

    def _chunk(self, start: int, query_len: int, kv_len: int, source: int) -> ChunkLayout:
        position = kv_len - query_len
        first_key = 0 if self._window is None else max(0, position - self._window + 1)
        calls: list[ChunkCall] = []
        for span, begin in enumerate(range(first_key // SPAN * SPAN, kv_len, SPAN)):
            end = min(begin + SPAN, kv_len)
            slots = _padded(self._pages.slots(source, begin, end), _up(end - begin, SPAN_STEP))
            first = max(0, begin - position)
            last = query_len
            if self._window is not None:
                last = min(last, end - 1 + self._window - position)
            visible = self._visible(position + first, position + last, begin, end, len(slots))
            call = ChunkCall(first, last, range(span, span + 1), len(slots), slots, visible)
            calls.append(call)
        return ChunkLayout(start, query_len, len(calls), _joined(calls, query_len))

    def _visible(self, first: int, last: int, begin: int, end: int, length: int) -> Bools | None:
        """Which keys begin..end the queries at positions first..last see: [last - first, length]."""
        sees_window = self._window is None or last - self._window <= begin
        if first >= end - 1 and sees_window and length == end - begin:
            return None
        queries = np.arange(first, last)[:, None]
        keys = np.arange(begin, begin + length)[None, :]
        visible = (keys <= queries) & (keys < end)
        if self._window is not None:
            visible &= keys > queries - self._window
        return visible


def written_slots(metadata: AttentionMetadata, pages: PageSlots) -> Ints:
    """The slots of the rows' own tokens, in the order of the flattened batch."""
    written = []
    for row, (query_len, kv_len) in enumerate(zip(metadata.query_lens, metadata.kv_lens, strict=True)):
        assert 1 <= query_len <= kv_len, f"row {row} computes {query_len} of {kv_len} tokens"
        written.append(pages.slots(row, kv_len - query_len, kv_len))
    return np.concatenate(written)


def _by_shape(items: list[_Item]) -> dict[tuple[int, int], list[_Item]]:
    """Items by (queries, keys), both rounded up; few short ones are padded to join longer ones."""
    by_shape: dict[tuple[int, int], list[_Item]] = {}
    for item in items:
        num_queries = 1 << (len(item.rows) - 1).bit_length()
        by_shape.setdefault((num_queries, _up(len(item.slots), SPAN_STEP)), []).append(item)
    for shape in sorted(by_shape):
        num_queries, length = shape
        for longer in range(length + SPAN_STEP, SPAN + 1, SPAN_STEP):
            if (num_queries, longer) in by_shape:
                if len(by_shape[shape]) * (longer - length) <= CALL_KEYS:
                    by_shape[num_queries, longer].extend(by_shape.pop(shape))
                break
    return by_shape


def _group(items: Sequence[_Item], tokens: Sequence[int], num_queries: int, length: int) -> SpanGroup:
    queries = [
        [tokens[row] for row in item.rows] + [tokens[item.rows[0]]] * (num_queries - len(item.rows))
        for item in items
    ]
    visible = None
    if any(item.first_visible > 0 or len(item.slots) < length for item in items):
        keys = np.arange(length)
        bounds = np.array([(item.first_visible, len(item.slots)) for item in items])
        visible = (keys >= bounds[:, :1]) & (keys < bounds[:, 1:])
    slots = np.concatenate([_padded(item.slots, length) for item in items])
    return SpanGroup(len(items), num_queries, length, np.array(queries, np.int64).reshape(-1), slots, visible)


def _joined(calls: list[ChunkCall], query_len: int) -> list[ChunkCall]:
    """The calls with runs of whole spans that every query sees made one."""
    joined: list[ChunkCall] = []
    for call in calls:
        last = joined[-1] if joined else None
        if (
            last is not None
            and (len(last.spans) + 1) * query_len <= MAX_JOINED_QUERIES
            and all(
                c.visible is None and c.length == SPAN and c.first_token == 0 and c.last_token == query_len
                for c in (last, call)
            )
        ):
            slots = np.concatenate((last.slots, call.slots))
            joined[-1] = ChunkCall(0, query_len, range(last.spans.start, call.spans.stop), SPAN, slots, None)
        else:
            joined.append(call)
    return joined


def _padded(slots: Ints, length: int) -> Ints:
    """Padded with the first of them: padding is masked, but what is read there must be the row's own, lest
    another row's NaN be multiplied by 0."""
    if len(slots) == length:
        return slots
    padded = np.full(length, slots[0])
    padded[: len(slots)] = slots
    return padded


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
