"""/openapi.json: the requests' bodies and the answers as their records say them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI

from ramet.runtime.protocol.wire import ErrorBody

Records = tuple[type[msgspec.Struct], ...]
"""What a body's fields are spread over; none: there is no body."""


class Answer(msgspec.Struct, frozen=True):
    """What a route answers with where all is well."""

    record: type[msgspec.Struct] | None = None
    """None: any JSON object, or what ``kind`` says."""
    other: type[msgspec.Struct] | None = None
    """What it may be instead."""
    kind: str = "object"
    """JSON's type of an answer without a record."""
    media_type: str = "application/json"
    """Empty: there is nothing in it."""
    streams: bool = False
    """With ``stream`` it is server-sent events."""
    query: tuple[str, ...] = ()
    """Parameters behind a question mark, each true or false."""

    @property
    def records(self) -> list[type[msgspec.Struct]]:
        return [one for one in (self.record, self.other) if one is not None]


PLAIN_ANSWER = Answer()
_ANTHROPIC_ERROR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            "required": ["type", "message"],
        },
    },
    "required": ["type", "error"],
}
_ANTHROPIC_ROUTES = "/v1/messages"
_OPEN_ENDED = ("4XX", "5XX")

_REFERENCE = "#/components/schemas/{name}"


def described_body(records: Records) -> dict[str, Any] | None:
    """What FastAPI adds to a route's description."""
    if not records:
        return None
    schema = {"$ref": _REFERENCE.format(name=body_name(records))}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def body_name(records: Records) -> str:
    """The body's name among the schemas: its first record's, with ``Body`` where there are several."""
    return records[0].__name__ if len(records) == 1 else f"{records[0].__name__}Body"


def with_records(app: FastAPI, bodies: Sequence[Records], answers: Mapping[str, Answer]) -> None:
    """Makes the application's description hold the schemas of these bodies, and the answers by route, or by
    method and route; routes without one answer with some JSON object.
    """
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        described = describe()
        schemas = described.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(_components(bodies, [record for one in answers.values() for record in one.records]))
        for path, operations in described["paths"].items():
            for method, operation in operations.items():
                answer = answers.get(f"{method.upper()} {path}", answers.get(path, PLAIN_ANSWER))
                _complete(operation, path, answer)
        return described

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(operation: dict[str, Any], path: str, answer: Answer) -> None:
    """Adds what can be answered, and what the path has in braces."""
    schema: dict[str, Any] = {"type": answer.kind}
    if answer.media_type != "application/json":
        schema = {"type": "string"}
    elif records := answer.records:
        schemas = [{"$ref": _REFERENCE.format(name=one.__name__)} for one in records]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    content: dict[str, Any] = {answer.media_type: {"schema": schema}} if answer.media_type else {}
    if answer.streams:
        content["text/event-stream"] = {"schema": {}}
    anthropic = path.startswith(_ANTHROPIC_ROUTES)
    error = _ANTHROPIC_ERROR if anthropic else {"$ref": _REFERENCE.format(name=ErrorBody.__name__)}
    operation["responses"] = {
        "200": {"description": "What was asked for.", **({"content": content} if content else {})},
        **{
            status: {"description": "What went wrong.", "content": {"application/json": {"schema": error}}}
            for status in _OPEN_ENDED
        },
    }
    named: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    named += [{"name": name, "in": "query", "schema": {"type": "boolean"}} for name in answer.query]
    if named:
        operation["parameters"] = named


def _components(bodies: Sequence[Records], answers: Sequence[type[msgspec.Struct]]) -> dict[str, Any]:
    every = [*[record for records in bodies for record in records], *answers, ErrorBody]
    _, components = msgspec.json.schema_components(every, ref_template=_REFERENCE)
    schemas: dict[str, Any] = dict(components)
    for records in bodies:
        if len(records) > 1:
            schemas[body_name(records)] = _joined([components[record.__name__] for record in records])
    return schemas


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One object with the properties of all."""
    return {
        "type": "object",
        "properties": {name: value for part in parts for name, value in part["properties"].items()},
        "required": [name for part in parts for name in part.get("required", ())],
        "additionalProperties": False,
    }
