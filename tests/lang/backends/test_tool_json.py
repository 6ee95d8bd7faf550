"""Calls in plain JSON: the schema that holds them, and the description."""

import json

from jsonschema import Draft202012Validator

from ramet.lang.backends.base import ToolSpec
from ramet.lang.backends.tool_json import calls_schema, describe

ADD = ToolSpec(
    name="add",
    description="Adds.",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
)
GO = ToolSpec(
    name="go",
    parameters={
        "type": "object",
        "properties": {"to": {"$ref": "#/$defs/Place"}},
        "required": ["to"],
        "$defs": {
            "Place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        },
    },
)


def test_schema_of_the_calls() -> None:
    schema = calls_schema([ADD, GO])
    assert [list(option["properties"]) for option in schema["anyOf"]] == [
        ["name", "arguments"],
        ["name", "arguments"],
        ["answer"],
    ]
    assert list(schema["$defs"]) == ["go.Place"]
    Draft202012Validator.check_schema(schema)
    valid = Draft202012Validator(schema).is_valid
    assert valid({"name": "add", "arguments": {"a": 1, "b": 2}})
    assert valid({"name": "go", "arguments": {"to": {"city": "Rome"}}})
    assert valid({"answer": "3"})
    for wrong in (
        {"name": "add", "arguments": {"a": 1}},
        {"name": "go", "arguments": {"to": {}}},
        {"name": "sub", "arguments": {}},
        {"answer": 3},
    ):
        assert not valid(wrong)


def test_calls_without_an_answer_and_an_answer_without_calls() -> None:
    must_call = Draft202012Validator(calls_schema([ADD], may_answer=False))
    assert not must_call.is_valid({"answer": "3"})
    must_answer = Draft202012Validator(calls_schema([]))
    assert must_answer.is_valid({"answer": "3"})
    assert not must_answer.is_valid({"name": "add", "arguments": {"a": 1, "b": 2}})


def test_the_description_is_json_a_line() -> None:
    lines = describe([ADD, GO]).splitlines()
    assert [json.loads(line)["name"] for line in lines[1:3]] == ["add", "go"]
