"""Rewriting keeps the meaning: what a plan's schema accepts is what the given one does, by jsonschema."""

import json
import re
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator

from ramet.runtime.grammar.schema import SchemaLimits, SchemaPlan, plan
from ramet.runtime.protocol import InvalidRequestError, UnsupportedConstraintError
from tests.runtime.grammar.schema.random_schemas import random_schema, random_value


def agrees(schema: Any, values: list[Any], validator: Any = Draft202012Validator) -> SchemaPlan:
    """The plan of ``schema``, which is exact and accepts of ``values`` just those that it does."""
    planned = plan(schema)
    assert planned.exact, planned.unsupported
    rewritten = Draft202012Validator(json.loads(planned.text))
    original = validator(schema)
    for value in values:
        assert rewritten.is_valid(value) == original.is_valid(value), (value, planned.text)
    return planned


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_a_rewritten_schema_means_the_same(seed: int) -> None:
    random = Random(seed)
    schema = random_schema(random)
    values = [random_value(random) for _ in range(25)]
    original = Draft202012Validator(schema)
    try:
        planned = plan(schema)
    except UnsupportedConstraintError:
        # Nothing can satisfy it.
        assert not any(map(original.is_valid, values))
        return
    rewritten = Draft202012Validator(json.loads(planned.text))
    for value in values:
        accepted = rewritten.is_valid(value)
        if planned.exact:
            assert accepted == original.is_valid(value), (schema, planned.text, value)
        else:
            # Weaker, never stricter.
            assert accepted or not original.is_valid(value), (schema, planned.text, value)
    assert plan(schema) == planned


OBJECTS: list[Any] = [
    {}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {"a": "x"}, {"a": 1, "c": None}, {"a": 1, "b": 1, "c": 1},
    {"x": 1}, {"x": 1, "y": 2}, [], 1, "a", None,
]  # fmt: skip


@pytest.mark.parametrize(
    "schema",
    [
        {"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]}},
        {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}},
        {"type": "object", "not": {"required": ["a"]}},
        {"not": {"type": ["object", "array"]}},
        {"dependentRequired": {"a": ["b"]}},
        {"dependentSchemas": {"a": {"properties": {"c": {"type": "null"}}, "required": ["c"]}}},
        {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a"]}, {"maxProperties": 2}]},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
        {"$ref": "#/$defs/n", "required": ["a"], "$defs": {"n": {"type": "object", "maxProperties": 1}}},
        {"type": "object", "propertyNames": {"pattern": "^[ab]$"}},
        {"type": "object", "propertyNames": {"enum": ["a", "x"]}},
        {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1},
        {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 1},
        {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2,
         "additionalProperties": False},
        {"patternProperties": {"^[ab]$": {"type": "integer"}, "^[bc]$": {"not": {"type": "null"}}}},
        {"enum": [{"a": 1}, {"a": "x"}, 1, "a"], "properties": {"a": {"type": "integer"}}},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "unevaluatedProperties": False},
    ],
)  # fmt: skip
def test_objects(schema: Any) -> None:
    agrees(schema, OBJECTS)


ARRAYS: list[Any] = [
    [],
    [1],
    ["a"],
    [1, 1],
    [1, 2],
    ["a", 1],
    [1, "a", 2],
    ["a", "b"],
    ["a", "a"],
    [True, 1],
    "a",
    {},
]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"enum": ["a", "b", 1]}, "uniqueItems": True},
        {"type": "array", "items": {"$ref": "#/$defs/e"}, "uniqueItems": True, "$defs": {
            "e": {"anyOf": [{"$ref": "#/$defs/f"}, {"const": 1}]}, "f": {"enum": ["a", "b"]}}},
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False,
         "uniqueItems": True},
        {"type": "array", "contains": {"const": "a"}, "maxItems": 3},
        {"type": "array", "contains": {"type": "string"}, "minContains": 2, "maxContains": 2, "maxItems": 4},
        {"type": "array", "contains": {"type": "string"}, "maxContains": 0, "minContains": 0},
        {"oneOf": [{"items": {"type": "string"}}, {"items": {"type": "integer"}}], "type": "array"},
        {"type": "array", "not": {"minItems": 2}},
        {"type": "array", "items": {"type": "integer"}, "unevaluatedItems": False},
    ],
)  # fmt: skip
def test_arrays(schema: Any) -> None:
    agrees(schema, ARRAYS)


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"minimum": 2}, {"type": "string"}], "maximum": 5, "type": ["integer", "string", "number"]},
        {"type": "integer", "not": {"enum": [1, 2]}, "minimum": 0, "maximum": 4},
        {"type": "number", "not": {"minimum": 1, "maximum": 2}},
        {"allOf": [{"multipleOf": 2}, {"multipleOf": 3}], "type": "integer"},
        {"type": "string", "not": {"enum": ["a", "ab"]}},
        {"type": "string", "not": {"pattern": "b"}},
        {"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}, {"maxLength": 2}]},
        {"enum": ["a", "b", 1, 2.0, None], "type": ["string", "integer"], "not": {"const": "b"}},
        {"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}], "type": "integer", "minimum": 0, "maximum": 12},
    ],
)  # fmt: skip
def test_scalars(schema: Any) -> None:
    agrees(schema, [*range(-2, 14), 0.5, 1.5, 2.0, "", "a", "b", "ab", "ba", "aab", None, True, [], {}])


