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


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (
            {"multipleOf": 0.01},
            ["1.11", "1.13", "0.07", "0.29", "3", "0", "-1.15", '"x"', "true"],
            ["1.111", "0.005"],
        ),
        ({"multipleOf": 0.07}, ["0.07", "0.21", "7"], ["0.7000001", "0.1"]),
        ({"multipleOf": 3}, ["9", "9.0", "-3"], ["10", "9.5"]),
        ({"multipleOf": 1e-20}, ["0.5", "1e-20"], ["1e-21"]),
        (
            {"format": "relative-json-pointer"},
            ['"0"', '"100"', '"1000#"', '"120/a"', "5"],
            ['"01"', '"/a"', '"-1"'],
        ),
    ],
)
def test_what_jsonschema_gets_wrong(schema: object, right: list[str], wrong: list[str]) -> None:
    validator = Validator(json.dumps(schema))
    assert [text for text in right if validator.problems(text)] == []
    assert [text for text in wrong if not validator.problems(text)] == []


def test_other_formats_are_still_checked() -> None:
    validator = Validator('{"format": "date"}')
    assert validator.problems('"2024-02-30"')
    assert not validator.problems('"2024-02-29"')
    assert Validator('{"$schema": "http://json-schema.org/draft-04/schema#"}').problems("5") == []


def test_an_answer_that_nests_too_deep_is_wrong() -> None:
    assert "nested more than" in Validator("true").problems("[" * 5_000 + "]" * 5_000)[0]


def test_a_pattern_that_cannot_be_checked_says_that_strict_is_of_no_use() -> None:
    with pytest.raises(UnsupportedConstraintError) as error:
        Validator('{"properties": {"k": {"pattern": "(?<=a)z"}}}')
    said = str(error.value)
    assert said.startswith("the schema cannot be enforced at #/properties/k: the pattern")
    assert "strict=false is of no use here; express it without" in said


def test_word_boundaries_and_inner_anchors_are_checked() -> None:
    validator = Validator(
        r"""{"properties": {"k": {"pattern": "\\bcat\\b"}}, "patternProperties": {"^\\Bx|y$z": false}}"""
    )
    assert validator.problems('{"k": "a cat.", "y": 1}') == []
    assert validator.problems('{"k": "concat"}')
    assert Validator(r'{"pattern": "\\b(?:[a-z]{1,50} ){1,40}\\b"}').problems('"' + "a " * 20_000 + '"') == []


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"items": [{"const": 1}]}, ["[]", "[1]", '[1, "x"]', "{}"], ["[2]", '["x", 1]']),
        ({"items": [{"const": 1}], "additionalItems": False}, ["[]", "[1]"], ["[1, 2]", "[2]"]),
        ({"items": [True], "additionalItems": {"type": "null"}}, ["[5, null, null]"], ["[5, null, 6]"]),
        ({"prefixItems": [True], "items": {"type": "null"}}, ["[5, null]"], ["[5, 6]"]),
        ({"items": {"items": [{"const": 1}]}}, ["[[1], []]"], ["[[1], [2]]"]),
    ],
)
def test_a_list_of_items_is_read_in_the_newest_draft_too(
    schema: object, right: list[str], wrong: list[str]
) -> None:
    validator = Validator(json.dumps(schema))
    assert [text for text in right if validator.problems(text)] == []
    assert [text for text in wrong if not validator.problems(text)] == []
