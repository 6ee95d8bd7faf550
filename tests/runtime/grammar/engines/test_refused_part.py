"""The part of a schema that an engine refuses."""

import json
from typing import Any

import pytest

from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.grammar.engines.refused_part import MAX_REFUSED, MAX_TRIED, refused_part
from ramet.runtime.grammar.schema import SchemaPlan
from ramet.runtime.protocol import JsonSchema, UnsupportedConstraintError

BAD: dict[str, Any] = {"type": "string", "pattern": "(.*a.*){20}", "minLength": 1, "maxLength": 1000}


def standing() -> float:
    return 0.0


def is_bad(planned: SchemaPlan) -> bool:
    return "minLength" in planned.text


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (BAD, ""),
        ({"type": "object", "properties": {"a": {"type": "null"}, "b/c": BAD}}, "/properties/b~1c"),
        (
            {"type": "object", "properties": {"n": False, "b": {"items": BAD, "type": "array"}}},
            "/properties/b/items",
        ),
        ({"$defs": {"d": BAD}, "anyOf": [{"type": "null"}, {"$ref": "#/$defs/d"}]}, "/$defs/d"),
        (
            {
                "$defs": {"d": {"properties": {"d": {"$ref": "#/$defs/d"}, "b": BAD}, "type": "object"}},
                "$ref": "#/$defs/d",
            },
            "/$defs/d/properties/b",
        ),
    ],
)
def test_it_is_the_smallest(schema: Any, pointer: str) -> None:
    assert refused_part(json.dumps(schema), is_bad, standing) == pointer


def test_the_search_is_bounded() -> None:
    asked: list[SchemaPlan] = []

    def counted(planned: SchemaPlan) -> bool:
        asked.append(planned)
        return is_bad(planned)

    deep: dict[str, Any] = BAD
    for _ in range(20):
        deep = {"type": "array", "items": deep}
    assert refused_part(json.dumps(deep), counted, standing) == "/items" * MAX_REFUSED
    wide = {"type": "object", "properties": {**{f"p{i}": {} for i in range(100)}, "b": BAD}}
    asked.clear()
    assert refused_part(json.dumps(wide), counted, standing) == ""
    assert len(asked) == MAX_TRIED
    asked.clear()
    seconds = iter(range(100))
    assert refused_part(json.dumps(deep), counted, lambda: next(seconds) / 2) == "/items" * 2


@pytest.mark.parametrize("strict", [True, False])
def test_a_refusal_of_the_engine_names_it(tiny_router: EngineRouter, strict: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "array", "items": BAD}}}
    with pytest.raises(UnsupportedConstraintError) as error:
        tiny_router.compile(JsonSchema(json.dumps(schema), strict=strict))
    said = str(error.value)
    assert said.startswith(
        "the schema cannot be enforced at #/properties/b/items: it cannot be enforced by llg"
    )
    assert said.endswith("; simplify the schema there")
    long = {"type": "object", "properties": {"k": {"const": "x" * 200_000}}}
    with pytest.raises(UnsupportedConstraintError, match=r"at #/properties/k: a text of 200000 characters"):
        tiny_router.compile(JsonSchema(json.dumps(long), strict=strict))
