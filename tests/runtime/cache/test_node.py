"""RadixNode and the order of its states."""

from ramet.runtime.cache import KvState, PageAllocator, RadixCache


def test_states_are_ordered_by_trust() -> None:
    assert KvState.PENDING < KvState.WRITTEN < KvState.VERIFIED


def test_a_node_shows_itself_in_one_short_line() -> None:
    cache = RadixCache(PageAllocator(200, 1))
    node = cache.insert(list(range(100)), list(range(100))).node
    assert repr(node) == "RadixNode(end=100, tokens=100, children=0, locks=0)"
