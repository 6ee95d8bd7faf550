"""/openapi.json: the requests' bodies as their records say them."""

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI

Records = tuple[type[msgspec.Struct], ...]
"""What a body's fields are spread over; none: there is no body."""

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


def with_records(app: FastAPI, bodies: Sequence[Records]) -> None:
    """Makes the application's description hold the schemas of these bodies."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        described = describe()
        described.setdefault("components", {}).setdefault("schemas", {}).update(_components(bodies))
        return described

    app.openapi = openapi  # type: ignore[method-assign]


def _components(bodies: Sequence[Records]) -> dict[str, Any]:
    every = [record for records in bodies for record in records]
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
