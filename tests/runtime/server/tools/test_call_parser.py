"""Tool calls out of text: each format's forms, what is no call, and every way to cut the text."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.server.tools.call_parser import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    ParserEvent,
    ToolCallParser,
)
from ramet.runtime.server.tools.formats import HERMES, JSON, LLAMA3, MISTRAL, MISTRAL_NAMED, ToolFormat

TOOLS = frozenset(("get_weather", "get_time"))
ALL = (HERMES, LLAMA3, MISTRAL, MISTRAL_NAMED, JSON)


@dataclass
class Read:
    """What the events come to."""

    content: str = ""
    calls: list[tuple[str, str, bool]] = field(default_factory=list)
    """Name, arguments, and whether the call is whole."""

    def add(self, events: list[ParserEvent]) -> None:
        for event in events:
            match event:
                case Content(text):
                    self.content += text
                case CallBegin(name):
                    self.calls.append((name, "", False))
                case CallArguments(text):
                    name, arguments, _ = self.calls[-1]
                    self.calls[-1] = (name, arguments + text, False)
                case CallEnd():
                    name, arguments, _ = self.calls[-1]
                    self.calls[-1] = (name, arguments, True)


def read(format: ToolFormat, pieces: list[str], *, begins_inside: bool = False) -> Read:
    parser = ToolCallParser(format, TOOLS, begins_inside=begins_inside)
    result = Read()
    for piece in pieces:
        result.add(parser.feed(piece))
    result.add(parser.finish())
    return result


def whole(format: ToolFormat, text: str, *, begins_inside: bool = False) -> Read:
    return read(format, [text], begins_inside=begins_inside)


CITY = '{"city": "Lima \\"x\\" }"}'


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (HERMES, f'<tool_call>\n{{"name": "get_weather", "arguments": {CITY}}}\n</tool_call>'),
        (HERMES, f'<tool_call>{{"arguments": {CITY}, "name": "get_weather"}}</tool_call>'),
        (HERMES, f'\n\n<tool_call>\n{{"id": 5, "name": "get_weather", "arguments": {CITY}}}'),
        (LLAMA3, f'{{"name": "get_weather", "parameters": {CITY}}}'),
        (LLAMA3, f' {{"type": "function", "name": "get_weather", "parameters": {CITY}}}\n'),
        (MISTRAL, f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {CITY}}}]'),
        (MISTRAL, f'[TOOL_CALLS]{{"name": "get_weather", "arguments": {CITY}}}'),
        (MISTRAL_NAMED, f"[TOOL_CALLS]get_weather[ARGS]{CITY}"),
        (MISTRAL_NAMED, f"[TOOL_CALLS]get_weather[CALL_ID]abc[ARGS]{CITY}"),
        (JSON, f'{{"name": "get_weather", "arguments": {CITY}}}'),
        (JSON, f'[{{"name": "get_weather", "arguments": {CITY}}}]'),
        (JSON, json.dumps({"name": "get_weather", "arguments": CITY})),
    ],
)
def test_one_call(format: ToolFormat, text: str) -> None:
    result = whole(format, text)
    assert result == Read("", [("get_weather", CITY, True)])
    assert json.loads(result.calls[0][1])


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (HERMES, '<tool_call>{"name": "get_time"}</tool_call>\n<tool_call>{"name": "get_weather"}</tool_call>'),
        (LLAMA3, '{"name": "get_time"}; {"name": "get_weather", "parameters": null}'),
        (MISTRAL, '[TOOL_CALLS] [{"name": "get_time"}, {"name": "get_weather", "arguments": {}}]'),
        (MISTRAL, '[TOOL_CALLS] [{"name": "get_time"}] [TOOL_CALLS] [{"name": "get_weather"}]'),
        (MISTRAL_NAMED, "[TOOL_CALLS]get_time[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{}"),
        (JSON, '[{"name": "get_time"}, {"name": "get_weather", "arguments": ""}]'),
    ],
)
def test_parallel_calls_and_calls_without_arguments(format: ToolFormat, text: str) -> None:
    assert whole(format, text) == Read("", [("get_time", "{}", True), ("get_weather", "{}", True)])


def test_content_around_calls() -> None:
    call = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    assert whole(HERMES, f"Let me see.\n{call}\nDone.") == Read(
        "Let me see.\nDone.", [("get_time", "{}", True)]
    )
    assert whole(HERMES, "a < b <tool b <tool_cal") == Read("a < b <tool b <tool_cal")
    assert whole(MISTRAL, 'Hi [TOOL_CALLS][{"name": "get_time"}]').content == "Hi"


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (HERMES, "just text, with { braces } and \n\n"),
        (HERMES, "<tool_call>not json</tool_call>"),
        (HERMES, '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "get_time" "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "get_t'),
        (JSON, '{"answer": 5}'),
        (JSON, '{"name": "Bob", "age": 5}'),
        (JSON, "[1, 2, 3]"),
        (JSON, 'text first, then {"name": "get_time", "arguments": {}}'),
        (JSON, '{"name": "get_time", "arguments": 5}'),
        (JSON, '{"name": "get_time",}'),
        (JSON, '  { "a": [1, {"b": "]}"}], "c": nul'),
        (LLAMA3, '{"parameters": {"name": "get_time"}}'),
        (MISTRAL, "[TOOL_CALLS] no"),
        (MISTRAL_NAMED, "[TOOL_CALLS]unknown[ARGS]{}"),
        (MISTRAL_NAMED, "[TOOL_CALLS]get_weather"),
    ],
)
def test_what_is_no_call_is_content_as_it_stands(format: ToolFormat, text: str) -> None:
    assert whole(format, text) == Read(text)


def test_a_call_that_is_cut_is_not_whole() -> None:
    cut = '<tool_call>{"name": "get_time", "arguments": {"zone": "Li'
    assert whole(HERMES, cut) == Read("", [("get_time", '{"zone": "Li', False)])


def test_a_forced_call_that_is_cut_early_is_no_content() -> None:
    parser = ToolCallParser(JSON, TOOLS, forced=True)
    assert [*parser.feed('{"name":'), *parser.finish()] == []


def test_a_prompt_may_have_named_the_tool() -> None:
    parser = ToolCallParser(MISTRAL_NAMED, TOOLS, forced=True, begins_inside=True, named="get_time")
    assert parser.feed('{"a": 1}') == [CallBegin("get_time"), CallArguments('{"a": 1}'), CallEnd()]


def test_arguments_come_as_they_are_read() -> None:
    parser = ToolCallParser(HERMES, TOOLS)
    assert parser.feed('<tool_call>{"name": "get_time", "arg') == []
    assert parser.feed('uments": {"a"') == [CallBegin("get_time"), CallArguments('{"a"')]
    assert parser.feed(": 1}") == [CallArguments(": 1}")]
    assert parser.feed("}") == [CallEnd()]


def test_a_prompt_may_have_begun_the_call() -> None:
    text = '\n{"name": "get_time", "arguments": {}}'
    assert whole(HERMES, text, begins_inside=True) == Read("", [("get_time", "{}", True)])
    assert whole(MISTRAL, "[" + text + "]", begins_inside=True) == Read("", [("get_time", "{}", True)])


FRAGMENTS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<tool", "_call>", "{", "}", "[", "]",
        '"name"', '"arguments"', '"parameters"', ":", '"get_time"', '"get_weather"', "get_time", '"other"',
        '{"name": "get_time", "arguments": {"a": [1, "}"]}}', '{"name": "get_weather"}', '"a\\"b\\\\"', " ",
        "text", "1", "é😀", "\n", "null", ",", ";",
    ]
)  # fmt: skip


@pytest.mark.parametrize("format", ALL, ids=lambda one: one.name + one.named_before)
@given(fragments=st.lists(FRAGMENTS, max_size=14), data=st.data())
def test_every_way_to_cut_gives_the_same(format: ToolFormat, fragments: list[str], data: st.DataObject) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = whole(format, text)
    assert read(format, pieces) == expected
    assert read(format, list(text)) == expected
    if not expected.calls:
        assert expected.content == text


@given(
    arguments=st.dictionaries(
        st.text(max_size=5),
        st.recursive(st.none() | st.integers() | st.text(max_size=8), st.lists, max_leaves=5),
        max_size=4,
    ),
    ascii_only=st.booleans(),
)
def test_any_arguments_come_out_as_they_went_in(arguments: dict[str, object], ascii_only: bool) -> None:
    text = json.dumps({"name": "get_time", "arguments": arguments}, ensure_ascii=ascii_only)
    for format, written in ((HERMES, f"<tool_call>\n{text}\n</tool_call>"), (JSON, text), (LLAMA3, text)):
        ((name, read_arguments, is_whole),) = whole(format, written).calls
        assert (name, json.loads(read_arguments), is_whole) == ("get_time", arguments, True)
