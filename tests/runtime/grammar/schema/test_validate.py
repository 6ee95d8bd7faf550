"""Finished values are judged as jsonschema does, and no pattern can make it hang."""

import json
from random import Random

import pytest
from jsonschema import Draft202012Validator

from ramet.runtime.grammar.schema.validate import MAX_PROBLEMS, Validator
from ramet.runtime.protocol import InvalidRequestError, UnsupportedConstraintError
from tests.runtime.grammar.schema.random_schemas import random_schema, random_value


@pytest.mark.parametrize("seed", range(60))
def test_agrees_with_jsonschema(seed: int) -> None:
    random = Random(seed)
    schema = random_schema(random)
    ours, theirs = Validator(json.dumps(schema)), Draft202012Validator(schema)
    for _ in range(20):
        value = random_value(random)
        assert (not ours.problems(json.dumps(value))) == theirs.is_valid(value)


def test_problems_have_their_place() -> None:
    validator = Validator(
        '{"properties": {"d": {"format": "date"}, "u": {"uniqueItems": true}}, "required": ["d"]}'
    )
    assert validator.problems('{"d": "2024-02-29", "u": [1, 2]}') == []
    assert len(validator.problems('{"d": "2023-02-29", "u": [1, 1]}')) == 2
    assert validator.problems('{"d": "2023-02-29"}')[0].startswith("$.d: ")
    assert validator.problems('{"d": ')[0].startswith("no JSON")
    many = Validator('{"items": {"type": "null"}}')
    assert len(many.problems(json.dumps(list(range(50))))) == MAX_PROBLEMS


def test_names_and_patterns() -> None:
    validator = Validator(
        '{"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": {"pattern": "x"}}'
    )
    assert validator.problems('{"a": 1, "b": "x"}') == []
    assert validator.problems('{"a": "1"}')
    assert validator.problems('{"b": "y"}')


def test_a_catastrophic_pattern_is_matched_in_linear_time() -> None:
    assert Validator('{"pattern": "^(a+)+$"}').problems(json.dumps("a" * 3_000 + "b"))


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(UnsupportedConstraintError, match="back-reference"):
        Validator('{"items": [{"pattern": "(a)\\\\1"}]}')
    with pytest.raises(InvalidRequestError, match="no JSON"):
        Validator("{")
