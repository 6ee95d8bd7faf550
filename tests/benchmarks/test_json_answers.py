"""Judging JSON answers."""

from typing import Any

import pytest

from benchmarks.json_answers import LOOP_CHARACTERS, problem, whitespace_runs


@pytest.mark.parametrize(
    ("schema", "text", "found"),
    [
        ({"type": "integer"}, "1", None),
        ({"type": "integer"}, '"1"', "is not of type 'integer'"),
        ({"type": "integer"}, "1 1", "no JSON"),
        ({"type": "string", "format": "ipv4"}, '"1.2.3.4"', None),
        ({"type": "string", "format": "ipv4"}, '"1.2.3.400"', "is not a 'ipv4'"),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "exclusiveMinimum": True, "minimum": 1},
            "2",
            None,
        ),
        # Python's \w has letters that ECMA-262's has not, and its re cannot read \p.
        ({"type": "string", "pattern": "^\\W$"}, '"é"', None),
        ({"type": "string", "pattern": "^\\W$"}, '"e"', "does not match"),
        ({"type": "string", "pattern": "^\\p{L}$"}, '"é"', None),
        ({"type": "string", "pattern": "^\\p{L}$"}, '"1"', "does not match"),
    ],
)
def test_problems(schema: Any, text: str, found: str | None) -> None:
    if found is None:
        assert problem(schema, text) is None
    else:
        assert found in (problem(schema, text) or "")


def test_whitespace_is_counted_outside_of_strings() -> None:
    assert whitespace_runs('{"a b": [1,  2],\n "c\\" d": "e  f') == [1, 2, 2, 1]
    assert whitespace_runs('"unfinished  ') == []
    assert max(whitespace_runs("[" + "\n" * LOOP_CHARACTERS)) == LOOP_CHARACTERS
