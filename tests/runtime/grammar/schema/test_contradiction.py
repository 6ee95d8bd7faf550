"""Schemas that no value satisfies: the part that is to blame is named, and no other."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.schema import plan
from ramet.runtime.protocol import UnsupportedConstraintError

NEVER: dict[str, Any] = {"type": "integer", "minimum": 3, "maximum": 2}
TREE = {
    "$defs": {
        "n": {
            "type": "object",
            "properties": {"k": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1}},
            "required": ["k"],
        }
    },
    "$ref": "#/$defs/n",
}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (False, "no value can satisfy the schema: it is false; give a schema that allows something"),
        (NEVER, "at # its conditions contradict each other (type, minimum, maximum); correct one of them"),
        ({"enum": []}, "at # its enum allows nothing; correct it"),
        ({"not": {}}, "at # its not allows nothing"),
        ({"anyOf": [NEVER, NEVER]}, "at # its anyOf allows nothing"),
        ({"title": "t", "allOf": [NEVER, True]}, "at #/allOf/0 its conditions contradict"),
        (
            {"type": "object", "properties": {"k": {"allOf": [{"type": "string"}, {"type": "null"}]}}},
            None,
        ),
        (
            {
                "type": "object",
                "properties": {"k": {"allOf": [{"type": "string"}, {"type": "null"}]}},
                "required": ["k"],
            },
            "at #/properties/k its allOf allows nothing",
        ),
        (
            {
                "type": "object",
                "properties": {
                    "innocent": False,
                    "o": NEVER,
                    "a": {"type": "array", "items": NEVER, "minItems": 1},
                },
                "required": ["a"],
            },
            "at #/properties/a/items its conditions contradict",
        ),
        (
            {"type": "object", "required": ["a", "b"], "properties": {"a": NEVER, "b": NEVER}},
            "at #/properties/a its",
        ),
        (
            {"type": "object", "required": ["a"], "additionalProperties": False},
            "a value is needed at #/additionalProperties, where the schema is false",
        ),
        (
            {
                "$defs": {"x/y": NEVER},
                "type": "array",
                "prefixItems": [True, {"$ref": "#/$defs/x~1y"}],
                "minItems": 2,
            },
            "at #/$defs/x~1y its conditions",
        ),
        ({"type": "integer", "if": True, "then": False}, "a value is needed at #/then"),
        (TREE, "at #/$defs/n/properties/k/items its recursive $ref has no base"),
        (
            {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            "at #/properties/a its recursive $ref has no base",
        ),
        (
            {
                "type": "object",
                "properties": {f"p{i}": {"type": "integer"} for i in range(300)} | {"z": NEVER},
                "required": ["z"],
            },
            "at #/properties/z its",
        ),
    ],
)
def test_the_part_to_blame_is_named(schema: Any, said: str | None) -> None:
    if said is None:
        assert plan(schema)
        return
    with pytest.raises(UnsupportedConstraintError) as error:
        plan(schema)
    assert said in str(error.value)
    assert str(error.value).startswith("no value can satisfy the schema: ")


@st.composite
def _around(draw: st.DrawFn) -> tuple[Any, str]:
    """A schema with one contradiction in it that cannot be avoided, and its pointer."""
    schema, pointer = NEVER, ""
    for kind in draw(
        st.lists(st.sampled_from(["property", "item", "prefix", "allOf", "then", "ref"]), max_size=5)
    ):
        match kind:
            case "property":
                choices: list[dict[str, Any]] = [{}, {"x": False}, {"x": {"type": "string"}}]
                others = draw(st.sampled_from(choices))
                properties = {**others, "a/b": schema}
                schema = {"type": "object", "properties": properties, "required": ["a/b"]}
                pointer = "/properties/a~1b" + pointer
            case "item":
                schema, pointer = {"type": "array", "items": schema, "minItems": 2}, "/items" + pointer
            case "prefix":
                schema = {"type": "array", "prefixItems": [True, schema], "minItems": 2}
                pointer = "/prefixItems/1" + pointer
            case "allOf":
                schema, pointer = {"allOf": [True, schema]}, "/allOf/1" + pointer
            case "then":
                schema, pointer = {"if": True, "then": schema, "else": False}, "/then" + pointer
            case "ref":
                schema = {"properties": {"v": schema}, "required": ["v"], "type": "object"}
                pointer = "/properties/v" + pointer
    return schema, pointer


@given(_around())
def test_however_deep_it_lies(case: tuple[Any, str]) -> None:
    schema, pointer = case
    with pytest.raises(UnsupportedConstraintError) as error:
        plan(json.dumps(schema))
    assert f"at #{pointer} its conditions contradict" in str(error.value), schema
