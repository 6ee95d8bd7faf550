"""The cuts of a step: every visible key once, whole shared spans once for all their rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.attention import AttentionMetadata
from ramet.runtime.attention.layout import (
    MAX_TOKENWISE_QUERIES,
    SPAN,
    SPAN_STEP,
    ChunkLayout,
    PageSlots,
    StepLayout,
    TokenwiseLayout,
)


def layout_of(
    rows: list[tuple[int, int]], window: int | None = None, *, shared: int = 0, max_items: int = 64
) -> StepLayout:
    """Page size 1; row i's slots are 10,000 i + position, but the first `shared` ones row 0's."""
    longest = max(kv_len for _, kv_len in rows)
    table = 10_000 * np.arange(len(rows))[:, None] + np.arange(longest)[None, :]
    table[:, :shared] = table[0, :shared]
    metadata = AttentionMetadata([q for q, _ in rows], [kv for _, kv in rows], table.astype(np.int32))
    return StepLayout(metadata, PageSlots(metadata, 1), sliding_window=window, max_items=max_items)


def keys_of_tokens(layout: TokenwiseLayout) -> list[list[int]]:
    """The slots that each token sees, in the order in which its partial results are merged."""
    partials: list[list[int]] = []
    for group in layout.groups:
        slots = group.slots.reshape(group.num_items, group.length)
        for index in range(group.num_items):
            seen = slots[index] if group.visible is None else slots[index][group.visible[index]]
            partials.extend([seen.tolist()] * group.num_queries)
    columns = zip(layout.partials.T, layout.padding.T, strict=True)
    return [
        [slot for partial, unused in zip(ids, padding, strict=True) if not unused for slot in partials[partial]]
        for ids, padding in columns
    ]


def keys_of_chunk(chunk: ChunkLayout) -> list[list[int]]:
    seen: list[list[int]] = [[] for _ in range(chunk.num_tokens)]
    for call in chunk.calls:
        slots = call.slots.reshape(len(call.spans), call.length)
        for token in range(call.first_token, call.last_token):
            for span in slots:
                visible = span if call.visible is None else span[call.visible[token - call.first_token]]
                assert len(visible) > 0
                seen[token].extend(visible.tolist())
    return seen


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 700)), min_size=1, max_size=5),
    st.one_of(st.none(), st.integers(1, 500)),
    st.integers(1, 9),
)
def test_every_query_sees_its_keys_once_and_in_order(
    sizes: list[tuple[int, int]], window: int | None, max_items: int
) -> None:
    rows = [(query_len, past + query_len) for query_len, past in sizes]
    layout = layout_of(rows, window, max_items=max_items)
    seen: dict[int, list[int]] = {}
    if layout.tokenwise is not None:
        seen.update(zip(layout.tokenwise.tokens.tolist(), keys_of_tokens(layout.tokenwise), strict=True))
        assert all(group.num_items <= max_items for group in layout.tokenwise.groups)
    for chunk in layout.chunks:
        seen.update(enumerate(keys_of_chunk(chunk), chunk.start))
    expected = [
        [10_000 * row + key for key in range(0 if window is None else max(0, end - window), end)]
        for row, (query_len, kv_len) in enumerate(rows)
        for end in range(kv_len - query_len + 1, kv_len + 1)
    ]
    assert [seen[token] for token in range(layout.num_tokens)] == expected


def test_rows_of_few_queries_go_token_by_token() -> None:
    layout = layout_of([(1, 5), (MAX_TOKENWISE_QUERIES, 9), (MAX_TOKENWISE_QUERIES + 1, 9)])
    assert layout.tokenwise is not None
    assert layout.tokenwise.tokens.tolist() == list(range(1 + MAX_TOKENWISE_QUERIES))
    assert [(chunk.start, chunk.num_tokens) for chunk in layout.chunks] == [
        (1 + MAX_TOKENWISE_QUERIES, MAX_TOKENWISE_QUERIES + 1)
    ]


def test_a_shared_span_is_read_once_for_all_its_rows() -> None:
    shared = 5 * SPAN + 60
    layout = layout_of([(1, shared + 10 + i) for i in range(16)], shared=shared).tokenwise
    assert layout is not None
    by_queries = {group.num_queries: group for group in layout.groups}
    assert set(by_queries) == {1, 16}
    assert by_queries[16].num_items == 5
    assert by_queries[16].visible is None
    assert by_queries[1].num_items == 16
    assert by_queries[1].length == 2 * SPAN_STEP


def test_different_rows_share_nothing() -> None:
    layout = layout_of([(1, 2 * SPAN)] * 3).tokenwise
    assert layout is not None
    assert [(group.num_items, group.num_queries) for group in layout.groups] == [(6, 1)]


def test_few_short_spans_are_padded_into_the_call_of_longer_ones() -> None:
    few = layout_of([(1, SPAN + 10)]).tokenwise
    many = layout_of([(1, SPAN + 10)] * 8).tokenwise
    assert few is not None
    assert many is not None
    assert [group.length for group in few.groups] == [SPAN]
    assert [group.length for group in many.groups] == [SPAN_STEP, SPAN]
