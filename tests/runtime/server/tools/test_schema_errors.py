"""Whose schema is wrong, and where in it, whatever it was made into."""

from typing import Any

import pytest

from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.grammar.engines.lazy import KINDS
from ramet.runtime.protocol import GrammarSpec, InvalidRequestError, JsonSchema, RequestFailedError
from ramet.runtime.server.tools.definitions import ToolChoice, tool_choice
from ramet.runtime.server.tools.enforcement import Enforcement, enforcement
from ramet.runtime.server.tools.formats import FORMATS, JSON, MISTRAL_NAMED, ToolFormat
from ramet.runtime.server.tools.schema_errors import CHAT_PLACE, RESPONSES_PLACE, about_tools
from ramet.runtime.tokenizer import FastTokenizer
from tests.runtime.engine.builders import byte_spec

GOOD = {"type": "object", "properties": {"x": {"type": "string"}}}
BAD = [
    ({"type": "object", "properties": {"x": {"type": "strin"}}}, "#/properties/x/type"),
    (
        {"type": "object", "properties": {"x": {"type": "string", "pattern": "(?<=a)b"}}},
        "#/properties/x/pattern",
    ),
    (
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"pattern": "("}}},
        "#/$defs/b/pattern",
    ),
    ({"type": "object", "properties": {"x": {"$ref": "#/$defs/no"}}}, "'#/$defs/no'"),
]
NAMED = {"type": "function", "function": {"name": "b"}}


@pytest.fixture(scope="module")
def router() -> EngineRouter:
    return EngineRouter(FastTokenizer(byte_spec()))


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def refusal(
    router: EngineRouter, choice: ToolChoice, format: ToolFormat, wanted: GrammarSpec | None = None
) -> tuple[InvalidRequestError, Enforcement]:
    enforced = enforcement(choice, format, KINDS, wanted)
    assert enforced.grammar is not None
    with pytest.raises(InvalidRequestError) as caught:
        router.compile(enforced.grammar)
    return caught.value, enforced


@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=str)
@pytest.mark.parametrize("format", [*FORMATS.values(), MISTRAL_NAMED], ids=lambda one: one.name)
def test_a_tools_schema_is_named(router: EngineRouter, format: ToolFormat, choice: object) -> None:
    for parameters, pointer in BAD:
        chosen = tool_choice([tool("a", GOOD), tool("b", parameters), tool("c", GOOD)], choice, parallel=True)
        error, enforced = refusal(router, chosen, format)
        told = about_tools(error, chosen.tools, enforced, CHAT_PLACE)
        assert type(told) is type(error)
        assert isinstance(told, InvalidRequestError)
        assert told.field == "tools[1].function.parameters"
        message = str(told)
        assert message.startswith("tools[1].function.parameters: ")
        assert pointer in message
        assert not any(word in message for word in ("structural tag", "anyOf", "elements", "#/format"))
        assert message.count("#/$defs") == pointer.count("#/$defs")


def test_the_place_among_all_tools_of_the_request(router: EngineRouter) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    chosen = tool_choice([tool("a", GOOD), tool("b", BAD[0][0])], allowed, parallel=True)
    error, enforced = refusal(router, chosen, JSON)
    told = about_tools(error, chosen.tools, enforced, RESPONSES_PLACE)
    assert isinstance(told, InvalidRequestError)
    assert told.field == "tools[1].parameters"


def test_the_constraint_beside_tools_is_named_as_itself(router: EngineRouter) -> None:
    chosen = tool_choice([tool("answer", GOOD)], "auto", parallel=True)
    wanted = JsonSchema.of({"type": "object", "properties": {"y": {"type": "strin"}}})
    error, enforced = refusal(router, chosen, JSON, wanted)
    told = about_tools(error, chosen.tools, enforced, CHAT_PLACE)
    assert isinstance(told, InvalidRequestError)
    assert told.field == "response_format"
    assert str(told).startswith("#/properties/y/type")


def test_errors_that_came_without_a_field(router: EngineRouter) -> None:
    """As those that only compiling finds do."""
    chosen = tool_choice([tool("a", GOOD), tool("b", BAD[0][0])], "auto", parallel=True)
    error, enforced = refusal(router, chosen, JSON)
    told = about_tools(InvalidRequestError(str(error)), chosen.tools, enforced, CHAT_PLACE)
    assert isinstance(told, InvalidRequestError)
    assert told.field == "tools[1].function.parameters"


def test_other_errors_stay(router: EngineRouter) -> None:
    chosen = tool_choice([tool("a", GOOD), tool("b", GOOD)], "auto", parallel=True)
    enforced = enforcement(chosen, JSON, KINDS, None)
    others = (
        InvalidRequestError("#/x is y", field="prompts"),
        InvalidRequestError("x"),
        RequestFailedError("y"),
    )
    for error in others:
        assert about_tools(error, chosen.tools, enforced, CHAT_PLACE) is error
    grammars = InvalidRequestError("it takes too long", field="grammar")
    assert about_tools(grammars, (), None, CHAT_PLACE) is grammars
    together = about_tools(grammars, chosen.tools, enforced, CHAT_PLACE)
    assert isinstance(together, InvalidRequestError)
    assert together.field == "tools"
