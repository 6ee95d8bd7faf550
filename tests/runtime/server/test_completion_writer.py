"""Echoes that wait for their prompt's log probabilities."""

from types import SimpleNamespace
from typing import Any

from ramet.runtime.engine import Increment
from ramet.runtime.protocol import FinishReason, Logprob, RequestStats, SamplingParams, TokenLogprobs
from ramet.runtime.server.chat_writer import AnswerHead
from ramet.runtime.server.completion_writer import CompletionWriter
from ramet.runtime.tokenizer import ByteTokenizer

ENTRY = TokenLogprobs(Logprob(97, -1.0, 0))


def test_an_answer_that_comes_before_its_prompts_logprobs_is_held_back() -> None:
    params = SamplingParams(n=2, logprobs=0, prompt_logprobs=0)
    answers: Any = SimpleNamespace(prompt_token_ids=[[97, 97]], job=SimpleNamespace(params=params))
    writer = CompletionWriter(
        answers,
        AnswerHead(id="i", created=1, model="m"),
        ByteTokenizer(),
        echoed=["aa"],
        without_answer=False,
        include_usage=False,
    )
    early = Increment(
        request_id="r", index=1, text="a", token_ids=[97], logprobs=[ENTRY],
        finish_reason=FinishReason.LENGTH, stats=RequestStats(num_output_tokens=1),
    )  # fmt: skip
    late = Increment(
        request_id="r", index=0, text="a", token_ids=[97], logprobs=[ENTRY], prompt_logprobs=[None, ENTRY],
        finish_reason=FinishReason.LENGTH, stats=RequestStats(num_output_tokens=1),
    )  # fmt: skip
    assert writer.push(early) == []
    whole = writer.fold(writer.push(late))
    assert [choice.text for choice in whole.choices] == ["aaa", "aaa"]
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == [None, -1.0, -1.0]
