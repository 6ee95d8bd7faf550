"""Pages between the free list, the radix tree and the requests: each operation, then any order of them."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from ramet.runtime.cache import PageAllocator, RadixCache
from ramet.runtime.scheduler import Request
from ramet.runtime.scheduler.kv_pages import KVPages
from ramet.runtime.scheduler.session_pins import SessionPins
from tests.runtime.scheduler.fakes import make_input

PAGE_SIZE = 2


class Pool:
    """KVPages over a real tree, and the requests that it serves."""

    def __init__(self, num_pages: int = 8, *, share: bool = True) -> None:
        self.cache = RadixCache(PageAllocator(num_pages, PAGE_SIZE))
        self.pages = KVPages(self.cache, SessionPins(self.cache, lambda: 0.0), share=share)
        self.requests: list[Request] = []

    def waiting(self, token_ids: Sequence[int], salt: str = "") -> Request:
        request = Request.from_input(make_input(f"r{len(self.requests)}", token_ids, salt=salt), arrival=0.0)
        self.requests.append(request)
        return request

    def running(self, token_ids: Sequence[int]) -> Request:
        """Attached, with pages for its whole prompt."""
        request = self.waiting(token_ids)
        self.pages.attach(request)
        assert self.pages.grow(request, len(token_ids))
        return request

    def compute(self, request: Request, num_tokens: int) -> None:
        """A step of one row, as the scheduler makes it."""
        assert self.pages.grow(request, num_tokens)
        self.pages.publish(request, num_tokens)
        self.end_step([(request, num_tokens)])

    def end_step(self, rows: list[tuple[Request, int]]) -> None:
        self.cache.mark_written()
        for request, num_tokens in rows:
            request.num_computed_tokens = num_tokens
            self.pages.settle(request)

    def fill(self, token_ids: Sequence[int]) -> list[int]:
        """A request comes, computes its prompt and goes; the tree's pages of it."""
        request = self.running(token_ids)
        self.compute(request, len(token_ids))
        pages = request.pages[: len(token_ids) // PAGE_SIZE]
        self.pages.release(request, keep=True)
        return pages

    def check(self) -> None:
        held = [page for request in self.requests for page in self.pages.own_pages(request)]
        handles = [request.node for request in self.requests if request.node is not None]
        self.cache.check_integrity(held, handles)


class TestAdmission:
    def test_a_cold_tree_offers_nothing_and_costs_every_page(self) -> None:
        pool = Pool()
        request = pool.waiting([1, 2, 3, 4, 5])
        assert pool.pages.prefix_length(request) == 0
        assert [pool.pages.admission_cost(request, n) for n in (0, 1, 2, 3, 5)] == [0, 1, 1, 2, 3]
        pool.pages.attach(request)
        assert (request.pages, request.num_tree_pages, request.num_computed_tokens) == ([], 0, 0)
        pool.check()

    def test_whole_pages_are_found_but_never_the_last_token(self) -> None:
        pool = Pool()
        tree_pages = pool.fill([1, 2, 3, 4])
        for token_ids, expected in (
            ([1, 2, 3, 4, 5], 4),
            ([1, 2, 3, 4], 2),
            ([1, 2, 3], 2),
            ([1, 2], 0),
            ([1, 9], 0),
        ):
            request = pool.waiting(token_ids)
            assert pool.pages.prefix_length(request) == expected
            pool.pages.attach(request)
            assert request.pages == tree_pages[: expected // PAGE_SIZE]
            assert (request.num_computed_tokens, request.num_tree_pages) == (expected, expected // PAGE_SIZE)
            assert request.node is not None
            assert (request.node.end, request.hint) == (expected, None)
            pool.check()

    def test_looking_is_no_use_of_the_tree(self) -> None:
        pool = Pool()
        pool.fill([1, 2, 3, 4])
        before, stats = [node.last_access for node in pool.cache.walk()], pool.cache.stats
        request = pool.waiting([1, 2, 3, 4, 5])
        for _ in range(2):  # the second time with the hint of the first
            assert pool.pages.prefix_length(request) == 4
            assert pool.pages.admission_cost(request, 5) == 3
        assert request.hint is not None
        assert [node.last_access for node in pool.cache.walk()] == before
        assert pool.cache.stats == stats

    def test_salts_are_kept_apart(self) -> None:
        pool = Pool()
        pool.fill([1, 2, 3, 4])
        assert pool.pages.prefix_length(pool.waiting([1, 2, 3, 4, 5], salt="other")) == 0

    def test_what_others_hold_already_costs_nothing(self) -> None:
        pool = Pool()
        pool.fill([1, 2, 3, 4])
        request = pool.waiting([1, 2, 3, 4, 5])
        assert pool.pages.admission_cost(request, 6) == 3  # evictable pages count as available
        pool.pages.attach(pool.waiting([1, 2, 9]))
        assert pool.pages.admission_cost(request, 6) == 2

    def test_without_sharing_the_tree_stays_empty(self) -> None:
        pool = Pool(share=False)
        pool.fill([1, 2, 3, 4])
        assert pool.cache.stats.num_cached_pages == 0
        assert pool.pages.num_available == 8
        request = pool.running([1, 2, 3, 4, 5])
        assert pool.pages.prefix_length(request) == 0
        assert pool.pages.admission_cost(request, 5) == 3
        pool.pages.extend(request)
        pool.compute(request, 5)
        assert (request.node, request.num_tree_pages, request.duplicates) == (None, 0, {})
        assert pool.pages.own_pages(request) == request.pages
        pool.check()


class TestGrowth:
    def test_pages_cover_the_tokens_asked_for(self) -> None:
        pool = Pool()
        request = pool.waiting([1] * 9)
        for num_tokens, num_pages in ((0, 0), (1, 1), (2, 1), (3, 2), (3, 2), (1, 2), (16, 8)):
            assert pool.pages.grow(request, num_tokens)
            assert len(request.pages) == num_pages
        assert not pool.pages.grow(request, 17)
        assert len(request.pages) == 8
        pool.check()

    def test_the_tree_gives_way_but_not_what_is_locked(self) -> None:
        pool = Pool(num_pages=4)
        pool.fill([1, 2, 3, 4])
        pool.pages.attach(pool.waiting([1, 2, 9]))
        request = pool.waiting([5] * 8)
        assert pool.pages.num_available == 3
        assert not pool.pages.grow(request, 7)
        assert (request.pages, pool.cache.stats.num_evicted_pages) == ([], 0)
        assert pool.pages.grow(request, 6)
        assert (pool.pages.num_available, pool.cache.stats.num_evicted_pages) == (0, 1)
        pool.check()

    def test_capacity_is_what_grow_would_give(self) -> None:
        pool = Pool(num_pages=5)
        pool.fill([1, 2, 3, 4])
        request = pool.running([7, 8, 9])
        assert pool.pages.capacity(request) == 10
        assert pool.pages.capacity(request, reserve=2) == 6
        assert pool.pages.capacity(request, reserve=99) == 4  # its own stay its own
        assert pool.pages.grow(request, 10)
        assert pool.pages.capacity(request) == 10


class TestAStep:
    def test_whole_pages_enter_the_tree_before_they_are_written(self) -> None:
        pool = Pool()
        request = pool.running([1, 2, 3, 4, 5])
        pool.pages.publish(request, 5)
        assert request.num_tree_pages == 2
        assert pool.pages.own_pages(request) == request.pages[2:]
        later = pool.waiting([1, 2, 3, 4, 9])
        pool.pages.attach(later)
        assert later.pages == request.pages[:2]
        pool.check()

    def test_publishing_less_than_is_in_the_tree_changes_nothing(self) -> None:
        pool = Pool()
        request = pool.running([1, 2, 3, 4, 5])
        pool.pages.publish(request, 4)
        node = request.node
        for num_tokens in (5, 4, 3):
            pool.pages.publish(request, num_tokens)
        assert (request.node, request.num_tree_pages) == (node, 2)

    def test_duplicates_are_the_requests_until_the_step_is_over(self) -> None:
        """Two requests compute the same prompt in one step, as neither found it."""
        pool = Pool()
        first, second = pool.running([1, 2, 3, 4, 5]), pool.running([1, 2, 3, 4, 6])
        own = second.pages[:]
        second.num_sent_pages = len(own)
        pool.pages.publish(first, 5)
        pool.pages.publish(second, 5)
        assert second.duplicates == {0: first.pages[0], 1: first.pages[1]}
        assert second.pages == own
        assert sorted(pool.pages.own_pages(second)) == sorted(own)
        pool.check()
        pool.end_step([(first, 5), (second, 5)])
        assert second.pages == [*first.pages[:2], own[2]]
        assert (second.duplicates, second.num_sent_pages) == ({}, 0)  # the executor must be told again
        assert pool.pages.own_pages(second) == own[2:]
        pool.check()

    def test_what_others_computed_meanwhile_is_taken(self) -> None:
        pool = Pool()
        first, second = pool.running([1, 2, 3, 4, 5]), pool.running([1, 2, 3, 4, 6, 7])
        pool.compute(first, 4)
        second.num_sent_pages = len(second.pages)
        own, available = second.pages[:], pool.pages.num_available
        pool.pages.extend(second)
        assert second.pages == [*first.pages[:2], own[2]]
        assert (second.num_computed_tokens, second.num_tree_pages, second.num_sent_pages) == (4, 2, 0)
        assert pool.pages.num_available == available + 2
        pool.check()
        pool.pages.extend(second)  # nothing more to take
        assert second.num_computed_tokens == 4

    def test_extending_takes_no_computed_token_away(self) -> None:
        pool = Pool()
        request = pool.running([1, 2, 3, 4, 5])
        pool.compute(request, 3)
        pool.fill([1, 2, 9, 9])
        pool.pages.extend(request)
        assert (request.num_computed_tokens, request.num_tree_pages) == (3, 1)
        pool.check()


class TestRelease:
    def test_what_was_computed_stays_in_the_tree(self) -> None:
        pool = Pool()
        request = pool.running([1, 2, 3])
        pool.compute(request, 3)
        for token in (4, 5):
            request.history.append(token)
        assert pool.pages.grow(request, 5)
        request.num_computed_tokens = 4  # the pages of sampled tokens are its own until it goes
        pool.pages.release(request, keep=True)
        assert pool.pages.prefix_length(pool.waiting([1, 2, 3, 4, 5])) == 4
        assert (request.pages, request.node, request.num_tree_pages) == ([], None, 0)
        assert (request.num_computed_tokens, request.num_sent_pages) == (0, 0)
        assert pool.pages.num_available == 8
        pool.check()

    def test_or_is_dropped_but_for_what_the_tree_has(self) -> None:
        pool = Pool()
        request = pool.running([1, 2, 3])
        pool.compute(request, 3)
        request.history += [4, 5]
        request.num_computed_tokens = 4
        pool.pages.release(request, keep=False)
        assert pool.pages.prefix_length(pool.waiting([1, 2, 3, 4, 5])) == 2
        assert pool.pages.num_available == 8
        pool.check()

    def test_what_the_tree_got_meanwhile_is_not_kept_twice(self) -> None:
        pool = Pool()
        first, second = pool.running([1, 2, 3]), pool.running([1, 2, 3])
        for request in (first, second):
            pool.compute(request, 3)
            request.history += [4, 5]
            assert pool.pages.grow(request, 5)
            request.num_computed_tokens = 4
        pool.pages.release(first, keep=True)
        pool.pages.release(second, keep=True)
        assert pool.cache.stats.num_cached_pages == 2
        pool.check()

    def test_in_the_middle_of_a_step(self) -> None:
        pool = Pool()
        first, second = pool.running([1, 2, 3]), pool.running([1, 2, 3])
        pool.pages.publish(first, 3)
        pool.pages.publish(second, 3)
        pool.pages.release(second, keep=False)
        assert second.duplicates == {}
        pool.check()
        pool.pages.release(first, keep=False)
        pool.cache.discard_pending()
        assert pool.pages.num_available == 8
        pool.check()

    def test_a_request_that_has_nothing(self) -> None:
        pool = Pool()
        pool.pages.release(pool.waiting([1, 2, 3]), keep=True)
        assert pool.pages.num_available == 8


class PagesMachine(RuleBasedStateMachine):
    """Any order of operations: no page is lost, none has two owners, costs are what they were said to be."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(num_pages=10)
        self.running: list[Request] = []

    tokens = st.lists(st.integers(0, 1), min_size=1, max_size=9)

    @rule(token_ids=tokens, salt=st.sampled_from(["", "tenant"]))
    def admit(self, token_ids: list[int], salt: str) -> None:
        pool = self.pool
        request = pool.waiting(token_ids, salt=salt)
        cost, found = pool.pages.admission_cost(request, len(token_ids)), pool.pages.prefix_length(request)
        available = pool.pages.num_available
        if cost > available:
            return
        pool.pages.attach(request)
        assert request.num_computed_tokens == found < len(token_ids)
        assert pool.pages.grow(request, len(token_ids))
        assert pool.pages.num_available == available - cost
        self.running.append(request)

    @precondition(lambda self: self.running)
    @rule(
        picks=st.lists(st.integers(0, 100), min_size=1, max_size=4),
        lengths=st.lists(st.integers(1, 9), min_size=4),
    )
    def step(self, picks: list[int], lengths: list[int]) -> None:
        rows: dict[int, tuple[Request, int]] = {}
        for pick, length in zip(picks, lengths, strict=False):
            request = self.running[pick % len(self.running)]
            if pick % len(self.running) in rows:
                continue
            self.pool.pages.extend(request)
            end = min(len(request.history), request.num_computed_tokens + length)
            if end > request.num_computed_tokens and self.pool.pages.grow(request, end):
                self.pool.pages.publish(request, end)
                rows[pick % len(self.running)] = request, end
                self.pool.check()
        self.pool.end_step(list(rows.values()))
        for request, end in rows.values():
            if end == len(request.history):
                request.history.append(end % 2)

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 100), keep=st.booleans())
    def release(self, pick: int, keep: bool) -> None:
        request = self.running.pop(pick % len(self.running))
        self.pool.pages.release(request, keep=keep)
        assert self.pool.pages.own_pages(request) == []

    @invariant()
    def holds(self) -> None:
        self.pool.check()
        for request in self.running:
            assert request.node is not None
            assert request.node.end == request.num_tree_pages * PAGE_SIZE
            assert request.num_computed_tokens <= len(request.pages) * PAGE_SIZE
            assert request.num_computed_tokens < len(request.history)

    def teardown(self) -> None:
        for request in self.running:
            self.pool.pages.release(request, keep=True)
        assert self.pool.pages.num_available == 10
        self.pool.check()


def test_any_order_of_operations() -> None:
    run_state_machine_as_test(PagesMachine, settings=settings(max_examples=60, stateful_step_count=25))


@pytest.mark.parametrize("share", [True, False])
def test_everything_is_available_at_first(share: bool) -> None:
    assert Pool(num_pages=3, share=share).pages.num_available == 3
