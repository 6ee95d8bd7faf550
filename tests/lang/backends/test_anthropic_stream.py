import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.lang.backends.answer_text import Reading, Wrapping
from ramet.lang.backends.anthropic_request import Letter
from ramet.lang.backends.anthropic_stream import MessageReader
from ramet.lang.backends.base import GenerateDelta, ToolCall
from ramet.lang.backends.sse import ServerSentEvent
from ramet.lang.errors import GenerationError
from ramet.runtime.protocol import FinishReason

PLAIN = Letter({}, Reading(), "")
STOPPED: list[dict[str, Any]] = [
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]


def text(piece: str, index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": piece}}


def read(events: list[dict[str, Any]], letter: Letter = PLAIN) -> list[GenerateDelta]:
    reader = MessageReader("the server", letter)
    deltas: list[GenerateDelta] = []
    for event in events:
        deltas += reader.push(ServerSentEvent(json.dumps(event), event["type"]))
        if reader.is_over:
            break
    return [*deltas, reader.finish()]


@given(st.lists(st.text(max_size=4)))
def test_texts_concatenate(pieces: list[str]) -> None:
    deltas = read([*map(text, pieces), *STOPPED])
    assert "".join(delta.text for delta in deltas) == "".join(pieces)
    assert deltas[-1].finish_reason is FinishReason.STOP


@given(st.text(" \nx", max_size=8), st.sampled_from(["", " ", "\n", " \n"]), st.integers(1, 3))
def test_hidden_space_is_not_said_twice(answer: str, hidden: str, size: int) -> None:
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    deltas = read([*map(text, pieces), *STOPPED], Letter({}, Reading(), hidden))
    expected = answer
    for character in hidden:
        if not expected.startswith(character):
            break
        expected = expected[1:]
    assert "".join(delta.text for delta in deltas) == expected


@given(st.lists(st.sampled_from(["a", "b\n", "\n", " \n c"]), max_size=6))
def test_own_stops_end_the_answer(pieces: list[str]) -> None:
    deltas = read([*map(text, pieces), *STOPPED], Letter({}, Reading(stops=("\n",)), ""))
    whole = "".join(pieces)
    assert "".join(delta.text for delta in deltas) == whole.split("\n")[0]
    assert deltas[-1].stop_reason == ("\n" if "\n" in whole else None)


def test_tool_calls_and_thinking() -> None:
    use = {"type": "tool_use", "id": "i", "name": "f", "input": {}}
    pieces = ['{"a"', ": 1}"]
    events = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_start", "index": 1, "content_block": use},
        *(
            {
                "type": "content_block_delta",
                "index": 1,
                "delta": {"type": "input_json_delta", "partial_json": piece},
            }
            for piece in pieces
        ),
    ]
    events.insert(0, {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}})
    deltas = read([*events, *STOPPED])
    assert [delta.reasoning for delta in deltas] == ["hm", ""]
    assert deltas[-1].tool_calls == (ToolCall(id="i", name="f", arguments='{"a": 1}'),)


def test_a_wrapped_answer() -> None:
    letter = Letter({}, Reading(wrapping=Wrapping(is_text=True), stops=("o",)), "")
    deltas = read([text('{"answer"'), text(': "n'), text('o"}'), *STOPPED], letter)
    assert [(delta.text, delta.stop_reason) for delta in deltas] == [("n", "o")]


def test_usage() -> None:
    usage = {
        "input_tokens": 1,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 2,
        "output_tokens": 1,
    }
    last = read([{"type": "message_start", "message": {"usage": usage}}, *STOPPED])[-1]
    assert last.stats is not None
    assert (last.stats.num_prompt_tokens, last.stats.num_cached_tokens, last.stats.num_output_tokens) == (
        7,
        4,
        3,
    )


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (
            [{"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}],
            "while it answered: busy",
        ),
        ([text("a")], "the server broke off its answer"),
        (
            [{"type": "message_delta", "delta": {"stop_reason": "pause_turn"}}],
            "ended the answer with 'pause_turn'",
        ),
        ([{"type": "message_delta", "delta": {"stop_reason": "refusal"}}], "the model refuses to answer"),
    ],
)
def test_answers_that_fail(events: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        read(events)
    with pytest.raises(GenerationError, match="no JSON"):
        MessageReader("the server", PLAIN).push(ServerSentEvent("oops"))