def test_older_drafts() -> None:
    draft4 = {
        "$schema": "http://json-schema.org/draft-04/schema#", "type": "array",
        "items": [{"type": "number", "minimum": 1, "exclusiveMinimum": True}], "additionalItems": False,
    }  # fmt: skip
    agrees(draft4, [[], [1], [2], [2, 2]], Draft4Validator)
    draft7 = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "dependencies": {"a": ["b"], "c": {"required": ["a"]}},
        "definitions": {"x": {"$id": "#here", "type": "object"}}, "allOf": [{"$ref": "#here"}],
    }  # fmt: skip
    agrees(draft7, OBJECTS, Draft7Validator)
    beside = {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/x", "minimum": 3,
              "definitions": {"x": {"type": "integer"}}}  # fmt: skip
    assert any("next to $ref" in note for note in agrees(beside, [1, 4, "a"], Draft7Validator).notes)


def test_references() -> None:
    tree = {
        "$id": "https://example.com/tree", "type": "object", "required": ["v"], "additionalProperties": False,
        "properties": {"v": {"$ref": "#leaf"}, "n": {"$ref": "tree"}},
        "$defs": {"l": {"$anchor": "leaf", "type": "integer"}},
    }  # fmt: skip
    agrees(tree, [{"v": 1}, {"v": 1, "n": {"v": 2}}, {"v": 1, "n": {}}, {"n": {"v": 1}}, 1])
    agrees({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"$ref": "#/$defs/c"}, "c": {"type": "null"}}}, [None, 1])


def test_properties_keep_their_order() -> None:
    schema = {
        "allOf": [{"properties": {"z": {}, "y": {}}}], "properties": {"b": {}, "a": {}}, "type": "object",
        "required": ["q", "a", "p"],
    }  # fmt: skip
    written = json.loads(plan(schema).text)
    assert list(written["properties"]) == ["z", "y", "b", "a", "q", "p"]


@pytest.mark.parametrize(
    ("schema", "location"),
    [
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "#/properties/a/uniqueItems"),
        (
            {
                "type": "array",
                "items": {"$ref": "#/$defs/e"},
                "uniqueItems": True,
                "$defs": {"e": {"anyOf": [{"const": 1}, {"type": "array", "items": {"$ref": "#/$defs/e"}}]}},
            },
            "#/uniqueItems",
        ),
        ({"type": "array", "contains": {"type": "null"}}, "#/contains"),
        ({"properties": {"a~/b": {"pattern": "(a)\\1"}}}, "#/properties/a~0~1b/pattern"),
        ({"allOf": [{}], "unevaluatedProperties": False}, "#/unevaluatedProperties"),
        ({"type": "string", "format": "idn-hostname"}, "#/format"),
        ({"type": "number", "not": {"type": "integer"}}, "#/not"),
        ({"type": "integer", "minimum": 2**60}, "#/minimum"),
        ({"type": "number", "multipleOf": 0.1234567}, "#/multipleOf"),
        ({"type": "object", "minProperties": 3}, "#/minProperties"),
    ],
)
def test_what_cannot_be_enforced_is_named(schema: Any, location: str) -> None:
    planned = plan(schema)
    assert not planned.exact
    assert planned.must_validate
    assert [item.location for item in planned.unsupported] == [location]
    with pytest.raises(UnsupportedConstraintError, match=r"; ") as raised:
        planned.choose()
    assert location in str(raised.value)
    assert planned.choose(strict=False) == "llguidance"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "http://example.com/x.json"}, "nothing is fetched"),
        ({"$ref": "file:///etc/passwd"}, "nothing is fetched"),
        ({"$ref": "#/$defs/absent"}, "points to nothing"),
        ({"$ref": "#/$defs", "$defs": [1]}, "which is no schema"),
        ({"$ref": "#"}, "has no base"),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "has no base"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no value can satisfy"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "no value can satisfy"),
        (False, "no value can satisfy"),
        ({"type": "strnig"}, "#/type is 'strnig'"),
        ({"minimum": "3"}, "#/minimum is '3'"),
        ({"properties": {"a": {"required": "b"}}}, "#/properties/a/required"),
        ({"properties": {"a": 3}}, "#/properties/a is 3"),
        ({"enum": "a"}, "#/enum"),
        ({"anyOf": []}, "#/anyOf"),
        ({"multipleOf": 0}, "#/multipleOf"),
        ({"$schema": "http://example.com/mine"}, "no draft that is known"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [{}]}, "prefixItems"),
        ("{", "no JSON"),
        ("[]", "it must be an object, true or false"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"minimum": NaN}', "NaN"),
        ('{"minimum": 1e999}', "too large"),
        ('{"title": "\0"}', "NUL"),
    ],
)
def test_what_is_no_usable_schema_is_refused_by_name(schema: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(message)) as raised:
        plan(schema)
    assert raised.value.field == "grammar"


