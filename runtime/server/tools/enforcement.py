"""What holds the model to the tools' schemas: a grammar, and what the prompt already begins for it."""

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ramet.runtime.protocol import (
    GrammarSpec,
    InvalidRequestError,
    JsonSchema,
    StructuralTag,
    UnsupportedConstraintError,
)
from ramet.runtime.server.tools.definitions import ToolChoice, ToolDefinition
from ramet.runtime.server.tools.formats import JSON, ToolFormat

_NO_JSON = r"([^\s{\[][\s\S]*)?"
"""Text that does not begin like an object or a list."""
ANSWER = "$answer"
"""What an answer that is no call is defined as; no tool can be called so."""


@dataclass(frozen=True, slots=True)
class Enforcement:
    """How one request's calls are written, and by what they are held."""

    format: ToolFormat
    grammar: GrammarSpec | None = None
    """None: nothing constrains the answer."""
    prompt_suffix: str = ""
    """What the prompt ends with, so that the answer can only be calls. Special tokens in it are meant."""
    forced: bool = False
    """The grammar lets nothing but calls through."""
    named: str | None = None
    """The tool whose name the prompt ends with: the answer is its arguments."""


def enforcement(
    choice: ToolChoice,
    format: ToolFormat,
    grammars: frozenset[str],
    wanted: GrammarSpec | None,
    control_tokens: Collection[str] = (),
) -> Enforcement:
    """``grammars``: kinds that the engine enforces. ``wanted``: the constraint that the request has besides.
    ``control_tokens``: texts of the model's own, which a grammar of text does not let through.

    A forced call is always constrained: the prompt ends with the format's marker, and the rest is JSON. Free
    text or a call (``auto``) is constrained where the engine can; where it cannot, tools that are ``strict``
    are refused.

    Raises:
        UnsupportedConstraintError: the engine cannot enforce what has to be.
        InvalidRequestError: the request has a constraint that leaves no room for calls.
    """
    if choice.forced:
        if wanted is not None:
            raise InvalidRequestError(
                "a tool has to be called, and another constraint leaves no room for it; remove one of them",
                field="tool_choice",
            )
        if "json_schema" not in grammars:
            raise UnsupportedConstraintError(
                "tool_choice: this engine cannot enforce a JSON Schema, so no call can be forced; use auto",
                field="tool_choice",
            )
        return _forced(choice, format)
    if wanted is not None:
        return _beside(choice, format, wanted)
    if "structural_tag" in grammars:
        return Enforcement(format, _text_or_calls(choice, format, control_tokens))
    strict = next((tool for tool in choice.tools if tool.strict), None)
    if strict is not None:
        raise UnsupportedConstraintError(
            f"tools: {strict.name} is strict, and with tool_choice auto this engine cannot enforce calls in "
            f"the model's format ({format.name}); leave strict out, or use tool_choice required",
            field="tools",
        )
    return Enforcement(format)


def calls_schema(choice: ToolChoice, format: ToolFormat) -> dict[str, Any]:
    """JSON Schema of one call, or of a list of them where the format has lists."""
    call = _any_call(choice, format)
    if not format.is_list or (format is JSON and not choice.parallel):
        return call
    definitions = call.pop("$defs", None)
    schema: dict[str, Any] = {"type": "array", "items": call, "minItems": 1}
    if not choice.parallel:
        schema["maxItems"] = 1
    return {**schema, "$defs": definitions} if definitions else schema


def _forced(choice: ToolChoice, format: ToolFormat) -> Enforcement:
    if format.named_before:
        if len(choice.tools) > 1:
            # A name that JSON does not hold cannot be chosen under a JSON Schema: the calls become a list.
            format = replace(format, named_before="", is_list=True)
        else:
            (tool,) = choice.tools
            return Enforcement(
                format,
                JsonSchema.of(tool.parameters),
                f"{format.begin}{tool.name}{format.named_before}",
                forced=True,
                named=tool.name,
            )
    suffix = format.begin + ("\n" if format.begin and not format.is_list else "")
    return Enforcement(format, JsonSchema.of(calls_schema(choice, format)), suffix, forced=True)


