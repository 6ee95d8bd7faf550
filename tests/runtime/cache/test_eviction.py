"""Eviction: the order of the policies, and the queue that must keep it without scanning."""

import gc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.cache import (
    EvictionPolicy,
    KvState,
    LfuEviction,
    LruEviction,
    PageAllocator,
    ProgramLruEviction,
    RadixCache,
    RadixNode,
)
from ramet.runtime.cache.eviction import PROGRAM_USES
from ramet.runtime.protocol import ProgramTag


def _cache(num_pages: int, eviction: EvictionPolicy | None = None) -> RadixCache:
    return RadixCache(PageAllocator(num_pages, page_size=1), eviction)


def _insert(cache: RadixCache, token_ids: list[int], tag: ProgramTag | None = None) -> None:
    shortage = len(token_ids) - cache.allocator.num_free
    cache.evict(max(0, shortage))
    pages = cache.allocator.allocate(len(token_ids))
    assert pages is not None
    result = cache.insert(token_ids, pages, tag=tag or ProgramTag())
    cache.allocator.free(pages[index] for index in result.duplicates)


def _cached(cache: RadixCache, token_ids: list[int]) -> int:
    return cache.probe(token_ids).num_tokens


def test_lru_is_the_default_and_evicts_what_was_used_longest_ago() -> None:
    cache = _cache(6)
    for token in (10, 20, 30):
        _insert(cache, [token, token + 1])
    cache.match([10, 11])
    assert cache.evict(2) == 2
    assert [_cached(cache, [token, token + 1]) for token in (10, 20, 30)] == [2, 0, 2]


def test_a_leaf_loses_only_as_many_pages_as_needed_from_its_end() -> None:
    cache = _cache(8)
    _insert(cache, list(range(8)))
    assert cache.evict(3) == 3
    assert _cached(cache, list(range(8))) == 5
    cache.check_integrity()


def test_a_parent_goes_after_its_last_child() -> None:
    cache = _cache(8)
    _insert(cache, [1, 2, 3, 4])
    _insert(cache, [1, 2, 5, 6])
    assert cache.evict(4) == 4
    assert _cached(cache, [1, 2]) == 2
    assert cache.evict(100) == 2
    assert cache.stats.num_nodes == 0
    cache.check_integrity()


def test_what_is_locked_stays() -> None:
    cache = _cache(6)
    _insert(cache, [1, 2, 3])
    _insert(cache, [1, 2, 4])
    node = cache.match([1, 2, 3]).node
    cache.lock(node)
    assert cache.num_evictable_pages == 1
    assert cache.evict(6) == 1
    assert _cached(cache, [1, 2, 3]) == 3
    cache.unlock(node)
    assert cache.evict(6) == 3


def test_lfu_keeps_what_is_used_often() -> None:
    cache = _cache(4, LfuEviction())
    _insert(cache, [1, 2])
    for _ in range(3):
        cache.match([1, 2])
    for token in range(10, 20, 2):
        _insert(cache, [token, token + 1])
    assert _cached(cache, [1, 2]) == 2


def test_lfu_ages_so_that_old_fame_does_not_last() -> None:
    cache = _cache(4, LfuEviction())
    _insert(cache, [1, 2])
    for _ in range(10):
        cache.match([1, 2])
    for token in range(100, 200, 2):
        _insert(cache, [token, token + 1])
        cache.match([token, token + 1])
    assert _cached(cache, [1, 2]) == 0


def test_lru_gives_way_to_a_scan_where_lfu_does_not() -> None:
    kept = {}
    for policy in (LruEviction(), LfuEviction()):
        cache = _cache(4, policy)
        _insert(cache, [1, 2])
        cache.match([1, 2])
        for token in (10, 20, 30):
            _insert(cache, [token, token + 1])
        kept[type(policy)] = _cached(cache, [1, 2])
    assert kept == {LruEviction: 0, LfuEviction: 2}


