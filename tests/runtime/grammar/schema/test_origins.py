"""Every refusal is about a place that the caller's own schema has."""

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.grammar.schema import DEFAULT_LIMITS, Unsupported, load, plan
from ramet.runtime.grammar.schema.origins import in_source, origin_of
from ramet.runtime.protocol import InvalidRequestError
from tests.runtime.grammar.schema.random_schemas import random_schema

ROOT = Path(__file__).parents[4]
DATA = Path(os.environ.get("RAMET_SHARED", ROOT.parent / "shared")) / "data"


def lines(name: str) -> list[Any]:
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"{path} is not there: set RAMET_SHARED")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def refusals(schema: Any) -> Iterator[Unsupported]:
    try:
        planned = plan(schema)
    except InvalidRequestError:
        return
    yield from planned.unsupported
    for engine in planned.obstacles:
        yield from planned.obstacles[engine]


def check(schema: Any) -> int:
    """How many refusals there are; each is at a place of ``schema``, as its location is spelled."""
    found = list(refusals(schema))
    if not found:
        return 0
    document = load(json.dumps(schema), DEFAULT_LIMITS)
    for issue in found:
        assert issue.location.startswith("#")
        assert document.has(issue.location[1:]), (issue, schema)
    return len(found)


def test_of_schemas_in_use() -> None:
    assert sum(check(row["schema"]) for row in lines("maskbench_400.jsonl.gz")[::4]) > 200


def test_of_the_suite_of_json_schema() -> None:
    rows = lines("json_schema_test_suite_2020-12.jsonl.gz")
    assert sum(check(group["schema"]) for row in rows for group in row["groups"]) > 100


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_of_random_schemas(seed: int) -> None:
    check(random_schema(Random(seed)))


OPEN = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "location"),
    [
        ({"oneOf": [{"required": ["a"], **OPEN}, {"minProperties": 3, **OPEN}]}, "#/oneOf/1/minProperties"),
        ({"oneOf": [{"patternProperties": {"^a": {"type": "string"}}}, {"type": "object"}]}, "#/oneOf"),
        ({"allOf": [{"items": {"type": "integer"}}, {"contains": {"const": 1}}]}, "#/allOf/1/contains"),
        ({"type": "object", "patternProperties": {r"a/b\1": {}}}, r"#/patternProperties/a~1b\1"),
        (
            {"$ref": "#/$defs/s", "$defs": {"s": {"type": "array", "contains": {"type": "string"}}}},
            "#/$defs/s/contains",
        ),
        ({"type": "number", "not": {"type": "integer"}}, "#/not"),
    ],
)
def test_what_is_lost_in_rewriting(schema: Any, location: str) -> None:
    assert location in [issue.location for issue in plan(schema).unsupported]


def test_what_an_engine_cannot_do_is_told_of_what_was_written() -> None:
    tree = {
        "type": "object",
        "properties": {"n~/": {"$ref": "#/$defs/t"}, "s": {"allOf": [{"pattern": '^"$'}]}},
    }
    planned = plan({"$defs": {"t": tree}, "$ref": "#/$defs/t"})
    found = {issue.location for issue in planned.obstacles["xgrammar"]}
    assert "#/$defs/t" in found
    assert "#/$defs/t/properties/s/allOf/0/pattern" in found
    assert {issue.location for issue in planned.obstacles["outlines"]} >= {"#/$defs/t/properties/n~0~1/$ref"}


def test_places_that_the_source_lacks() -> None:
    document = load('{"allOf": [{"$ref": "#/none"}, {"type": "array"}], "items": {"not": {}}}', DEFAULT_LIMITS)
    lost = Unsupported("/items/properties/x", "oneOf", "why", "remedy")
    assert in_source(lost, document).location == "#/items"
    assert in_source(Unsupported("/allOf/1", "not", "why", "remedy"), document).location == "#/allOf/1"
    assert in_source(Unsupported("/allOf/1", "type", "", ""), document).location == "#/allOf/1/type"
    plain = {"anyOf": [{"items": True}]}
    assert origin_of("/anyOf/0/items", plain, {id(plain): (plain, "/allOf/1")}, document) == "/allOf/1"
    assert origin_of("/anyOf/0/items", plain, {}, document) == "/items"
