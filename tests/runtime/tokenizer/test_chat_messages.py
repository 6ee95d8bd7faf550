"""Messages as callers send them, brought into one form, or refused by the name of what is wrong."""

import enum
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.tokenizer.chat_messages import ROLES, ToolArguments, checked_copy, normalise_messages

USER: dict[str, Any] = {"role": "user", "content": "hi"}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def call(arguments: object) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def arguments_of(message: Mapping[str, Any]) -> Any:
    return normalise_messages([message])[0]["tool_calls"][0]["function"]["arguments"]


class TestContents:
    @pytest.mark.parametrize("role", ROLES)
    def test_text_parts_are_joined(self, role: str) -> None:
        parts = [{"type": "text", "text": "You are "}, "very ", {"type": "text", "text": "terse."}]
        assert normalise_messages([{"role": role, "content": parts}]) == [
            {"role": role, "content": "You are very terse."}
        ]
        assert normalise_messages([{"role": role, "content": []}])[0]["content"] == ""

    @pytest.mark.parametrize("role", ["assistant", "tool"])
    @pytest.mark.parametrize("extra", [{"content": None}, {}])
    def test_null_content_is_empty(self, role: str, extra: dict[str, Any]) -> None:
        assert normalise_messages([{"role": role, **extra}]) == [{"role": role, "content": ""}]

    def test_other_fields_stay_and_null_ones_go(self) -> None:
        message = {**USER, "name": "ann", "flag": False, "nothing": None, "nested": {"x": None}}
        assert normalise_messages((message,)) == [
            {"role": "user", "content": "hi", "name": "ann", "flag": False, "nested": {"x": None}}
        ]

    def test_any_mapping_is_a_message(self) -> None:
        assert normalise_messages([MappingProxyType(USER)]) == [USER]

    @given(
        st.lists(
            st.fixed_dictionaries({"content": TEXT, "extra": st.dictionaries(TEXT, JSON, max_size=2)}),
            min_size=1,
            max_size=2,
        )
    )
    def test_the_result_is_a_deep_copy(self, drawn: list[dict[str, Any]]) -> None:
        messages = [{"role": "user", **message} for message in drawn]
        before = json.dumps(messages)
        result = normalise_messages(messages)
        assert result == messages
        for message in result:
            message["extra"].clear()
            message["content"] += "!"
        assert json.dumps(messages) == before

    @pytest.mark.parametrize(
        ("messages", "field", "said"),
        [
            ([], "messages", "empty"),
            (None, "messages", "None"),
            ("hi", "messages", "'hi'"),
            (b"hi", "messages", "b'hi'"),
            ({"role": "user", "content": "x"}, "messages", "list"),
            (["hi"], "messages[0]", "'hi'"),
            ([["role", "user"]], "messages[0]", "object"),
            ([{"content": "x"}], "messages[0].role", "None"),
            ([USER, {"role": "banana", "content": "x"}], "messages[1].role", "'banana'"),
            ([{"role": "User", "content": "x"}], "messages[0].role", "one of system, developer, user"),
            ([{"role": ["user"], "content": "x"}], "messages[0].role", "['user']"),
            ([{"role": "user"}], "messages[0].content", "missing"),
            ([{"role": "user", "content": None}], "messages[0].content", "missing"),
            ([{"role": "user", "content": 7}], "messages[0].content", "7"),
            ([{"role": "user", "content": {"type": "text"}}], "messages[0].content", "list of text parts"),
            ([{"role": "user", "content": ["x", 7]}], "messages[0].content[1]", "7"),
            (
                [{"role": "user", "content": [{"type": "image_url"}]}],
                "messages[0].content[0].type",
                "'image_url'",
            ),
            ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type", "None"),
            ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "None"),
            ([{"role": "user", "content": "a\ud800"}], "messages[0].content", "U+D800 at character 1"),
            ([{"role": "user", "content": "a", "name": "\udfff"}], "messages[0].name", "U+DFFF"),
            ([{"role": "user", "content": "a", "\udfff": 1}], "messages[0]", "U+DFFF"),
            ([{"role": "user", "content": "a", "tool_calls": [{}]}], "messages[0].tool_calls", "assistant"),
            ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls", "list"),
            ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0]", "function"),
            ([{"role": "assistant", "tool_calls": ["f"]}], "messages[0].tool_calls[0]", "function"),
            (
                [{"role": "assistant", "tool_calls": [{"function": {"name": 3}}]}],
                "messages[0].tool_calls[0]",
                "name",
            ),
            ([call(3)], "messages[0].tool_calls[0].function.arguments", "3"),
            ([call([])], "messages[0].tool_calls[0].function.arguments", "JSON object as text"),
            ([{"role": "user", "content": b"x"}], "messages[0].content", "b'x'"),
            ([{**USER, "file": Path("/x")}], "messages[0].file", "Path"),
            ([{**USER, "when": [datetime(2026, 1, 2)]}], "messages[0].when[0]", "datetime"),
            ([call({"x": {1}})], "messages[0].tool_calls[0].function.arguments.x", "{1}"),
        ],
    )
    def test_what_is_wrong_is_named(self, messages: Any, field: str, said: str) -> None:
        with pytest.raises(InvalidRequestError) as error:
            normalise_messages(messages)
        assert error.value.field == field
        assert str(error.value).startswith(field + " ")
        assert said in str(error.value)

    def test_a_long_value_is_shown_in_part(self) -> None:
        with pytest.raises(InvalidRequestError) as error:
            normalise_messages([{"role": "x" * 10_000, "content": ""}])
        assert len(str(error.value)) < 250

    def test_nested_without_end(self) -> None:
        deep: Any = "x"
        for _ in range(5000):
            deep = [deep]
        endless: list[Any] = []
        endless.append(endless)
        for extra in (deep, endless):
            with pytest.raises(InvalidRequestError, match=r"^messages is nested more than 200 levels deep"):
                normalise_messages([{**USER, "extra": extra}])


