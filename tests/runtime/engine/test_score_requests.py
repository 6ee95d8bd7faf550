from typing import Any

import pytest

from ramet.runtime.engine.score_requests import SCORING, ScoreRequests
from ramet.runtime.protocol import (
    FinishReason,
    GenerateInput,
    InvalidRequestError,
    ProgramTag,
    RequestStats,
    SamplingParams,
    TokenOutput,
)
from ramet.runtime.scheduler.batch import Targets


def source(continuations: list[list[int]], **changes: Any) -> GenerateInput:
    asked: dict[str, Any] = {"request_id": "a", "token_ids": [7, 8], "params": SCORING, **changes}
    return GenerateInput(continuations=continuations, tag=ProgramTag(step=3), cache_salt="s", **asked)


def ended(part_id: str, logprobs: list[list[float]]) -> TokenOutput:
    return TokenOutput(
        request_id=part_id, token_ids=[0], target_logprobs=logprobs, finish_reason=FinishReason.LENGTH
    )


def test_a_request_is_its_paths_and_ends_once_with_their_scores() -> None:
    requests = ScoreRequests()
    (first, targets), (second, others) = requests.open(source([[1, 2, 9], [1, 3, 4], [5]]))
    assert (first.token_ids, targets) == ([7, 8, 1, 2], Targets(1, ((1, 5), (2, 3), (9,))))
    assert (second.token_ids, others) == ([7, 8, 1, 3], Targets(3, ((4,),)))
    assert (first.tag.step, first.cache_salt, first.continuations) == (3, "s", [])
    assert "a" in requests
    assert [requests.owner(part.request_id) for part in (first, second)] == ["a", "a"]
    assert requests.push(ended(second.request_id, [[-4.0]]), RequestStats(num_prompt_tokens=4, e2e=2.0)) is None
    requests.check_integrity(lambda part: part == first.request_id)
    stats = RequestStats(num_prompt_tokens=4, num_cached_tokens=1, num_overtaken=1, e2e=1.0)
    whole = requests.push(ended(first.request_id, [[-1.0, -5.0], [-2.0, -3.0], [-9.0]]), stats)
    assert whole is not None
    assert (whole.request_id, whole.finish_reason) == ("a", FinishReason.LENGTH)
    assert whole.scores == [[-1.0, -2.0, -9.0], [-1.0, -3.0, -4.0], [-5.0]]
    assert whole.stats is not None
    # The prompt and three nodes; more tokens were computed, since the second path found nothing in the cache.
    assert (whole.stats.num_prompt_tokens, whole.stats.num_cached_tokens) == (5, 0)
    assert (whole.stats.e2e, whole.stats.num_overtaken) == (2.0, 1)
    assert "a" not in requests
    assert requests.owner(first.request_id) is None
    requests.check_integrity(lambda part: False)


def test_what_was_found_in_the_cache() -> None:
    requests = ScoreRequests()
    ((part, _),) = requests.open(source([[1], [2]]))
    stats = RequestStats(num_prompt_tokens=2, num_cached_tokens=1)
    whole = requests.push(ended(part.request_id, [[-1.0, -2.0]]), stats)
    assert whole is not None
    assert whole.stats is not None
    assert (whole.stats.num_prompt_tokens, whole.stats.num_cached_tokens) == (2, 1)


def test_closed_its_parts_are_nobodys() -> None:
    requests = ScoreRequests()
    parts = [part.request_id for part, _ in requests.open(source([[1, 2], [3, 4]]))]
    with pytest.raises(AssertionError, match="nobody is at"):
        requests.check_integrity(lambda part: False)
    assert requests.close("a") == parts
    assert [requests.owner(part) for part in parts] == [None, None]
    assert "a" not in requests


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (source([[1]], params=SamplingParams()), "params"),
        (source([[1], []]), "continuations"),
    ],
)
def test_what_is_no_request_for_scores_is_refused(asked: GenerateInput, field: str) -> None:
    requests = ScoreRequests()
    with pytest.raises(InvalidRequestError) as caught:
        list(requests.open(asked))
    assert caught.value.field == field
    assert "a" not in requests


def test_an_id_in_use_is_refused() -> None:
    requests = ScoreRequests()
    list(requests.open(source([[1]])))
    with pytest.raises(InvalidRequestError, match="belongs to a running request"):
        list(requests.open(source([[1]])))
