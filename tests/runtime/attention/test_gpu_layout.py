"""The cuts of a step for the GPU kernels: every query meets every span that it sees, once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.attention import AttentionMetadata
from ramet.runtime.attention import gpu_layout as module
from ramet.runtime.attention.gpu_layout import MAX_ITEM_QUERIES, GpuLayout, gpu_layout, has_shared_items

SPAN = 32


def layout_of(
    metadata: AttentionMetadata, page_size: int, window: int | None = None, tile: int = 4
) -> GpuLayout:
    return gpu_layout(metadata, page_size=page_size, span=SPAN, tile_queries=tile, sliding_window=window)


def table(num_rows: int, num_pages: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return np.arange(num_rows * num_pages, dtype=np.int32).reshape(num_rows, num_pages)


def test_rows_alone_have_an_item_a_span() -> None:
    layout = layout_of(AttentionMetadata([1, 1], [40, 5], table(2, 10)), 4)
    assert layout.items.tolist() == [[0, 0, 0, 1], [1, 0, 1, 1], [0, 1, 2, 1]]
    assert layout.pairs.tolist() == [[0, 39, 0], [1, 4, 2], [0, 39, 1]]
    assert layout.folds.tolist() == [[0, 0, 2], [1, 2, 1]]
    assert layout.num_partials == 3
    assert not layout.tiles.size
    assert not has_shared_items(layout)


def test_whole_spans_of_equal_pages_are_one_item() -> None:
    pages = table(3, 10)
    pages[1:, :8] = pages[0, :8]
    layout = layout_of(AttentionMetadata([1, 2, 1], [40, 36, 34], pages), 4)
    assert layout.items[0].tolist() == [0, 0, 0, 4]
    assert len(layout.items) == 1 + 3
    assert has_shared_items(layout)
    # The same pages are not shared where a row has not all of the span.
    layout = layout_of(AttentionMetadata([1, 1], [31, 31], pages), 4)
    assert [item[3] for item in layout.items.tolist()] == [1, 1]


def test_items_are_no_longer_than_a_tile() -> None:
    pages = np.zeros((9, 1), np.int32)
    layout = layout_of(AttentionMetadata([1] * 9, [32] * 9, pages), 32)
    assert [item[3] for item in layout.items.tolist()] == [4, 4, 1]


def test_long_rows_are_cut_into_tiles() -> None:
    layout = layout_of(AttentionMetadata([1, 9], [3, 50], table(2, 13)), 4)
    assert layout.tiles.tolist() == [[1, 1, 4, 41], [1, 5, 4, 45], [1, 9, 1, 49]]
    assert layout.folds.tolist() == [[0, 0, 1]]
    assert not len(layout_of(AttentionMetadata([9], [50], table(1, 13)), 4).items)


def test_spans_before_a_window_are_left_out() -> None:
    layout = layout_of(AttentionMetadata([1], [100], table(1, 25)), 4, window=20)
    assert [item[1] for item in layout.items.tolist()] == [2, 3]
    assert layout.folds.tolist() == [[0, 0, 2]]


@given(st.data())
def test_every_query_meets_its_spans_once_through_its_own_slots(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([1, 4, 24, 64]))
    window = data.draw(st.sampled_from([None, 5, 40]))
    kv_lens = data.draw(st.lists(st.integers(1, 130), min_size=1, max_size=6))
    query_lens = [data.draw(st.integers(1, min(kv_len, 8))) for kv_len in kv_lens]
    pages = table(len(kv_lens), -(-max(kv_lens) // page_size))
    for row in range(1, len(kv_lens)):
        shared = data.draw(st.integers(0, pages.shape[1]))
        pages[row, :shared] = pages[0, :shared]
    layout = layout_of(AttentionMetadata(query_lens, kv_lens, pages), page_size, window)

    starts = np.cumsum(query_lens) - query_lens
    met: dict[int, tuple[int, int]] = {}
    for source, span, first, count in layout.items.tolist():
        assert 1 <= count <= 4
        for token, position, partial in layout.pairs[first : first + count].tolist():
            row = int(np.searchsorted(starts, token, side="right")) - 1
            assert position == kv_lens[row] - query_lens[row] + token - starts[row]
            assert partial not in met
            met[partial] = token, span
            seen = np.arange(span * SPAN, min((span + 1) * SPAN, position + 1))
            assert np.array_equal(pages[source, seen // page_size], pages[row, seen // page_size])
    assert len(met) == len(layout.pairs) == layout.num_partials
    in_items = set()
    for token, first, count in layout.folds.tolist():
        in_items.add(token)
        row = int(np.searchsorted(starts, token, side="right")) - 1
        position = kv_lens[row] - query_lens[row] + token - int(starts[row])
        lowest = 0 if window is None else max(0, position - window + 1)
        expected = range(lowest // SPAN, position // SPAN + 1)
        assert [met[first + i] for i in range(count)] == [(token, span) for span in expected]
    in_tiles = [t for _, first, count, _ in layout.tiles.tolist() for t in range(first, first + count)]
    assert sorted([*in_items, *in_tiles]) == list(range(sum(query_lens)))
    assert all(query_lens[row] > MAX_ITEM_QUERIES for row, *_ in layout.tiles.tolist())


def test_rows_whose_sums_collide_share_nothing_that_is_not_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = table(6, 10)
    for row, like in ((2, 0), (3, 1), (5, 0)):
        pages[row, :8] = pages[like, :8]
    metadata = AttentionMetadata([1] * 6, [40] * 6, pages)
    found = layout_of(metadata, 4)
    assert [item for item in found.items.tolist() if item[1] == 0] == [[0, 0, 0, 3], [1, 0, 3, 2], [4, 0, 5, 1]]
    monkeypatch.setattr(module, "_factors", lambda count: np.zeros(count, np.uint64))
    collided = layout_of(metadata, 4)
    assert len(collided.pairs) == len(found.pairs) == 12
    for owner, span, first, count in collided.items.tolist():
        for token in collided.pairs[first : first + count, 0].tolist():
            assert owner == token or (span == 0 and np.array_equal(pages[owner, :8], pages[token, :8]))