def _beside(choice: ToolChoice, format: ToolFormat, wanted: GrammarSpec) -> Enforcement:
    """A call, or an answer that conforms to what else was asked for: both have to be JSON."""
    if format.begin or not isinstance(wanted, JsonSchema):
        raise InvalidRequestError(
            f"tools and another constraint cannot be had together in this model's format ({format.name}); "
            "remove one of them, or use tool_choice none",
            field="tools",
        )
    call = _any_call(choice, format)
    answer = _under(json.loads(wanted.schema), f"#/$defs/{ANSWER}")
    schema = {"anyOf": [*call["anyOf"], {"$ref": f"#/$defs/{ANSWER}"}]}
    definitions = {**call.get("$defs", {}), ANSWER: answer}
    return Enforcement(format, replace_schema(wanted, {**schema, "$defs": definitions}))


def replace_schema(spec: JsonSchema, schema: dict[str, Any]) -> JsonSchema:
    """The same options over another schema."""
    return msgspec.structs.replace(spec, schema=JsonSchema.of(schema).schema)


def _text_or_calls(choice: ToolChoice, format: ToolFormat, control_tokens: Collection[str]) -> StructuralTag:
    """Free text in which every marker is followed by a valid call and the end marker; without an end marker,
    text and then calls; without any, either text that does not begin like JSON, or calls.
    """
    content: dict[str, Any]
    if format.begin and not format.end:
        text = {"type": "any_text", "excludes": [format.begin]}
        if format.begin in control_tokens:
            text = {"type": "any_text"}
        calls = _calls_at_the_end(choice, format, control_tokens)
        content = {"type": "or", "elements": [{"type": "sequence", "elements": [text, *calls]}, text]}
    elif format.begin:
        tag = {
            "begin": format.begin + "\n",
            "content": {"type": "json_schema", "json_schema": _any_call(choice, format)},
            "end": "\n" + format.end,
        }
        content = {
            "type": "triggered_tags",
            "triggers": [format.begin],
            "tags": [tag],
            "at_least_one": False,
            "stop_after_first": not choice.parallel,
        }
    else:
        content = {
            "type": "or",
            "elements": [
                {"type": "json_schema", "json_schema": calls_schema(choice, format)},
                {"type": "regex", "pattern": _NO_JSON},
            ],
        }
    return StructuralTag(json.dumps({"type": "structural_tag", "format": content}, ensure_ascii=False))


def _calls_at_the_end(
    choice: ToolChoice, format: ToolFormat, control_tokens: Collection[str]
) -> list[dict[str, Any]]:
    """From the first marker to the answer's end."""

    def marker(text: str) -> dict[str, Any]:
        if text in control_tokens:
            return {"type": "token", "token": text}
        return {"type": "const_string", "value": text}

    if not format.named_before:
        calls = {"type": "json_schema", "json_schema": calls_schema(choice, format)}
        return [marker(format.begin), _optional_space(), calls]
    named = [
        {
            "type": "sequence",
            "elements": [
                {"type": "const_string", "value": tool.name},
                marker(format.named_before),
                {"type": "json_schema", "json_schema": tool.parameters},
            ],
        }
        for tool in choice.tools
    ]
    call = {"type": "or", "elements": named}
    if not choice.parallel:
        return [marker(format.begin), call]
    more = {"type": "sequence", "elements": [marker(format.begin), call]}
    return [marker(format.begin), call, {"type": "star", "content": more}]


def _optional_space() -> dict[str, Any]:
    """Models write one before a list, or none."""
    return {"type": "optional", "content": {"type": "const_string", "value": " "}}


def _any_call(choice: ToolChoice, format: ToolFormat) -> dict[str, Any]:
    calls: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for tool in choice.tools:
        arguments, own = _embedded(tool)
        definitions |= own
        properties = {"name": {"const": tool.name}, format.arguments_key: arguments}
        calls.append(
            {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {"anyOf": calls}
    return {**schema, "$defs": definitions} if definitions else schema


def _embedded(tool: ToolDefinition) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters' schema where it stands inside another one, and the definitions that it needs there.

    Its references begin at its own root. Two tools may have definitions of the same name.
    """
    if not has_references(tool):
        return tool.parameters, {}
    root = f"#/$defs/{tool.name}"
    return {"$ref": root}, {tool.name: _under(tool.parameters, root)}


def has_references(tool: ToolDefinition) -> bool:
    """Then its schema stands among the definitions, under the tool's name."""
    return '"$ref"' in json.dumps(tool.parameters)


def _under(schema: Any, root: str) -> Any:
    """The schema with its references to its own root led to ``root``."""
    match schema:
        case dict():
            return {
                key: root + value[1:]
                if key == "$ref" and isinstance(value, str) and value.startswith("#")
                else _under(value, root)
                for key, value in schema.items()
            }
        case list():
            return [_under(item, root) for item in schema]
        case _:
            return schema
