"""Chunks fold into the answer that they tell."""

from msgspec import UNSET

from ramet.runtime.server.chat_chunks import (
    ChatChunk,
    ChunkChoice,
    Delta,
    FunctionDelta,
    ToolCallDelta,
    fold,
)
from ramet.runtime.server.usage import UsageCounter

USAGE = UsageCounter(prompt_tokens=1, answers_per_prompt=1).usage()


def chunk(index: int, delta: Delta, finish_reason: str | None = None) -> ChatChunk:
    choice = ChunkChoice(index=index, delta=delta, finish_reason=finish_reason)
    return ChatChunk(id="i", created=1, model="m", system_fingerprint="f", choices=[choice])


def call(index: int, arguments: str, name: str | None = None) -> Delta:
    if name is None:
        return Delta(tool_calls=[ToolCallDelta(index=index, function=FunctionDelta(arguments=arguments))])
    function = FunctionDelta(name=name, arguments=arguments)
    return Delta(tool_calls=[ToolCallDelta(index=index, id=f"id{index}", type="function", function=function)])


def test_choices_are_folded_apart() -> None:
    whole = fold(
        [
            chunk(1, Delta(role="assistant", content="")),
            chunk(0, Delta(role="assistant", content="")),
            chunk(0, Delta(reasoning_content="why")),
            chunk(1, Delta(content="a")),
            chunk(0, Delta(content="x")),
            chunk(1, Delta(content="b"), "length"),
            chunk(0, Delta(), "stop"),
        ],
        USAGE,
    )
    first, second = whole.choices
    assert (first.index, first.message.content, first.message.reasoning_content) == (0, "x", "why")
    assert (second.message.content, second.finish_reason) == ("ab", "length")
    assert second.message.reasoning_content is UNSET
    assert (whole.id, whole.object) == ("i", "chat.completion")


def test_calls_are_put_together() -> None:
    chunks = [
        chunk(0, Delta(role="assistant", content="")),
        chunk(0, call(0, "", "f")),
        chunk(0, call(0, '{"a"')),
        chunk(0, call(0, ": 1}")),
        chunk(0, call(1, "{}", "g")),
        chunk(0, Delta(), "tool_calls"),
    ]
    (choice,) = fold(chunks, USAGE).choices
    assert choice.message.content is None
    assert isinstance(choice.message.tool_calls, list)
    assert [(one.id, one.function.name, one.function.arguments) for one in choice.message.tool_calls] == [
        ("id0", "f", '{"a": 1}'),
        ("id1", "g", "{}"),
    ]


def test_an_empty_answer_is_an_empty_text() -> None:
    chunks = [chunk(0, Delta(role="assistant", content="")), chunk(0, Delta(), "stop")]
    assert fold(chunks, USAGE).choices[0].message.content == ""
