"""Drafts copied from what stands in the history already."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.scheduler import Request
from ramet.runtime.scheduler.prompt_lookup import (
    FIRST_LENGTH,
    MAX_PAUSE,
    PromptLookup,
    continuation,
    longest_match,
)
from tests.runtime.scheduler.fakes import make_input


def request_of(*token_ids: int) -> Request:
    return Request.from_input(make_input("a", token_ids), arrival=0.0)


def slow_match(ids: list[int], least: int) -> int | None:
    best, best_length = None, least - 1
    for end in range(len(ids) - 1):
        length = 0
        while length < min(16, end + 1) and ids[end - length] == ids[len(ids) - 1 - length]:
            length += 1
        if length >= max(best_length, least):
            best, best_length = end + 1, length
    return best


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 4))
def test_the_longest_match_is_found_and_the_latest_of_equals(ids: list[int], least: int) -> None:
    assert longest_match(np.array(ids, dtype=np.int32), least) == slow_match(ids, least)


def test_a_continuation_that_reaches_the_end_goes_on_with_itself() -> None:
    ids = np.array([1, 2, 3, 4], dtype=np.int32)
    assert continuation(ids, 1, 2) == [2, 3]
    assert continuation(ids, 1, 8) == [2, 3, 4, 2, 3, 4, 2, 3]
    assert continuation(ids, 3, 3) == [4, 4, 4]


def test_what_followed_is_proposed_and_nothing_where_nothing_did() -> None:
    lookup = PromptLookup()
    assert lookup.propose(request_of(1, 2, 3, 4, 5, 6, 9, 1, 2, 3), []) == [4, 5, 6]
    lookup.forget(request_of())
    assert lookup.propose(request_of(1, 2, 3, 4, 5, 6), []) == []
    lookup.forget(request_of())
    assert lookup.propose(request_of(1), []) == []


def test_tokens_that_the_grammar_forces_count_as_history() -> None:
    lookup = PromptLookup()
    assert lookup.propose(request_of(1, 2, 3, 4, 5, 6, 9, 1), [2, 3]) == [4, 5, 6]


def test_the_history_is_followed() -> None:
    lookup = PromptLookup()
    request = request_of(*range(1000))
    assert lookup.propose(request, []) == []
    request.history += [500, 501, 502]
    assert lookup.propose(request, []) == [503, 504, 505]


def test_right_proposals_grow_and_wrong_ones_pause() -> None:
    lookup = PromptLookup(max_tokens=8)
    request = request_of(*range(20), *range(5))
    lengths = []
    for _ in range(3):
        proposal = lookup.propose(request, [])
        lengths.append(len(proposal))
        lookup.observe(request, len(proposal), len(proposal))
    assert lengths == [FIRST_LENGTH, 2 * FIRST_LENGTH, 8]
    lookup.observe(request, 8, 2)
    assert len(lookup.propose(request, [])) == 3
    pauses = []
    for _ in range(8):
        lookup.observe(request, 3, 0)
        pause = 0
        while not lookup.propose(request, []):
            pause += 1
        pauses.append(pause)
    assert pauses == [1, 3, 7, 15, 31, 63, MAX_PAUSE, MAX_PAUSE]
    lookup.observe(request, 3, 1)
    assert lookup.propose(request, [])


def test_requests_are_apart_and_forgotten() -> None:
    lookup = PromptLookup()
    one = request_of(1, 2, 3, 4, 1, 2, 3)
    other = Request.from_input(make_input("b", [1, 2, 3, 9, 1, 2, 3]), arrival=0.0)
    assert lookup.propose(one, [])[0] == 4
    assert lookup.propose(other, [])[0] == 9
    lookup.forget(one)
    lookup.forget(one)
    lookup.observe(one, 1, 0)
    assert len(lookup._watched) == 1


def test_the_length_is_checked() -> None:
    with pytest.raises(ValueError, match="max_tokens is 0"):
        PromptLookup(0)
