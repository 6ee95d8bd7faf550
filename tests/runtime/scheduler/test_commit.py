"""Committing sampled tokens, and what of an executor's answer is refused."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ramet.runtime.protocol import FinishReason
from ramet.runtime.scheduler import BatchRow, Request, RowResult, ScheduledBatch
from ramet.runtime.scheduler.batch import Targets
from ramet.runtime.scheduler.commit import (
    check_results,
    commit_tokens,
    gather_prompt_logprobs,
    gather_target_logprobs,
)
from tests.runtime.scheduler.fakes import TurnMatcher, logprob_of, make_input

EOS = 7


def _request(max_total: int = 100, matcher: TurnMatcher | None = None, **params: Any) -> Request:
    request = Request.from_input(make_input("a", [1, 2, 3], **params), arrival=0.0, matcher=matcher)
    request.max_total_tokens = max_total
    request.stop_token_ids = frozenset({EOS})
    return request


def test_tokens_join_the_history() -> None:
    request = _request()
    commit = commit_tokens(request, [4, 5])
    assert (commit.token_ids, commit.finish_reason) == ([4, 5], None)
    assert request.history == [1, 2, 3, 4, 5]


def test_tokens_behind_a_stop_token_are_dropped() -> None:
    request = _request()
    commit = commit_tokens(request, [4, EOS, 5])
    assert (commit.token_ids, commit.finish_reason, commit.stop_token_id) == ([4, EOS], FinishReason.STOP, EOS)
    assert request.history == [1, 2, 3, 4, EOS]


def test_tokens_behind_the_limit_are_dropped() -> None:
    request = _request(max_total=5)
    commit = commit_tokens(request, [4, 5, 6])
    assert (commit.token_ids, commit.finish_reason, commit.stop_token_id) == ([4, 5], FinishReason.LENGTH, None)


def test_a_stop_token_at_the_limit_is_a_stop() -> None:
    assert commit_tokens(_request(max_total=4), [EOS]).finish_reason is FinishReason.STOP


def test_a_stop_token_before_min_tokens_is_a_token() -> None:
    request = _request(min_tokens=2)
    assert commit_tokens(request, [EOS, EOS]).finish_reason is None
    assert commit_tokens(request, [EOS]).finish_reason is FinishReason.STOP


def test_the_end_of_the_grammar_is_a_stop() -> None:
    request = _request(matcher=TurnMatcher(40, 9, length=1))
    commit = commit_tokens(request, [3, 9, 4])
    assert (commit.token_ids, commit.finish_reason, commit.stop_token_id) == ([3, 9], FinishReason.STOP, None)


class FreeAfterOne(TurnMatcher):
    """Its first token is constrained, and nothing behind it."""

    def is_unconstrained(self) -> bool:
        return bool(self.accepted)


def test_a_matcher_that_constrains_nothing_any_more_is_dropped() -> None:
    request = _request(matcher=FreeAfterOne(40, 9, length=10))
    assert commit_tokens(request, [4]).finish_reason is FinishReason.ERROR
    assert commit_tokens(request, [3, 5]).token_ids == [3, 5]
    assert request.matcher is None
    assert commit_tokens(request, [5, EOS]).finish_reason is FinishReason.STOP


def test_a_token_against_the_grammar_ends_the_request_before_it() -> None:
    request = _request(matcher=TurnMatcher(40, 9, length=5))
    commit = commit_tokens(request, [3, 5])
    assert (commit.token_ids, commit.finish_reason) == ([3], FinishReason.ERROR)
    assert commit.error == "the grammar does not allow token 5 after 1 output tokens"
    assert request.history == [1, 2, 3, 3]


def _row(**changes: Any) -> BatchRow:
    row = BatchRow(
        request_id="a",
        slot=0,
        start=0,
        token_ids=[1, 2, 3],
        first_new_page=0,
        new_pages=[0],
        num_drafts=0,
        samples=True,
        params=make_input("a", [1]).params,
        seed=0,
        num_prompt_tokens=3,
        history=[1, 2, 3],
    )
    return replace(row, **changes)


@pytest.mark.parametrize(
    ("row", "results", "message"),
    [
        (_row(), [], "0 results for 1 rows"),
        (_row(), [RowResult([])], "0 tokens for request 'a', which has 1 sampled"),
        (_row(), [RowResult([4, 5])], "2 tokens for request 'a', which has 1 sampled"),
        (_row(samples=False), [RowResult([4])], "1 tokens for request 'a', which has 0 sampled"),
        (_row(), [RowResult([4], is_late=True)], "1 tokens for request 'a', which has 0 sampled"),
        (_row(params=make_input("a", [1], logprobs=0).params), [RowResult([4])], "not one a token"),
        (
            _row(params=make_input("a", [1], prompt_logprobs=0).params),
            [RowResult([4], prompt_logprobs=[])],
            "0 prompt logprobs for request 'a'; positions 1 to 2",
        ),
        (_row(targets=Targets(1, ((3, 4),))), [RowResult([4])], "not one a target"),
        (
            _row(targets=Targets(1, ((3, 4), (5,)))),
            [RowResult([4], target_logprobs=[[-1.0], [-1.0]])],
            "not one a target",
        ),
    ],
)
def test_an_executor_that_breaks_its_contract_is_refused(
    row: BatchRow, results: Sequence[RowResult], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_results(ScheduledBatch(1, (row,)), results)


def test_a_row_that_failed_needs_nothing_else() -> None:
    check_results(ScheduledBatch(1, (_row(),)), [RowResult([], error="no token is allowed")])


def test_prompt_logprobs_come_chunk_by_chunk_into_their_places() -> None:
    source = make_input("a", list(range(8)), prompt_logprobs=0, prompt_logprobs_start=3)
    request = Request.from_input(source, arrival=0.0)
    values = [logprob_of(position, 0) for position in range(8)]
    for start, end in ((0, 2), (2, 5), (5, 8)):
        row = _row(start=start, token_ids=list(range(start, end)), num_prompt_tokens=8, params=source.params)
        first, last = max(start + 1, 3), min(end, 7)
        gather_prompt_logprobs(request, row, RowResult([], prompt_logprobs=values[first : last + 1]))
    assert request.prompt_logprobs == [None, None, None, *values[3:]]
    assert request.max_cached_tokens == 7


def test_target_logprobs_come_chunk_by_chunk_and_again() -> None:
    targets = Targets(2, ((1,), (1, 2), (), (3,)))
    request = Request.from_input(make_input("a", list(range(8))), arrival=0.0, targets=targets)
    values = [[-2.0], [-3.0, -3.5], [], [-5.0]]
    # The second chunk begins anew: the request was preempted, and less is cached than before.
    for start, end in ((0, 4), (3, 5), (5, 8)):
        part = targets.within(start, end)
        row = _row(start=start, token_ids=list(range(start, end)), num_prompt_tokens=8, targets=part)
        found = values[part.first - 2 : part.end - 2]
        gather_target_logprobs(request, row, RowResult([], target_logprobs=found))
    assert request.target_logprobs == values
    assert request.max_cached_tokens == 7
