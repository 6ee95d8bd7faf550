"""Keywords of numbers and strings, read into the algebra."""

import json
from typing import Any

import pytest

from ramet.runtime.grammar.schema import plan
from ramet.runtime.protocol import InvalidRequestError
from tests.runtime.grammar.schema.test_planner import agrees

DRAFT4 = "http://json-schema.org/draft-04/schema#"


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": 1, "exclusiveMinimum": 1},
        {"type": "number", "multipleOf": 0.5, "exclusiveMaximum": 2},
        {"type": "string", "pattern": "^a", "minLength": 2, "maxLength": 3},
    ],
)
def test_meaning(schema: Any) -> None:
    agrees(schema, [0, 1, 1.5, 2, "a", "ab", "abc", "abcd", None])


def test_draft_4_bounds_are_flags() -> None:
    text = plan({"$schema": DRAFT4, "maximum": 3, "exclusiveMaximum": True, "type": "number"}).text
    assert json.loads(text) == {"type": "number", "exclusiveMaximum": 3}
    with pytest.raises(InvalidRequestError, match="true or false in draft 4"):
        plan({"$schema": DRAFT4, "exclusiveMaximum": 3})


@pytest.mark.parametrize("schema", [{"pattern": 1}, {"format": 1}, {"multipleOf": -1}, {"maxLength": "a"}])
def test_wrong_values(schema: Any) -> None:
    with pytest.raises(InvalidRequestError, match="it must be"):
        plan(schema)
