"""What is written: the plain dialect, and nothing else."""

import json
from random import Random
from typing import Any

import pytest

from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.grammar.schema import plan
from ramet.runtime.grammar.schema.engines import subschemas
from ramet.runtime.protocol import JsonSchema, UnsupportedConstraintError
from tests.runtime.grammar.engines.walking import TINY
from tests.runtime.grammar.schema.random_schemas import random_schema

DIALECT = {
    "$defs", "$ref", "additionalProperties", "allOf", "anyOf", "const", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "items", "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength",
    "minProperties", "minimum", "multipleOf", "pattern", "patternProperties", "prefixItems", "properties",
    "required", "type",
}  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_only_the_dialect_is_written(seed: int) -> None:
    try:
        root = json.loads(plan(random_schema(Random(seed))).text)
    except UnsupportedConstraintError:
        return
    for pointer, part in subschemas(root):
        assert part.keys() <= DIALECT
        assert "$defs" not in part or pointer == ""
        if "$ref" in part:
            assert str(part["$ref"]).removeprefix("#/$defs/") in root["$defs"]
        if "anyOf" in part or "$ref" in part:
            assert part.keys() <= {"$defs", "anyOf", "$ref"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, {}),
        ({"type": ["null", "string"]}, {"type": ["null", "string"]}),
        ({"enum": [None, True, False]}, {"type": ["null", "boolean"]}),
        ({"type": "array", "items": False}, {"type": "array", "items": False}),
        ({"type": "integer", "multipleOf": 1.5}, {"type": "integer", "multipleOf": 3}),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, {"type": "null"}),
    ],
)
def test_spelling(schema: Any, expected: Any) -> None:
    assert json.loads(plan(schema).text) == expected


def test_equal_schemas_share_their_text() -> None:
    first = plan({"minimum": 1, "type": "integer", "title": "x"})
    assert first.text == plan({"type": "integer", "minimum": 1.0, "description": "y"}).text
    ab, ba = ({"type": "object", "properties": {name: {} for name in names}} for names in ("ab", "ba"))
    assert plan(ab).text != plan(ba).text


def test_a_chain_of_references_is_followed_up_to_the_first_that_refers_to_itself() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/b"}}, "additionalProperties": False}
    definitions = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": node}
    written = json.loads(plan({"$defs": definitions, "$ref": "#/$defs/a"}).text)
    assert written["$ref"] in {f"#/$defs/{name}" for name in written["$defs"]}
    straight = json.loads(plan({"$defs": {**definitions, "c": {"type": "null"}}, "$ref": "#/$defs/a"}).text)
    assert straight == {"type": "null"}


@pytest.mark.parametrize(
    "value", [0.07, 0.0003, 1e-11, 1e-20, 1e-300, 5e-324, 1e10, 1e17, 1e300, 70_000_000_000]
)
def test_multiples_beyond_the_digits_of_an_engine_are_refused_by_their_place(value: float) -> None:
    planned = plan({"type": "object", "properties": {"k": {"type": "number", "multipleOf": value}}})
    (missing,) = planned.unsupported
    assert missing.location == "#/properties/k/multipleOf"
    assert str(float(value)) in missing.why
    assert "strict=false" in missing.remedy
    assert "multipleOf" not in planned.text


@pytest.mark.parametrize("value", [1, 7, 0.01, 0.7, 2.5, 0.25, 1e-5, 1e-10, 1_000_000_000, 0.0004])
def test_other_multiples_are_not(value: float) -> None:
    planned = plan({"type": "number", "multipleOf": value})
    assert planned.exact
    assert EngineRouter(TINY).compile(JsonSchema(planned.source))
