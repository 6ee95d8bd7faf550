import itertools
from dataclasses import dataclass
from typing import Any

import pytest

from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.engine.intake import Ask, Intake
from ramet.runtime.engine.score_requests import SCORING
from ramet.runtime.engine.scoring import ScorePlan, plan_scores
from ramet.runtime.protocol import InvalidRequestError, PromptTooLongError, RequestFailedError, RequestStats
from ramet.runtime.tokenizer import ByteTokenizer
from ramet.runtime.tokenizer.byte_tokenizer import BOS_ID

INFO = EngineInfo(model="fake", vocab_size=258, context_length=24, kv_tokens=24)


def plan(continuations: Any, **ask: Any) -> ScorePlan:
    counter = itertools.count()
    intake = Intake(ByteTokenizer(add_bos=True), INFO)
    return plan_scores(Ask(**{"prompts": "ab", **ask}), continuations, intake, lambda: f"id{next(counter)}")


@dataclass
class Answered:
    """What an engine gave back."""

    logprobs: list[list[float]]

    def scores(self) -> list[list[float]]:
        return self.logprobs

    def stats(self) -> RequestStats:
        return RequestStats(num_cached_tokens=3)


def test_all_continuations_are_one_request() -> None:
    planned = plan(["cd", [101], "é"])
    (source,) = planned.call.inputs
    assert source.token_ids == planned.call.prompt_token_ids == [BOS_ID, 97, 98]
    assert source.continuations == planned.continuations == [[99, 100], [101], [0xC3, 0xA9]]
    assert source.params == SCORING
    assert planned.texts == ["cd", "e", "é"]


def test_scores_are_sums_or_means_of_the_continuations_log_probabilities() -> None:
    planned = plan(["cd", "e"])
    answer = Answered([[-1.0, -2.0], [-0.5]])
    first, second = planned.scores(answer, normalize=False)
    assert (first.token_ids, first.token_logprobs, first.logprob, first.score) == (
        [99, 100],
        [-1.0, -2.0],
        -3.0,
        -3.0,
    )
    assert (second.logprob, second.num_cached_tokens) == (-0.5, 3)
    assert planned.scores(answer, normalize=True)[0].score == -1.5


@pytest.mark.parametrize("logprobs", [[], [[]], [[-1.0]], [[-1.0, -1.0], [-1.0]]])
def test_missing_log_probabilities_are_an_error_and_not_a_score(logprobs: list[list[float]]) -> None:
    with pytest.raises(RequestFailedError, match=r"for continuations of \[2\] tokens"):
        plan(["cd"]).scores(Answered(logprobs), normalize=False)


@pytest.mark.parametrize(
    ("continuations", "message"),
    [
        ([], "at least one text"),
        ("ab", "at least one text"),
        (["a", ""], "continuation 1: it is empty"),
        (["a", []], "continuation 1: it is empty"),
        ([5], "continuation 0: it is a int"),
        ([[300]], r"continuation 0: token id 0 is 300"),
        (["\ud800"], "continuation 0: it has the lone surrogate"),
    ],
)
def test_wrong_continuations_are_refused(continuations: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        plan(continuations)
    assert caught.value.field == "continuations"


def test_prompt_and_continuation_have_to_fit_together() -> None:
    with pytest.raises(PromptTooLongError, match="continuation 1: the prompt has 24 tokens"):
        plan(["a", "a" * 21])


def test_one_prompt_at_a_time() -> None:
    with pytest.raises(InvalidRequestError, match="score takes one prompt"):
        plan(["a"], prompts=["a", "b"])
    messages = [{"role": "user", "content": "x"}]
    assert len(plan(["a"], prompts=None, messages=messages).call.inputs) == 1
