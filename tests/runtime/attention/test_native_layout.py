"""The cuts of the compiled attention: each query sees each of its keys once, and whole spans are shared."""

import numpy as np
import pytest

from ramet.kernels.native import SPAN, AttentionItems
from ramet.runtime.attention import AttentionMetadata
from ramet.runtime.attention.layout import PageSlots
from ramet.runtime.attention.native_layout import TILE, NativeLayout


def layout(
    query_lens: list[int], kv_lens: list[int], slots: list[list[int]], window: int | None = None
) -> AttentionItems:
    table = np.zeros((len(slots), max(map(len, slots))), np.int32)
    for row, own in enumerate(slots):
        table[row, : len(own)] = own
    metadata = AttentionMetadata(query_lens, kv_lens, table)
    return NativeLayout(metadata, PageSlots(metadata, 1), sliding_window=window).items()


def seen(items: AttentionItems) -> dict[int, list[int]]:
    """Each token's slots in the order of its partial results."""
    by_partial: dict[int, list[int]] = {}
    for first_slot, _, first_pair, num_pairs in items.items:
        for _, begin, end, partial in items.pairs[first_pair : first_pair + num_pairs]:
            assert partial not in by_partial
            by_partial[partial] = items.slots[first_slot + begin : first_slot + end].tolist()
    assert sorted(by_partial) == list(range(items.num_partials))
    return {
        token: [slot for partial in range(first, first + count) for slot in by_partial[partial]]
        for token, (first, count) in enumerate(items.folds)
    }


@pytest.mark.parametrize("window", [None, 1, 5, 100, 192, 300])
def test_each_query_sees_its_keys_once(window: int | None) -> None:
    slots = [list(range(1000 * row, 1000 * row + 700)) for row in range(3)]
    query_lens, kv_lens = [1, 3, 100], [650, 194, 500]
    found = seen(layout(query_lens, kv_lens, slots, window))
    token = 0
    for row, (query_len, kv_len) in enumerate(zip(query_lens, kv_lens, strict=True)):
        for position in range(kv_len - query_len, kv_len):
            first = 0 if window is None else max(0, position - window + 1)
            assert found[token] == slots[row][first : position + 1]
            token += 1


def test_rows_with_equal_slots_share_whole_spans() -> None:
    common = list(range(2 * SPAN))
    slots = [[*common, 5000 + row] for row in range(TILE + 3)]
    items = layout([1] * len(slots), [2 * SPAN + 1] * len(slots), slots)
    # Each of the two shared spans twice, for at most TILE rows each; every row's last span apart.
    assert len(items.items) == 4 + len(slots)
    assert items.max_pairs == TILE
    assert all(keys == [*common, 5000 + row] for row, keys in seen(items).items())


def test_a_row_alone_is_cut_into_tiles() -> None:
    items = layout([TILE + 1], [TILE + 1], [list(range(TILE + 1))])
    assert items.items[:, 3].tolist() == [TILE, 1]
    assert items.items[:, 1].tolist() == [TILE, TILE + 1]


def test_sums_keep_their_lanes_where_a_window_begins_inside_a_span() -> None:
    items = layout([1], [190], [list(range(190))], window=100)
    assert items.slots[0] == 80
    assert items.pairs.tolist() == [[0, 10, 110, 0]]
