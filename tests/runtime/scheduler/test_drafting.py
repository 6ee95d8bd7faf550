"""Which drafts can be verified."""

from ramet.runtime.scheduler import Request
from ramet.runtime.scheduler.drafting import usable_drafts
from tests.runtime.scheduler.fakes import make_input

VOCAB_SIZE = 40
EOS = 7


def _usable(drafts: list[int], *, limit: int = 9, max_total: int = 100, min_tokens: int = 0) -> list[int]:
    request = Request.from_input(make_input("a", [1, 2, 3], min_tokens=min_tokens), arrival=0.0)
    request.history.append(4)
    request.max_total_tokens = max_total
    request.stop_token_ids = frozenset({EOS})
    return usable_drafts(request, drafts, limit, VOCAB_SIZE)


def test_drafts_are_cut_to_the_limit() -> None:
    assert _usable([10, 11, 12], limit=2) == [10, 11]
    assert _usable([10, 11, 12], limit=0) == []
    assert _usable([10, 11, 12], limit=-3) == []


def test_drafts_leave_room_for_the_token_behind_them() -> None:
    assert _usable([10, 11, 12], max_total=7) == [10, 11]
    assert _usable([10, 11, 12], max_total=5) == []


def test_nothing_is_drafted_from_a_stop_token_or_an_unknown_one_on() -> None:
    assert _usable([10, EOS, 12]) == [10]
    assert _usable([10, 11, VOCAB_SIZE]) == [10, 11]
    assert _usable([-1, 11]) == []


def test_a_row_does_not_cross_the_end_of_the_ban_on_stop_tokens() -> None:
    # One output token is there; positions 1 and 2 are banned, position 3 is not.
    assert _usable([10, 11, 12], min_tokens=3) == [10]
    assert _usable([10, 11, 12], min_tokens=2) == []
    assert _usable([10, 11, 12], min_tokens=1) == [10, 11, 12]
