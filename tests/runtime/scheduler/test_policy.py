"""The orders of the policies."""

import pytest

from ramet.runtime.scheduler import Fcfs, LongestPrefixMatch, Request
from tests.runtime.scheduler.fakes import make_input


def _waiting(count: int) -> list[Request]:
    return [Request.from_input(make_input(f"r{index}", [1]), arrival=index) for index in range(count)]


def test_fcfs_keeps_the_order_and_asks_nothing() -> None:
    def never(request: Request) -> int:
        raise AssertionError("fcfs does not need the cache")

    waiting = _waiting(3)
    assert list(Fcfs().order(waiting, never)) == waiting


def test_the_longest_prefix_goes_first_and_ties_by_age() -> None:
    lengths = {"r0": 0, "r1": 5, "r2": 9, "r3": 5, "r4": 0}
    ordered = LongestPrefixMatch().order(_waiting(5), lambda request: lengths[request.request_id])
    assert [request.request_id for request in ordered] == ["r2", "r1", "r3", "r0", "r4"]


def test_the_window_is_bounded() -> None:
    assert LongestPrefixMatch().window == 256
    assert LongestPrefixMatch(window=3).window == 3
    with pytest.raises(ValueError, match="window is 0"):
        LongestPrefixMatch(window=0)
