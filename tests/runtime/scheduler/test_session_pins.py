"""What sessions keep in the tree: never more than their share, and never in the way of who must go on."""

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.cache import PageAllocator, RadixCache, RadixNode
from ramet.runtime.protocol import SessionPin
from ramet.runtime.scheduler.session_pins import SessionPins
from tests.runtime.scheduler.fakes import make_input
from tests.runtime.scheduler.simulation import Simulation, tiny_config

NUM_PAGES = 64


class Kept:
    """A tree of pages of ``page_size`` tokens, its pins, and a clock that stands still."""

    def __init__(self, num_pages: int = NUM_PAGES, page_size: int = 1) -> None:
        self.cache = RadixCache(PageAllocator(num_pages, page_size))
        self.now = 0.0
        self.pins = SessionPins(self.cache, lambda: self.now)

    def cached(self, token_ids: list[int]) -> RadixNode:
        pages = self.cache.allocator.allocate(len(token_ids) // self.cache.allocator.page_size)
        assert pages is not None
        result = self.cache.insert(token_ids, pages)
        self.cache.allocator.free(pages[index] for index in result.duplicates)
        return result.node

    def pin(self, session: str, token_ids: list[int], *, seconds: float = 10.0, most: int = 1000) -> None:
        self.pins.pin(SessionPin(session=session, seconds=seconds, max_tokens=most), self.cached(token_ids))
        self.check()

    def check(self) -> None:
        self.cache.check_integrity(handles=self.pins.nodes())


@pytest.fixture
def kept() -> Iterator[Kept]:
    one = Kept()
    yield one
    one.check()


def test_what_is_pinned_is_not_evicted_and_is_when_it_is_released(kept: Kept) -> None:
    kept.pin("a", list(range(10)))
    kept.cached([*range(5), 50, 51])
    assert kept.cache.evict(NUM_PAGES) == 2
    assert (kept.pins.num_sessions, kept.pins.num_tokens) == (1, 10)
    assert kept.pins.release("a") == 10
    assert kept.pins.release("a") == 0
    assert kept.cache.evict(NUM_PAGES) == 10
    assert kept.pins.num_dropped == 0


def test_a_session_keeps_its_latest_prefix_alone(kept: Kept) -> None:
    kept.pin("a", [1, 2, 3])
    kept.pin("a", [1, 2, 3, 4, 5])
    assert kept.pins.num_tokens == 5
    kept.pin("a", [1, 2, 9])
    assert kept.pins.num_tokens == 3
    assert kept.cache.evict(NUM_PAGES) == 3


def test_what_sessions_share_counts_once(kept: Kept) -> None:
    kept.pin("a", [1, 2, 3, 4])
    kept.pin("b", [1, 2, 3, 5])
    assert (kept.pins.num_sessions, kept.pins.num_tokens) == (2, 5)
    kept.pins.release("a")
    assert kept.pins.num_tokens == 4


def test_a_session_is_bounded(kept: Kept) -> None:
    kept.cached([1, 2, 3])
    kept.pin("a", [1, 2, 3, 4, 5, 6], most=4)
    assert kept.pins.num_tokens == 3
    kept.pin("b", [7, 8, 9], most=2)
    assert kept.pins.num_tokens == 3


def test_all_together_are_bounded(kept: Kept) -> None:
    for number in range(5):
        kept.pin(f"s{number}", [100 * number + one for one in range(10)])
    assert kept.pins.num_tokens == 30
    assert kept.pins.num_dropped == 2
    assert kept.pins.release("s0") == 0
    kept.cache.evict(NUM_PAGES)
    kept.pin("s4", [1000 + one for one in range(33)])
    assert kept.pins.num_sessions == 2


def test_what_rests_too_long_is_given_up(kept: Kept) -> None:
    kept.pin("a", [1, 2], seconds=5.0)
    kept.now = 4.0
    kept.pin("b", [3, 4], seconds=5.0)
    kept.now = 6.0
    kept.pins.expire()
    assert kept.pins.num_sessions == 1
    kept.now = 9.0
    kept.pins.give_way(0)
    assert kept.pins.num_sessions == 0
    assert kept.pins.num_dropped == 0


def test_pins_give_way_the_oldest_first(kept: Kept) -> None:
    kept.pin("a", [1, 2, 3])
    kept.pin("b", [4, 5, 6])
    kept.pin("a", [1, 2, 3, 7])
    kept.pins.give_way(NUM_PAGES - 5)
    assert kept.pins.release("b") == 0
    assert kept.pins.num_sessions == 1
    kept.pins.give_way(NUM_PAGES)
    assert (kept.pins.num_sessions, kept.pins.num_dropped) == (0, 2)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["pin", "release", "evict", "way", "time"]),
            st.sampled_from("abc"),
            st.lists(st.integers(0, 2), min_size=2, max_size=8),
        ),
        max_size=40,
    ),
    st.sampled_from([1, 2]),
)
def test_pages_and_locks_always_add_up(actions: list[tuple[str, str, list[int]]], page_size: int) -> None:
    kept = Kept(24, page_size)
    for action, session, numbers in actions:
        match action:
            case "pin":
                token_ids = numbers[: len(numbers) // page_size * page_size]
                kept.cache.evict(len(numbers))
                if kept.cache.allocator.num_free >= len(token_ids) // page_size:
                    kept.pin(session, token_ids, most=numbers[0] * 4)
            case "release":
                kept.pins.release(session)
            case "evict":
                kept.cache.evict(numbers[0])
            case "way":
                kept.pins.give_way(numbers[0] * 8)
                assert kept.pins.num_sessions == 0 or kept.cache.allocator.num_free + (
                    kept.cache.num_evictable_pages
                ) >= (numbers[0] * 8)
            case "time":
                kept.now += numbers[0] * 6
        kept.check()
        assert kept.pins.num_tokens <= 12 * page_size


@pytest.mark.parametrize("closes", [False, True])
def test_a_session_that_is_closed_while_its_request_runs_keeps_nothing(closes: bool) -> None:
    simulation = Simulation(tiny_config(1, num_pages=96))
    source = make_input("r", [1, 2, 3, 4, 5], max_tokens=6, ignore_eos=True)
    pin = SessionPin(session="alpha", seconds=1e6, max_tokens=100)
    simulation.add(msgspec.structs.replace(source, pin=pin))
    simulation.step()
    if closes:
        simulation.release("alpha")
    while simulation.scheduler.has_work:
        simulation.step()
    stats = simulation.scheduler.stats()
    # The last token's KV was never computed.
    assert (stats.num_sessions, stats.num_pinned_tokens) == ((0, 0) if closes else (1, 10))
    simulation.drain()
