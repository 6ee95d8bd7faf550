import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.lang.backends.answer_text import Reading, Wrapping
from ramet.lang.backends.base import GenerateDelta, ToolCall
from ramet.lang.backends.openai_stream import (
    UNKNOWN_TOKEN,
    ChunkReader,
    completion_entries,
    token_logprobs,
)
from ramet.lang.errors import GenerationError
from ramet.runtime.protocol import FinishReason, Logprob


def chunk(index: int = 0, finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "finish_reason": finish_reason, **fields}]}


def read(chunks: list[dict[str, Any]], **options: Any) -> list[GenerateDelta]:
    reader = ChunkReader("the server", **options)
    return [delta for one in chunks for delta in reader.push(json.dumps(one))] + reader.finish()


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=5))))
def test_texts_concatenate_by_index(pieces: list[tuple[int, str]]) -> None:
    chunks = [chunk(index, delta={"content": text}) for index, text in pieces]
    deltas = read([*chunks, *(chunk(index, "stop", delta={}) for index in range(3))], n=3)
    for index in range(3):
        expected = "".join(text for other, text in pieces if other == index)
        assert "".join(delta.text for delta in deltas if delta.index == index) == expected
    assert [delta.finish_reason for delta in deltas[-3:]] == [FinishReason.STOP] * 3


@given(st.lists(st.text(max_size=4), max_size=5), st.lists(st.text(max_size=4), max_size=5))
def test_tool_calls_come_in_pieces(first: list[str], second: list[str]) -> None:
    chunks = [
        chunk(delta={"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]})
    ]
    chunks += [chunk(delta={"tool_calls": [{"index": 0, "function": {"arguments": text}}]}) for text in first]
    chunks += [chunk(delta={"tool_calls": [{"index": 1, "function": {"name": "g", "arguments": ""}}]})]
    chunks += [chunk(delta={"tool_calls": [{"index": 1, "function": {"arguments": text}}]}) for text in second]
    last = read([*chunks, chunk(finish_reason="tool_calls", delta={})])[-1]
    assert last.tool_calls == (
        ToolCall(id="a", name="f", arguments="".join(first) or "{}"),
        ToolCall(id="call_1", name="g", arguments="".join(second) or "{}"),
    )


def test_usage_comes_with_the_last_increment() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}
    last = read(
        [chunk(delta={"content": "a"}), chunk(finish_reason="length"), {"choices": [], "usage": usage}]
    )[-1]
    assert last.finish_reason is FinishReason.LENGTH
    assert last.stats is not None
    assert (last.stats.num_prompt_tokens, last.stats.num_cached_tokens, last.stats.num_output_tokens) == (
        9,
        5,
        4,
    )


def test_usage_of_several_answers_is_the_firsts() -> None:
    ends = [chunk(index, "stop", text="x") for index in range(2)]
    deltas = read([*ends, {"choices": [], "usage": {"completion_tokens": 6}}], n=2)
    assert [delta.stats.num_output_tokens for delta in deltas if delta.stats is not None] == [6, 0]


def test_token_ids() -> None:
    deltas = read(
        [chunk(text="ab", token_ids=[3, 4]), chunk(finish_reason="stop", token_ids=[5], stop_reason=5)]
    )
    assert [delta.token_ids for delta in deltas] == [(3, 4), (5,), ()]
    assert deltas[-1].stop_reason == 5
    assert deltas[-1].stats is not None
    assert deltas[-1].stats.num_output_tokens == 3


def test_reasoning_and_parts() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "so"}]
    deltas = read(
        [
            chunk(delta={"reasoning": "a"}),
            chunk(delta={"content": parts}),
            chunk(finish_reason="stop", delta={}),
        ]
    )
    assert [(delta.reasoning, delta.text) for delta in deltas] == [("a", ""), ("hm", "so"), ("", "")]


def test_a_wrapped_answer_comes_at_once_and_is_stopped_in() -> None:
    chunks = [chunk(delta={"content": text}) for text in ('{"ans', 'wer": "yes', ' no"}')]
    reading = Reading(wrapping=Wrapping(is_text=True), stops=(" n",))
    deltas = read([*chunks, chunk(finish_reason="stop")], reading=reading)
    assert [(delta.text, delta.stop_reason) for delta in deltas] == [("yes", " n")]


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([{"error": {"message": "boom", "code": 500}}], "the server failed while it answered: boom"),
        ([{"object": "error", "message": "boom"}], "the server failed while it answered: boom"),
        ([["x"]], "the server failed while it answered"),
        ([chunk(1, delta={"content": "a"})], "sent answer 1 of 1"),
        ([chunk(finish_reason="content_filter")], "content filter"),
        ([chunk(finish_reason="magic")], "ended the answer with 'magic'"),
        ([chunk(delta={"refusal": "no"}), chunk(finish_reason="stop")], "refuses to answer: no"),
        ([chunk(delta={"content": "a"})], "the server broke off its answer"),
    ],
)
def test_answers_that_fail(chunks: list[Any], message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        read(chunks)


def test_what_is_no_json() -> None:
    with pytest.raises(GenerationError, match="an event that is no JSON: 'oops'"):
        ChunkReader("the server").push("oops")


def test_logprobs() -> None:
    tops = [{"token": "token_id:7", "logprob": -1.0}, {"token": "token_id:8", "logprob": -0.5}]
    entry = token_logprobs({"token": "token_id:7", "logprob": -1.0, "top_logprobs": tops})
    assert entry.chosen == Logprob(7, -1.0, 1)
    assert entry.top == (Logprob(8, -0.5, 0), Logprob(7, -1.0, 1))
    said = {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -2.0],
        "top_logprobs": [None, {"b": -2.0, "c": -1.0}],
    }
    second = token_logprobs(completion_entries(said)[1])
    assert second.chosen == Logprob(UNKNOWN_TOKEN, -2.0, 1)
    assert [top.logprob for top in second.top] == [-1.0, -2.0]


def test_stops_that_are_looked_for_here() -> None:
    reader = ChunkReader("the server", 2, Reading(stop_regexes=("[0-9]",)))
    shown = [delta.text for text in ("a", "b1c", "d") for delta in reader.push(json.dumps(chunk(text=text)))]
    assert shown == ["a", "b"]
    over = [reader.is_over]
    reader.push(json.dumps(chunk(1, text="2")))
    assert [*over, reader.is_over] == [False, True]
    assert [(delta.text, delta.stop_reason) for delta in reader.finish()] == [("", "[0-9]")] * 2
