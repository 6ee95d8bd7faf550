"""Which drafts can be verified, and the masks of a constrained row."""

import numpy as np
import numpy.typing as npt
import pytest

from ramet.runtime.protocol import RequestFailedError
from ramet.runtime.scheduler import Request
from ramet.runtime.scheduler.drafting import constrain, usable_drafts
from tests.runtime.scheduler.fakes import TurnMatcher, make_input

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


def _allowed(row: npt.NDArray[np.int32]) -> set[int]:
    return {t for t in range(VOCAB_SIZE) if int(row[t // 32]) >> (t % 32) & 1}


def test_one_mask_row_a_position_and_the_matcher_is_as_before() -> None:
    matcher = TurnMatcher(VOCAB_SIZE, EOS, length=9)
    drafts, mask = constrain(matcher, [3, 4], VOCAB_SIZE)
    assert drafts == [3, 4]
    assert mask.shape == (3, 2)
    for place in range(3):
        assert _allowed(mask[place]) == {t for t in range(VOCAB_SIZE) if t % 3 == place and t != EOS}
    assert matcher.accepted == []


def test_drafts_end_before_what_the_grammar_forbids() -> None:
    matcher = TurnMatcher(VOCAB_SIZE, EOS, length=9)
    drafts, mask = constrain(matcher, [3, 5, 4], VOCAB_SIZE)
    assert drafts == [3]
    assert len(mask) == 2
    assert matcher.accepted == []


def test_drafts_end_before_the_end_of_the_grammar() -> None:
    matcher = TurnMatcher(VOCAB_SIZE, EOS, length=1)
    drafts, mask = constrain(matcher, [3, EOS], VOCAB_SIZE)
    assert drafts == [3]
    assert _allowed(mask[1]) == {EOS}
    assert matcher.accepted == []


def test_a_grammar_that_fails_at_a_draft_loses_the_draft() -> None:
    matcher = TurnMatcher(VOCAB_SIZE, EOS, length=9, breaks_at=2)
    drafts, mask = constrain(matcher, [3, 4, 5], VOCAB_SIZE)
    assert drafts == [3]
    assert len(mask) == 2
    assert matcher.accepted == []


def test_a_grammar_that_fails_at_the_next_token_says_so() -> None:
    with pytest.raises(RequestFailedError, match="fuel"):
        constrain(TurnMatcher(VOCAB_SIZE, EOS, length=9, breaks_at=0), [3], VOCAB_SIZE)
