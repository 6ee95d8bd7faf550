import itertools
from typing import Any

import pytest

from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.engine.intake import Ask, Intake
from ramet.runtime.engine.results import Completion, Output
from ramet.runtime.engine.scoring import ScorePlan, plan_scores
from ramet.runtime.protocol import (
    FinishReason,
    InvalidRequestError,
    Logprob,
    PromptTooLongError,
    RequestFailedError,
    RequestStats,
    TokenLogprobs,
)
from ramet.runtime.tokenizer import ByteTokenizer
from ramet.runtime.tokenizer.byte_tokenizer import BOS_ID

INFO = EngineInfo(model="fake", vocab_size=258, context_length=24, kv_tokens=24)


def plan(continuations: Any, **ask: Any) -> ScorePlan:
    counter = itertools.count()
    intake = Intake(ByteTokenizer(add_bos=True), INFO)
    return plan_scores(Ask(**{"prompts": "ab", **ask}), continuations, intake, lambda: f"id{next(counter)}")


def output_of(prompt_logprobs: list[TokenLogprobs | None] | None) -> Output:
    done = Completion(
        index=0,
        text="",
        token_ids=[1],
        finish_reason=FinishReason.LENGTH,
        stats=RequestStats(num_cached_tokens=3),
    )
    return Output(request_id="x", prompt_token_ids=[], outputs=[done], prompt_logprobs=prompt_logprobs)


def entry(logprob: float) -> TokenLogprobs:
    return TokenLogprobs(Logprob(1, logprob, 0))


def test_each_continuation_is_a_request_behind_the_prompt() -> None:
    planned = plan(["cd", [101], "é"])
    assert [call.prompt_token_ids for call in planned.calls] == [
        [BOS_ID, 97, 98, 99, 100],
        [BOS_ID, 97, 98, 101],
        [BOS_ID, 97, 98, 0xC3, 0xA9],
    ]
    params = planned.calls[0].inputs[0].params
    assert (params.max_tokens, params.prompt_logprobs, params.prompt_logprobs_start) == (1, 0, 3)
    assert planned.texts == ["cd", "e", "é"]
    assert len({call.request_id for call in planned.calls}) == 3


def test_scores_are_sums_or_means_of_the_continuations_entries() -> None:
    planned = plan(["cd", "e"])
    outputs = [output_of([None, None, None, entry(-1.0), entry(-2.0)]), output_of([entry(-0.5)])]
    first, second = planned.scores(outputs, normalize=False)
    assert (first.token_ids, first.token_logprobs, first.logprob, first.score) == (
        [99, 100],
        [-1.0, -2.0],
        -3.0,
        -3.0,
    )
    assert (second.logprob, second.num_cached_tokens) == (-0.5, 3)
    assert planned.scores(outputs, normalize=True)[0].score == -1.5


@pytest.mark.parametrize("entries", [None, [], [entry(-1.0)], [None, entry(-1.0)]])
def test_missing_entries_are_an_error_and_not_a_score(entries: list[TokenLogprobs | None] | None) -> None:
    with pytest.raises(RequestFailedError, match="for 2 continuation tokens"):
        plan(["cd"]).scores([output_of(entries)], normalize=False)


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
    assert len(plan(["a"], prompts=None, messages=messages).calls) == 1
