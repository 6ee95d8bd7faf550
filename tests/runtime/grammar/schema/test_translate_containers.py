"""Keywords of arrays and objects, read into the algebra."""

from typing import Any

import pytest

from ramet.runtime.grammar.schema import plan
from ramet.runtime.protocol import InvalidRequestError
from tests.runtime.grammar.schema.test_planner import OBJECTS, agrees


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {".*": {"type": "integer"}}, "additionalProperties": False},
        {"patternProperties": {"^a$": {"type": "integer"}, "": {"not": {"type": "null"}}}},
        {"propertyNames": False},
        {"propertyNames": {"anyOf": [{"const": "a"}, {"pattern": "^x"}]}},
        {"propertyNames": {"minLength": 2}},
        {"propertyNames": {"type": "integer"}, "type": "object"},
        {"properties": {"a": False}, "additionalProperties": {"type": "integer"}},
    ],
)
def test_names(schema: Any) -> None:
    agrees(schema, OBJECTS)


def test_a_lost_pattern_leaves_its_names_open() -> None:
    planned = plan({"type": "object", "patternProperties": {"(a)\\1": {}}, "additionalProperties": False})
    assert not planned.exact
    assert planned.text == '{"type":"object"}'


def test_limits() -> None:
    with pytest.raises(InvalidRequestError, match="has 2001 properties"):
        plan({"properties": {f"p{index}": {} for index in range(2001)}})
    with pytest.raises(InvalidRequestError, match="the limit is 10000"):
        plan({"maxItems": 10_001})
