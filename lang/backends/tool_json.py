"""Calls of tools in plain JSON, for models whose chat template has no form of its own for them."""

import json
from collections.abc import Sequence
from typing import Any

from ramet.lang.backends.base import ToolSpec


def describe(tools: Sequence[ToolSpec]) -> str:
    """What to tell a model of the tools, in its system message."""
    lines = [
        json.dumps(
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            ensure_ascii=False,
            separators=(",", ":"),
        )
        for tool in tools
    ]
    return (
        "You may call these functions:\n" + "\n".join(lines) + "\n"
        'To call one, answer with JSON: {"name": "...", "arguments": {...}}. You are then told its result.\n'
        'To give your answer, answer with JSON: {"answer": "..."}.'
    )


def calls_schema(tools: Sequence[ToolSpec], *, may_answer: bool = True) -> dict[str, Any]:
    """JSON Schema of a call of one of the tools, or of an answer."""
    alternatives: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for tool in tools:
        parameters = _with_definitions_of(tool.name, tool.parameters)
        definitions |= parameters.pop("$defs", {})
        alternatives.append(_object(name={"const": tool.name}, arguments=parameters))
    if may_answer:
        alternatives.append(_object(answer={"type": "string"}))
    schema: dict[str, Any] = {"anyOf": alternatives}
    return {**schema, "$defs": definitions} if definitions else schema


def _with_definitions_of(prefix: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its definitions under names of its own, so that schemas can be put together."""

    def renamed(value: Any) -> Any:
        match value:
            case dict():
                return {
                    key: item.replace("#/$defs/", f"#/$defs/{prefix}.") if key == "$ref" else renamed(item)
                    for key, item in value.items()
                }
            case list():
                return [renamed(item) for item in value]
            case _:
                return value

    changed: dict[str, Any] = renamed(schema)
    if "$defs" in changed:
        changed["$defs"] = {f"{prefix}.{key}": item for key, item in changed["$defs"].items()}
    return changed


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
