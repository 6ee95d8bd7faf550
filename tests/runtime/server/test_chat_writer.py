"""Increments to chunks: reasoning, calls and log probabilities, however the text is cut."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from ramet.runtime.engine import Increment
from ramet.runtime.protocol import FinishReason, Logprob, RequestStats, SamplingParams, TokenLogprobs
from ramet.runtime.protocol.reasoning import ReasoningFormat
from ramet.runtime.server.chat_chunks import ChatCompletion
from ramet.runtime.server.chat_prompt import ChatPrompt
from ramet.runtime.server.chat_writer import AnswerHead, ChatWriter
from ramet.runtime.server.tools.enforcement import Enforcement
from ramet.runtime.server.tools.formats import HERMES
from ramet.runtime.tokenizer import ByteTokenizer

THINK = ReasoningFormat("<think>", "</think>")
TEXT = '<think>Hm, why?</think>\n\nOne moment.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def writer(*, include_usage: bool = False) -> ChatWriter:
    prompt = ChatPrompt([1, 2], None, frozenset(("f",)), Enforcement(HERMES), THINK)
    answers: Any = SimpleNamespace(prompt_token_ids=[[1, 2]], job=SimpleNamespace(params=SamplingParams()))
    head = AnswerHead(id="i", created=1, model="m")
    return ChatWriter(answers, head, prompt, ByteTokenizer(), include_usage=include_usage)


def increments(pieces: list[str], reason: FinishReason = FinishReason.STOP) -> list[Increment]:
    entries = [TokenLogprobs(Logprob(97, -1.0, 0))]
    return [
        *(Increment(request_id="r", text=piece, token_ids=[97], logprobs=entries) for piece in pieces),
        Increment(request_id="r", finish_reason=reason, stats=RequestStats(num_output_tokens=len(pieces))),
    ]


def written(pieces: list[str], reason: FinishReason = FinishReason.STOP) -> ChatCompletion:
    one = writer()
    chunks = [chunk for increment in increments(pieces, reason) for chunk in one.push(increment)]
    return one.fold([*chunks, *one.end()])


@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=12))
def test_every_way_to_cut_the_text_gives_the_same_message(cuts: list[int]) -> None:
    cuts = sorted(cuts)
    pieces = [TEXT[a:b] for a, b in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)]
    (choice,) = written(pieces).choices
    message = choice.message
    assert (message.reasoning_content, message.content) == ("Hm, why?", "One moment.")
    assert isinstance(message.tool_calls, list)
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [("f", '{"a": 1}')]
    assert choice.finish_reason == "tool_calls"
    assert choice.logprobs is not None
    assert len(choice.logprobs.content) == len(pieces)


def test_reasoning_tokens_are_counted() -> None:
    usage = written(["<think>", "a", "b", "</think>", "c"]).usage
    assert usage.completion_tokens_details is not UNSET
    assert usage.completion_tokens == 5
    assert 2 <= usage.completion_tokens_details.reasoning_tokens <= 3


def test_a_cut_call_says_length() -> None:
    (choice,) = written([TEXT[:-20]], FinishReason.LENGTH).choices
    assert choice.finish_reason == "length"
    assert isinstance(choice.message.tool_calls, list)


def test_the_last_chunk_of_a_choice_has_its_reason_alone() -> None:
    one = writer(include_usage=True)
    chunks = [chunk for increment in increments(["x"]) for chunk in one.push(increment)]
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert b'"delta":{}' in one.encode(chunks[-1])
    assert b'"usage":null' in one.encode(chunks[-1])
    (last,) = one.end()
    assert last.choices == []
    assert last.usage is not UNSET
