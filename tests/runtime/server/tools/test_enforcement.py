"""What holds calls to their schemas: checked with jsonschema as the judge."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ramet.runtime.protocol import (
    GrammarSpec,
    InvalidRequestError,
    JsonSchema,
    Regex,
    StructuralTag,
    UnsupportedConstraintError,
)
from ramet.runtime.server.tools.definitions import ToolChoice, tool_choice
from ramet.runtime.server.tools.enforcement import enforcement
from ramet.runtime.server.tools.formats import HERMES, JSON, LLAMA3, MISTRAL, MISTRAL_NAMED

ALL = frozenset(("json_schema", "structural_tag"))
NODE = {"type": "object", "properties": {"next": {"$ref": "#"}, "value": {"$ref": "#/$defs/value"}}}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {**NODE, "$defs": {"value": {"type": "integer"}}}},
    },
    {
        "type": "function",
        "function": {"name": "g", "parameters": {**NODE, "$defs": {"value": {"type": "string"}}}},
    },
]


def choice(
    wanted: object = "required", *, parallel: bool | None = None, tools: list[Any] | None = None
) -> ToolChoice:
    return tool_choice(tools or TOOLS, wanted, parallel=parallel)


def validator(grammar: GrammarSpec | None) -> Draft202012Validator:
    assert isinstance(grammar, JsonSchema)
    schema = json.loads(grammar.schema)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def call(name: str, arguments: object, key: str = "arguments") -> dict[str, object]:
    return {"name": name, key: arguments}


def test_each_tool_is_held_to_its_own_definitions() -> None:
    held = enforcement(choice(), HERMES, ALL, None)
    assert held.prompt_suffix == "<tool_call>\n"
    judge = validator(held.grammar)
    assert judge.is_valid(call("f", {"value": 1, "next": {"value": 2}}))
    assert judge.is_valid(call("g", {"value": "x", "next": {"value": "y"}}))
    for wrong in (
        call("f", {"value": "x"}),
        call("f", {"next": {"value": "x"}}),
        call("g", {"value": 1}),
        call("h", {}),
    ):
        assert not judge.is_valid(wrong)
    assert not judge.is_valid({"name": "f"})


def test_each_format_has_its_own_form() -> None:
    assert validator(enforcement(choice(), LLAMA3, ALL, None).grammar).is_valid(call("f", {}, "parameters"))
    mistral = enforcement(choice(), MISTRAL, ALL, None)
    assert mistral.prompt_suffix == "[TOOL_CALLS]"
    assert validator(mistral.grammar).is_valid([call("f", {}), call("g", {})])
    assert not validator(mistral.grammar).is_valid([])
    single = validator(enforcement(choice(parallel=False), MISTRAL, ALL, None).grammar)
    assert single.is_valid([call("f", {})])
    assert not single.is_valid([call("f", {}), call("f", {})])
    assert validator(enforcement(choice(), JSON, ALL, None).grammar).is_valid([call("f", {})])
    one = validator(enforcement(choice(parallel=False), JSON, ALL, None).grammar)
    assert one.is_valid(call("f", {}))
    named = enforcement(choice({"type": "function", "function": {"name": "f"}}), MISTRAL_NAMED, ALL, None)
    assert (named.prompt_suffix, named.named) == ("[TOOL_CALLS]f[ARGS]", "f")
    assert validator(named.grammar).is_valid({"value": 3})
    several = enforcement(choice(), MISTRAL_NAMED, ALL, None)
    assert (several.prompt_suffix, several.named) == ("[TOOL_CALLS]", None)
    assert validator(several.grammar).is_valid([call("g", {})])


def test_free_text_or_a_call() -> None:
    for format in (HERMES, JSON, LLAMA3):
        held = enforcement(choice("auto"), format, ALL, None)
        assert isinstance(held.grammar, StructuralTag)
        assert json.loads(held.grammar.spec)["type"] == "structural_tag"
        assert held.prompt_suffix == ""
        assert enforcement(choice("auto"), format, frozenset(), None).grammar is None


def test_strict_tools_need_enforcement() -> None:
    strict = [{"type": "function", "function": {"name": "f", "strict": True}}]
    for format, grammars in ((HERMES, frozenset(("json_schema",))), (MISTRAL, ALL)):
        with pytest.raises(UnsupportedConstraintError, match="f is strict"):
            enforcement(choice("auto", tools=strict), format, grammars, None)
    assert enforcement(choice(tools=strict), MISTRAL, ALL, None).grammar is not None
    with pytest.raises(UnsupportedConstraintError, match="no call can be forced"):
        enforcement(choice(), HERMES, frozenset(), None)


def test_a_call_or_an_answer_of_a_schema() -> None:
    answer = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x"}},
        "required": ["a"],
        "$defs": {"x": {"const": 5}},
    }
    held = enforcement(choice("auto"), JSON, ALL, JsonSchema.of(answer))
    judge = validator(held.grammar)
    assert judge.is_valid({"a": 5})
    assert judge.is_valid(call("f", {"value": 1}))
    assert not judge.is_valid({"a": 6})
    for wanted, format, wish in (
        (JsonSchema.of(answer), HERMES, "auto"),
        (Regex("a"), JSON, "auto"),
        (JsonSchema.of(answer), JSON, "required"),
    ):
        with pytest.raises(InvalidRequestError, match="remove one"):
            enforcement(choice(wish), format, ALL, wanted)
