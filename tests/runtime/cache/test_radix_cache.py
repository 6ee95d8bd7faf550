"""RadixCache against a dict of all prefixes, and its behaviour in the cases that matter one by one."""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ramet.runtime.cache import KvState, PageAccountingError, PageAllocator, RadixCache, RadixNode
from ramet.runtime.protocol import ProgramTag

NUM_PAGES = 24
Prefix = tuple[str, tuple[int, ...]]
"""Salt, and the token ids from the beginning to the end of a page: what that page's KV depends on."""


def _insert(cache: RadixCache, token_ids: list[int], salt: str = "") -> RadixNode:
    """Insert as a request would: the pages that the tree had already are given back."""
    num_pages = len(token_ids) // cache.allocator.page_size
    pages = cache.allocator.allocate(num_pages)
    assert pages is not None
    result = cache.insert(token_ids, pages, salt=salt)
    cache.allocator.free(pages[index] for index in result.duplicates)
    return result.node


class RadixMachine(RuleBasedStateMachine):
    """The oracle: every prefix that must be cached, its page and the time of its last use."""

    page_size = 1

    def __init__(self) -> None:
        super().__init__()
        self.cache = RadixCache(PageAllocator(NUM_PAGES, self.page_size))
        self.pages: dict[Prefix, int] = {}
        self.used: dict[Prefix, int] = {}
        self.locks: list[tuple[RadixNode, str, list[int]]] = []
        self.time = 0

    def prefixes(self, salt: str, token_ids: list[int]) -> Iterator[Prefix]:
        for end in range(self.page_size, len(token_ids) + 1, self.page_size):
            yield salt, tuple(token_ids[:end])

    def expected(self, salt: str, token_ids: list[int]) -> list[Prefix]:
        found = []
        for prefix in self.prefixes(salt, token_ids):
            if prefix not in self.pages:
                break
            found.append(prefix)
        return found

    def use(self, prefixes: list[Prefix]) -> None:
        self.time += 1
        for prefix in prefixes:
            self.used[prefix] = self.time

    def expand(self, blocks: list[int], tail: int) -> list[int]:
        """Pages of which some differ in their last token only, then a part of a page."""
        token_ids = [token for block in blocks for token in [block // 2] * (self.page_size - 1) + [block]]
        return token_ids + [7] * min(tail, self.page_size - 1)

    tokens = st.tuples(st.lists(st.integers(0, 3), max_size=10), st.integers(0, 15))
    salts = st.sampled_from(["", "tenant"])

    @rule(sequence=tokens, salt=salts)
    def insert(self, sequence: tuple[list[int], int], salt: str) -> None:
        token_ids = self.expand(*sequence)
        pages = self.cache.allocator.allocate(len(token_ids) // self.page_size)
        if pages is None:
            return
        before = self.expected(salt, token_ids)
        result = self.cache.insert(token_ids, pages, salt=salt)
        assert result.node.end == len(pages) * self.page_size
        assert result.num_new_pages == len(pages) - len(before)
        assert result.duplicates == {index: self.pages[prefix] for index, prefix in enumerate(before)}
        self.use(before)
        prefixes = list(self.prefixes(salt, token_ids))
        self.use(prefixes[len(before) :])
        for index, prefix in enumerate(prefixes):
            self.pages.setdefault(prefix, pages[index])
        self.cache.allocator.free(pages[index] for index in result.duplicates)

    @rule(sequence=tokens, salt=salts, limit=st.none() | st.integers(0, 40), lock=st.booleans())
    def match(self, sequence: tuple[list[int], int], salt: str, limit: int | None, lock: bool) -> None:
        token_ids = self.expand(*sequence)
        found = self.expected(salt, token_ids if limit is None else token_ids[:limit])
        probe = self.cache.probe(token_ids, salt, limit)
        assert probe.num_tokens == len(found) * self.page_size
        match = self.cache.match(token_ids, salt, limit)
        assert match.pages == [self.pages[prefix] for prefix in found]
        assert match.num_tokens == match.node.end == len(found) * self.page_size
        self.use(found)
        if lock:
            self.cache.lock(match.node)
            self.locks.append((match.node, salt, token_ids[: match.num_tokens]))

    @precondition(lambda self: self.locks)
    @rule(index=st.integers(0, 100), sequence=tokens)
    def extend(self, index: int, sequence: tuple[list[int], int]) -> None:
        """A request whose prompt goes on: match and insert below its locked node, and move the lock."""
        node, salt, held = self.locks.pop(index % len(self.locks))
        token_ids = held + self.expand(*sequence)
        found = self.expected(salt, token_ids)
        match = self.cache.match(token_ids, salt, start=node)
        assert match.pages == [self.pages[prefix] for prefix in found[len(held) // self.page_size :]]
        if match.num_tokens > len(held):
            self.use(found)
        self.cache.lock(match.node, held=node)
        node = match.node
        num_pages = len(token_ids) // self.page_size
        new = self.cache.allocator.allocate(num_pages - len(found))
        if new is not None:
            unused = [-1] * len(found)
            result = self.cache.insert(token_ids, unused + new, start=node)
            assert result.duplicates == {}
            prefixes = list(self.prefixes(salt, token_ids))
            self.use(prefixes[len(found) :])
            self.pages.update(zip(prefixes[len(found) :], new, strict=True))
            self.cache.lock(result.node, held=node)
            node = result.node
        self.locks.append((node, salt, token_ids[: node.end]))

    @precondition(lambda self: self.locks)
    @rule(index=st.integers(0, 100))
    def unlock(self, index: int) -> None:
        node, salt, token_ids = self.locks.pop(index % len(self.locks))
        assert node.end == len(token_ids)
        self.cache.unlock(node)
        self.use(list(self.prefixes(salt, token_ids)))

    @rule(num_pages=st.integers(0, 6))
    def evict(self, num_pages: int) -> None:
        num_free = self.cache.allocator.num_free
        num_freed = self.cache.evict(num_pages)
        assert self.cache.allocator.num_free == num_free + num_freed
        for _ in range(num_freed):
            self.forget_least_recent()
        if num_freed < num_pages:
            assert self.cache.num_evictable_pages == 0

    @rule()
    def reset(self) -> None:
        for _ in range(self.cache.reset()):
            self.forget_least_recent()
        assert self.cache.num_evictable_pages == 0

    def forget_least_recent(self) -> None:
        locked = {prefix for _, salt, ids in self.locks for prefix in self.prefixes(salt, ids)}
        inner = {(salt, ids[: -self.page_size]) for salt, ids in self.pages}
        victim = min((p for p in self.pages if p not in locked | inner), key=lambda p: self.used[p])
        del self.pages[victim]

    @invariant()
    def whole(self) -> None:
        self.cache.check_integrity(handles=[node for node, _, _ in self.locks])
        shown: dict[Prefix, int] = {}
        paths: dict[int, tuple[int, ...]] = {}
        for view in self.cache.walk():
            path = paths.get(view.depth - 1, ()) if view.depth else ()
            assert view.start == len(path)
            for index, page in enumerate(view.pages):
                end = (index + 1) * self.page_size
                shown[view.salt, path + tuple(view.token_ids[:end])] = page
            paths[view.depth] = path + tuple(view.token_ids)
        assert shown == self.pages
        assert self.cache.stats.num_cached_pages == len(self.pages)


class RadixMachineOfPages4(RadixMachine):
    page_size = 4


class RadixMachineOfPages16(RadixMachine):
    page_size = 16


for _machine in (RadixMachine, RadixMachineOfPages4, RadixMachineOfPages16):
    _machine.TestCase.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
TestPages1 = RadixMachine.TestCase
TestPages4 = RadixMachineOfPages4.TestCase
TestPages16 = RadixMachineOfPages16.TestCase


@pytest.mark.parametrize("machine_class", [RadixMachine, RadixMachineOfPages4, RadixMachineOfPages16])
def test_long_random_use_agrees_with_the_oracle(machine_class: type[RadixMachine]) -> None:
    """A full tree under pressure for long, which short generated cases reach seldom."""
    rng = Random(0)
    machine = machine_class()
    for _ in range(4_000):
        sequence = [rng.randrange(4) for _ in range(rng.randrange(9))], rng.randrange(16)
        salt = rng.choice(["", "tenant"])
        match rng.randrange(8):
            case 0 | 1 | 2:
                machine.insert(sequence, salt)
            case 3:
                limit = rng.choice([None, rng.randrange(40)])
                machine.match(sequence, salt, limit, lock=len(machine.locks) < 3 and rng.random() < 0.5)
            case 4 if machine.locks:
                machine.extend(rng.randrange(8), (sequence[0][:3], sequence[1]))
            case 5 if machine.locks:
                machine.unlock(rng.randrange(8))
            case 6 | 7:
                machine.evict(rng.randrange(5))
        machine.whole()


def _cache(num_pages: int = 64, page_size: int = 1) -> RadixCache:
    return RadixCache(PageAllocator(num_pages, page_size))


def test_match_cuts_a_node_in_the_middle_and_locked_handles_stay_right() -> None:
    cache = _cache()
    long = cache.match([1, 2, 3, 4]).node
    node = _insert(cache, [1, 2, 3, 4])
    cache.lock(node)
    match = cache.match([1, 2, 9])
    assert match.num_tokens == 2
    assert match.node is node.parent
    assert (node.end, match.node.end) == (4, 2)
    assert long is not node
    cache.check_integrity(handles=[node])
    cache.unlock(node)
    cache.check_integrity(handles=[])


def test_probe_changes_nothing() -> None:
    cache = _cache()
    _insert(cache, [1, 2, 3, 4])
    before = list(cache.walk()), cache.stats
    probe = cache.probe([1, 2, 9])
    assert (probe.node, probe.num_tokens) == (None, 2)
    assert cache.probe([5]).num_tokens == 0
    assert cache.probe([1], salt="unknown").num_tokens == 0
    assert (list(cache.walk()), cache.stats) == before


def test_a_hint_stays_right_when_its_node_is_cut_trimmed_or_gone() -> None:
    cache = _cache()
    token_ids = [1, 2, 3, 4, 5, 6]
    _insert(cache, token_ids)
    hint = cache.probe(token_ids).node
    assert hint is not None
    cache.match([1, 2, 9])
    assert cache.probe(token_ids, hint=hint).num_tokens == 6
    cache.evict(2)
    assert cache.probe(token_ids, hint=hint).num_tokens == 4
    assert cache.probe(token_ids, limit=3, hint=hint).num_tokens == 3
    cache.evict(6)
    assert cache.probe(token_ids, hint=hint).num_tokens == 0
    _insert(cache, [1, 2, 3])
    assert cache.probe(token_ids, hint=hint).num_tokens == 3


def test_unlocked_tokens_of_a_probe_are_what_a_lock_takes_from_eviction() -> None:
    cache = _cache()
    _insert(cache, [1, 2, 3, 4])
    held = cache.match([1, 2]).node
    cache.lock(held)
    _insert(cache, [1, 2, 3, 4, 5, 6])
    probe = cache.probe([1, 2, 3, 4, 5, 9])
    assert probe.num_tokens == 5
    evictable = cache.num_evictable_pages
    expected = cache.num_unlocked_tokens(probe)
    cache.lock(cache.match([1, 2, 3, 4, 5, 9]).node)
    assert evictable - cache.num_evictable_pages == expected == 3


def test_salts_are_kept_apart() -> None:
    cache = _cache()
    _insert(cache, [1, 2, 3], salt="a")
    assert cache.match([1, 2, 3], salt="b").num_tokens == 0
    assert cache.match([1, 2, 3]).num_tokens == 0
    assert cache.match([1, 2, 3], salt="a").num_tokens == 3


def test_salts_that_own_nothing_leave_nothing_behind() -> None:
    cache = _cache()
    for tenant in range(1000):
        cache.match([1, 2], salt=str(tenant))
        node = _insert(cache, [1, 2], salt=f"used {tenant}")
        cache.lock(node)
        cache.unlock(node)
        cache.evict(2)
    assert sum(1 for _ in cache.walk()) <= 2


def test_a_page_is_matched_whole_or_not_at_all() -> None:
    cache = _cache(page_size=4)
    _insert(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    assert cache.match([1, 2, 3, 4, 5, 6, 7, 9]).num_tokens == 4
    assert cache.match([1, 2, 3]).num_tokens == 0
    assert cache.match([1, 2, 3, 4, 5, 6, 7, 8], limit=7).num_tokens == 4


def test_insert_reports_whose_pages_are_whose() -> None:
    cache = _cache(page_size=2)
    first = cache.allocator.allocate(2)
    second = cache.allocator.allocate(3)
    assert first is not None
    assert second is not None
    assert cache.insert([1, 2, 3, 4], first).duplicates == {}
    result = cache.insert([1, 2, 3, 4, 5, 6], second)
    assert result.num_new_pages == 1
    assert result.duplicates == {0: first[0], 1: first[1]}
    again = cache.insert([1, 2, 3, 4, 5, 6], [*first, second[2]])
    assert (again.num_new_pages, again.duplicates) == (0, {})
    cache.check_integrity(held_pages=second[:2])


@pytest.mark.parametrize("num_tokens", [3, 6, 4])
def test_insert_refuses_what_the_pages_do_not_hold(num_tokens: int) -> None:
    cache = _cache(page_size=2)
    with pytest.raises(ValueError, match="cannot insert"):
        cache.insert([1, 2, 3, 4], [0], num_tokens=num_tokens)


def test_a_failed_step_leaves_no_page_that_it_was_to_write() -> None:
    cache = _cache()
    old = _insert(cache, [1, 2])
    cache.lock(old)
    pages = cache.allocator.allocate(4)
    assert pages is not None
    first = cache.insert([1, 2, 3, 4, 5, 6], [0, 0, *pages], start=old, state=KvState.PENDING).node
    cache.lock(first, held=old)
    # A sibling in the same step shares half of it, which cuts the node, and adds more below.
    cache.lock(old)
    shared = cache.match([1, 2, 3, 4, 9, 9], start=old).node
    cache.lock(shared, held=old)
    more = cache.allocator.allocate(2)
    assert more is not None
    second = cache.insert([1, 2, 3, 4, 9, 9], [0, 0, 0, 0, *more], start=shared, state=KvState.PENDING).node
    cache.lock(second, held=shared)
    with pytest.raises(PageAccountingError, match="still locked"):
        cache.discard_pending()
    cache.unlock(first)
    cache.unlock(second)
    assert cache.discard_pending() == 6
    assert cache.match([1, 2, 3, 4]).num_tokens == 2
    cache.check_integrity(handles=[])


def test_written_pages_survive_a_later_failure() -> None:
    cache = _cache()
    pages = cache.allocator.allocate(2)
    assert pages is not None
    cache.insert([1, 2], pages, state=KvState.PENDING)
    cache.mark_written()
    assert cache.discard_pending() == 0
    assert cache.match([1, 2]).num_tokens == 2


def test_what_may_hold_broken_numbers_goes_up_to_what_is_known_good() -> None:
    cache = _cache()
    _insert(cache, [1, 2])
    pages = cache.allocator.allocate(4)
    assert pages is not None
    cache.insert([1, 2, 3, 4], [0, 0, *pages[:2]], state=KvState.WRITTEN)
    node = cache.insert([1, 2, 3, 4, 5, 6], [0, 0, 0, 0, *pages[2:]], state=KvState.WRITTEN).node
    assert cache.discard_unverified(node) == 4
    assert cache.match([1, 2, 3]).num_tokens == 2


def test_what_was_computed_from_broken_numbers_goes_too_unless_it_is_in_use() -> None:
    cache = _cache()
    for token_ids in ([1, 2, 3], [1, 2, 4], [1, 2, 5]):
        pages = cache.allocator.allocate(3)
        assert pages is not None
        result = cache.insert(token_ids, pages, state=KvState.WRITTEN)
        cache.allocator.free(pages[index] for index in result.duplicates)
    used = cache.match([1, 2, 5]).node
    cache.lock(used)
    assert cache.discard_unverified(cache.match([1, 2, 3]).node) == 2
    assert [cache.match([1, 2, token]).num_tokens for token in (3, 4, 5)] == [2, 2, 3]
    cache.unlock(used)
    assert cache.discard_unverified(used) == 3
    cache.check_integrity(handles=[])


def test_verified_nodes_are_kept() -> None:
    cache = _cache()
    pages = cache.allocator.allocate(2)
    assert pages is not None
    node = cache.insert([1, 2], pages, state=KvState.WRITTEN).node
    cache.mark_verified(node)
    assert cache.discard_unverified(node) == 0


def test_unlocking_what_is_not_locked_is_a_defect() -> None:
    cache = _cache()
    node = _insert(cache, [1])
    with pytest.raises(PageAccountingError, match="more often"):
        cache.unlock(node)


def test_a_lock_moves_only_down_its_own_path() -> None:
    cache = _cache()
    left, right = _insert(cache, [1, 2]), _insert(cache, [3, 4])
    cache.lock(left)
    with pytest.raises(PageAccountingError, match="not on the path"):
        cache.lock(right, held=left)


def test_integrity_finds_a_lost_page() -> None:
    cache = _cache()
    cache.allocator.allocate(1)
    with pytest.raises(PageAccountingError, match="are not the pool's"):
        cache.check_integrity()


def test_integrity_finds_a_forgotten_lock() -> None:
    cache = _cache()
    cache.lock(_insert(cache, [1]))
    with pytest.raises(PageAccountingError, match="should be locked 0 times"):
        cache.check_integrity(handles=[])


def test_stats_count_lookups_tokens_and_evictions() -> None:
    cache = _cache()
    _insert(cache, [1, 2, 3])
    cache.match([1, 2, 9, 9])
    cache.match([8])
    cache.evict(1)
    stats = cache.stats
    assert (stats.num_lookups, stats.num_hits) == (2, 1)
    assert (stats.num_lookup_tokens, stats.num_hit_tokens) == (5, 2)
    assert (stats.num_inserted_pages, stats.num_evicted_pages, stats.num_cached_pages) == (3, 1, 2)


def test_walk_shows_the_tree_in_preorder() -> None:
    cache = _cache()
    pages = cache.allocator.allocate(3)
    assert pages is not None
    cache.insert([1, 2, 3], pages, salt="s", tag=ProgramTag(program_id="p"))
    cache.match([1, 9], salt="s")
    views = list(cache.walk())
    assert [(view.depth, view.start, list(view.token_ids)) for view in views] == [
        (0, 0, []),
        (1, 0, [1]),
        (2, 1, [2, 3]),
    ]
    assert {view.salt for view in views} == {"s"}
    assert [view.hit_count for view in views] == [1, 1, 0]
    assert views[2].tag.program_id == "p"


def test_a_path_of_30_000_nodes_needs_no_recursion() -> None:
    num_tokens = 30_000
    cache = _cache(num_tokens)
    token_ids = list(range(num_tokens))
    pages = cache.allocator.allocate(num_tokens)
    assert pages is not None
    node = None
    for end in range(1, num_tokens + 1):
        result = cache.insert(token_ids, pages, num_tokens=end, start=node)
        if node is None:
            cache.lock(result.node)
        else:
            cache.lock(result.node, held=node)
        node = result.node
    assert node is not None
    match = cache.match(token_ids)
    assert match.pages == pages
    cache.unlock(node)
    cache.check_integrity(handles=[])
    assert sum(1 for _ in cache.walk()) == num_tokens + 1
    assert cache.evict(num_tokens) == num_tokens


def test_match_reads_no_more_than_the_match() -> None:
    """Counted by token comparisons: a mismatch early in a long node, and many siblings, cost nothing more."""

    class Counted(int):
        num_compared = 0
        __hash__ = int.__hash__

        def __eq__(self, other: object) -> bool:
            Counted.num_compared += 1
            return int(self) == other

    cache = _cache(60_000)
    _insert(cache, list(range(50_000)))
    for token in range(60_000, 65_000):
        _insert(cache, [token])
    query: list[int] = [Counted(token) for token in range(20)]
    query += [Counted(-1)] * 50_000
    assert cache.match(query).num_tokens == 20
    assert Counted.num_compared < 200