class TestToolCalls:
    @pytest.mark.parametrize("written", ['{"city": "Lima", "n": [1.5]}', {"city": "Lima", "n": [1.5]}])
    def test_arguments_serve_as_mapping_and_as_text(self, written: object) -> None:
        arguments = arguments_of(call(written))
        text = '{"city": "Lima", "n": [1.5]}'
        assert isinstance(arguments, ToolArguments)
        assert dict(arguments) == {"city": "Lima", "n": [1.5]}
        assert (str(arguments), f"{arguments}") == (text, text)
        assert ("<" + arguments, arguments + ">") == ("<" + text, text + ">")
        assert json.dumps(arguments) == text

    def test_their_text_stays_as_it_was_written(self) -> None:
        assert str(arguments_of(call('{ "é":1 }'))) == '{ "é":1 }'
        assert str(arguments_of(call({"é": None}))) == '{"é": null}'

    @pytest.mark.parametrize("nothing", [None, "", {}])
    def test_none_are_an_empty_object(self, nothing: object) -> None:
        arguments = arguments_of(call(nothing))
        assert (dict(arguments), str(arguments)) == ({}, "{}")

    @pytest.mark.parametrize(
        "text",
        [
            "{city",
            "3",
            "null",
            '["x"]',
            '"x"',
            " ",
            "[" * 100_000,
            '{"x": 1' + "0" * 5000 + "}",
            # Half of a surrogate pair: a template that writes the parsed value could not be tokenised.
            r'{"x": "\ud83d"}',
            r'{"\ud83d": 1}',
        ],
    )
    def test_what_is_no_object_stays_text(self, text: str) -> None:
        assert arguments_of(call(text)) == text
        assert isinstance(arguments_of(call(text)), str)

    def test_escaped_pairs_are_characters(self) -> None:
        assert arguments_of(call(r'{"x": "\ud83d\ude42"}'))["x"] == "🙂"

    def test_every_call_is_parsed_and_other_fields_stay(self) -> None:
        message = call('{"a": 1}')
        message["tool_calls"] += call(None)["tool_calls"]
        first, second = normalise_messages([message])[0]["tool_calls"]
        assert (first["id"], first["type"], first["function"]["name"]) == ("1", "function", "f")
        assert (first["function"]["arguments"], second["function"]["arguments"]) == ({"a": 1}, {})
        assert message["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
        assert normalise_messages([{"role": "assistant", "tool_calls": []}])[0]["tool_calls"] == []


class Colour(enum.StrEnum):
    RED = "red"


OldRole = enum.Enum("OldRole", {"USER": "user"}, type=str)
"""Unlike a StrEnum, str() of it is not its text."""


class Size(enum.IntEnum):
    LARGE = 3


class TestCheckedCopy:
    @given(JSON)
    def test_json_comes_back_equal(self, value: Any) -> None:
        copy = checked_copy(value, "x")
        assert copy == value
        assert json.dumps(copy) == json.dumps(value)

    def test_what_comes_back_has_plain_types_only(self) -> None:
        value = {1: (Colour.RED, OldRole.USER, Size.LARGE), None: MappingProxyType({"a": 1.5})}
        copy = checked_copy(value, "x")
        assert copy == {"1": ["red", "user", 3], "None": {"a": 1.5}}
        assert [type(item) for item in copy["1"]] == [str, str, int]
        assert type(copy["None"]) is dict

    def test_a_place_deep_inside_is_named(self) -> None:
        with pytest.raises(InvalidRequestError, match=r"^tools\[0\]\.a\[1\]\.b is <object") as error:
            checked_copy({"a": [0, {"b": object()}]}, "tools[0]")
        assert error.value.field == "tools[0].a[1].b"
        with pytest.raises(InvalidRequestError, match=r"^x\.a has the lone surrogate U\+D800"):
            checked_copy({"a": {"\ud800": 1}}, "x")