def in_time(compute: Callable[[], object]) -> object:
    """What ``compute`` returns or raises. Fails where it has not ended after a minute."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(compute())
        except InvalidRequestError as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert results, "it takes too long, or died of another error"
    return results[0]


def nested(levels: int) -> str:
    return '{"properties":{"a":' * levels + "{}" + "}}" * levels


HOSTILE: dict[str, Any] = {
    "1,000 levels": nested(1_000),
    "100,000 brackets": "[" * 100_000,
    "30,000 parentheses": json.dumps({"pattern": "(" * 30_000 + ")" * 30_000}),
    "2,000 parentheses": json.dumps({"pattern": "(" * 2_000 + ")" * 2_000}),
    "repeat": {"type": "string", "pattern": "a{1,100000}"},
    "repeat product": {"type": "string", "pattern": "(((a{1,100}){1,100}){1,100}){1,100}"},
    "words": {"type": "string", "pattern": r"(\w+\s?){1,50}"},
    "enum": {"enum": list(range(50_000))},
    "enum strings": {"enum": ["x" * 1_000_000]},
    "properties": {"properties": {f"p{index}": {} for index in range(5_000)}},
    "references in a chain": {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"minimum": i}]} for i in range(300)}
        | {"d300": {"type": "integer"}},
    },
    "doubling": {
        "$ref": "#/$defs/d0",
        "$defs": {
            f"d{i}": {
                "properties": {name: {"$ref": f"#/$defs/d{i + 1}"} for name in "ab"},
                "not": {"required": [f"x{i}"]},
            }
            for i in range(40)
        }
        | {"d40": {}},
    },
    "oneOf": {
        "oneOf": [
            {"properties": {f"p{i}": {"type": "integer"}, f"q{i}": {"type": "string"}}} for i in range(60)
        ]
    },
    "not": {"not": {"anyOf": [{"properties": {f"p{j}": {"minimum": i} for j in range(8)}} for i in range(20)]}},
    "patterns": {"patternProperties": {f"{name}.*{name}x": {"minimum": 1} for name in "abcdefgh"}},
    "many patterns": {
        "patternProperties": {f"^[a-{chr(98 + i % 24)}]*{i}.*$": {"type": "integer"} for i in range(60)}
    },
    "chain": {
        "$defs": {**{f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(4_000)}, "d4000": {"type": "null"}},
        "$ref": "#/$defs/d0",
    },
    "chain backwards": {
        "$defs": {**{f"d{i + 1}": {"$ref": f"#/$defs/d{i}"} for i in range(4_000)}, "d0": {"type": "null"}},
        "prefixItems": [{"$ref": f"#/$defs/d{i}"} for i in range(4_001)],
    },
    "branches": {"anyOf": [{"properties": {f"p{i}": {"const": i}}} for i in range(4_000)]},
    "unique": {"type": "array", "items": {"enum": list(range(300))}, "uniqueItems": True},
    "counted": {"properties": {f"p{i}": {} for i in range(300)}, "minProperties": 150, "type": "object"},
    "huge integer": '{"minimum": ' + "9" * 5_000 + "}",
    "huge bound": {"type": "string", "maxLength": 10**12},
    "backtracking": {"type": "string", "pattern": "^(a+)+$", "enum": ["a" * 5_000 + "b"]},
    "class": {"type": "string", "pattern": r"\p{L}{50}[^\p{L}]{50}", "not": {"pattern": r"\p{N}"}},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_get_a_named_error_or_a_bounded_time(name: str) -> None:
    result = in_time(lambda: plan(HOSTILE[name]))
    assert isinstance(result, SchemaPlan | InvalidRequestError)


def test_limits_are_the_callers() -> None:
    small = SchemaLimits(max_bytes=20)
    with pytest.raises(InvalidRequestError, match="the limit is 20"):
        plan({"type": "object", "required": ["something"]}, limits=small)
    with pytest.raises(InvalidRequestError, match="deeper than 3"):
        plan(nested(3), limits=SchemaLimits(max_nesting=3))