def test_a_policy_may_read_the_program_tag() -> None:
    class KeepAgents:
        def priority(self, node: RadixNode) -> float:
            return float(node.tag.program_id == "agent")

        def evicted(self, priority: float) -> None:
            pass

    cache = _cache(4, KeepAgents())
    _insert(cache, [1, 2], ProgramTag(program_id="agent"))
    _insert(cache, [3, 4], ProgramTag(program_id="batch"))
    assert cache.evict(2) == 2
    assert _cached(cache, [1, 2]) == 2


def test_what_a_program_will_use_again_outlives_what_its_last_call_used() -> None:
    going_on, last = ProgramTag(remaining_calls=2), ProgramTag(remaining_calls=0)
    found = {}
    for policy in (LruEviction(), ProgramLruEviction()):
        cache = _cache(8, policy)
        _insert(cache, [1, 2], going_on)
        _insert(cache, [3, 4], ProgramTag())
        _insert(cache, [5, 6], last)
        _insert(cache, [7, 8], last)
        cache.match([7, 8])
        order = []
        for _ in range(4):
            cache.evict(2)
            order.append([token for token in (1, 3, 5, 7) if not _cached(cache, [token, token + 1])])
        found[type(policy)] = [(set(after) - set(before)).pop() for before, after in pairwise([[], *order])]
        cache.check_integrity()
    assert found[LruEviction] == [1, 3, 5, 7]
    # Of the last calls the one goes first that nobody else has used.
    assert found[ProgramLruEviction] == [5, 3, 7, 1]


def test_a_program_that_never_comes_back_is_evicted_in_the_end() -> None:
    cache = _cache(8, ProgramLruEviction())
    _insert(cache, [1, 2], ProgramTag(remaining_calls=9))
    for token in range(10, 10 + 4 * PROGRAM_USES, 2):
        _insert(cache, [token, token + 1])
    assert _cached(cache, [1, 2]) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60))
def test_without_what_programs_say_it_is_lru(uses: list[tuple[int, bool]]) -> None:
    caches = [_cache(6, LruEviction()), _cache(6, ProgramLruEviction())]
    for token, inserts in uses:
        for cache in caches:
            if inserts:
                _insert(cache, [token, token + 10])
            else:
                cache.match([token, token + 10])
        assert len({tuple(_cached(cache, [one, one + 10]) for one in range(6)) for cache in caches}) == 1


@pytest.mark.parametrize("policy", [LruEviction(), LfuEviction(), ProgramLruEviction()])
def test_eviction_looks_at_few_nodes_however_large_the_tree(policy: EvictionPolicy) -> None:
    """The policy is asked at uses only, so the number of questions bounds what an eviction looks at."""

    class Counting:
        num_questions = 0

        def priority(self, node: RadixNode) -> float:
            self.num_questions += 1
            return policy.priority(node)

        def evicted(self, priority: float) -> None:
            policy.evicted(priority)

    counting = Counting()
    cache = _cache(5_000, counting)
    for token in range(5_000):
        _insert(cache, [token])
    before = counting.num_questions
    for _ in range(100):
        assert cache.evict(1) == 1
    assert counting.num_questions == before


def _nodes_of_a_request() -> list[RadixNode]:
    """Those that there are in this process, whichever test made them."""
    return [item for item in gc.get_objects() if type(item) is RadixNode and item.token_ids[1:] == [0]]


def test_failed_requests_leave_nothing_behind_in_a_tree_that_never_evicts() -> None:
    cache = _cache(8)
    _insert(cache, [0])
    others = _nodes_of_a_request()
    for token in range(1, 500):
        pages = cache.allocator.allocate(2)
        assert pages is not None
        cache.insert([token, 0], pages, state=KvState.PENDING)
        assert cache.discard_pending() == 2
    cache.check_integrity()
    kept = [node for node in _nodes_of_a_request() if all(node is not other for other in others)]
    assert len(kept) <= 3
    assert cache.evict(8) == 1
