"""Tools and the choice among them."""

from typing import Any

import pytest

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.tools.definitions import tool_choice

F = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
G = {"type": "function", "function": {"name": "g"}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


@pytest.mark.parametrize(
    ("choice", "names", "forced", "parallel"),
    [
        (None, {"f", "g"}, False, True),
        ("auto", {"f", "g"}, False, True),
        ("none", set(), False, True),
        ("required", {"f", "g"}, True, True),
        (named("g"), {"g"}, True, False),
        (allowed("auto", "f"), {"f"}, False, True),
        (allowed("required", "f", "g"), {"f", "g"}, True, True),
    ],
)
def test_choices(choice: object, names: set[str], forced: bool, parallel: bool) -> None:
    chosen = tool_choice([F, G], choice, parallel=None)
    assert (set(chosen.names), chosen.forced, chosen.parallel) == (names, forced, parallel)


def test_definitions() -> None:
    first, second = tool_choice([F, G], None, parallel=False).tools
    assert (first.strict, second.strict) == (True, False)
    assert second.parameters == {"type": "object", "properties": {}}
    assert tool_choice(None, None, parallel=None).tools == ()
    assert not tool_choice([F], None, parallel=False).parallel


@pytest.mark.parametrize(
    ("tools", "choice", "field"),
    [
        ([], "required", "tool_choice"),
        ([F], named("x"), "tool_choice.function.name"),
        ([], named("f"), "tool_choice.function.name"),
        ([F], "any", "tool_choice"),
        ([F], {"type": "function"}, "tool_choice"),
        ([F], allowed("auto"), "tool_choice.allowed_tools.tools"),
        ([F], allowed("auto", "x"), "tool_choice.allowed_tools.tools[0].function.name"),
        ([F], allowed("maybe", "f"), "tool_choice"),
        ([F, F], None, "tools[1].function.name"),
        (["f"], None, "tools[0].type"),
        ([{"type": "web_search"}], None, "tools[0].type"),
        ([{"type": "function"}], None, "tools[0].function"),
        ([named("a b")], None, "tools[0].function.name"),
        ([named("x" * 65)], None, "tools[0].function.name"),
        ([{"function": {"name": "f", "parameters": "x"}}], None, "tools[0].function.parameters"),
        ([{"function": {"name": "f", "strict": 1}}], None, "tools[0].function.strict"),
        ([named(f"f{i}") for i in range(300)], None, "tools"),
    ],
)
def test_what_is_refused(tools: list[Any], choice: object, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        tool_choice(tools, choice, parallel=None)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({}, {"type": "object"}),
        ({"properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
        ({"type": ["object", "null"], "required": ["a"]}, {"type": "object", "required": ["a"]}),
        ({"type": "object"}, {"type": "object"}),
    ],
)
def test_arguments_are_an_object(given: dict[str, Any], held: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": given}}
    (made,) = tool_choice([tool], "auto", parallel=None).tools
    assert made.parameters == held
    assert made.source["function"]["parameters"] == given


def test_arguments_of_another_type_are_refused() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}
    with pytest.raises(InvalidRequestError, match="the arguments of a call are an object") as caught:
        tool_choice([tool], "auto", parallel=None)
    assert caught.value.field == "tools[0].function.parameters.type"
