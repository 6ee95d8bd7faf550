"""What each engine is known not to do, in the plain dialect."""

import json
from typing import Any

import pytest

from ramet.runtime.grammar.schema import plan
from ramet.runtime.grammar.schema.engines import Obstacles
from ramet.runtime.grammar.schema.limits import DEFAULT_LIMITS
from ramet.runtime.protocol import UnsupportedConstraintError

CLOSED = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "engines"),
    [
        ({"type": "integer"}, ("llguidance", "xgrammar", "outlines")),
        (
            {**CLOSED, "properties": {"a": {"type": "string"}}, "required": ["a"]},
            ("llguidance", "xgrammar", "outlines"),
        ),
        ({"type": "integer", "minimum": 0}, ("llguidance", "xgrammar")),
        ({"enum": [{"a": 1}]}, ("llguidance",)),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, ("llguidance",)),
        ({"type": "string", "pattern": "^a+$", "maxLength": 3}, ("llguidance",)),
        ({"type": "string", "pattern": "^(a+b?){1,50}$"}, ("llguidance",)),
        ({"type": "string", "pattern": "^a(?:b+c)?$"}, ("llguidance", "outlines")),
        ({"type": "string", "pattern": "^(?:c{1,2}|c)$"}, ("llguidance", "outlines")),
        ({"type": "string", "pattern": "^(?:a{2}|b+c*d{2,3})$"}, ("llguidance", "outlines")),
        ({"type": "string", "pattern": "^(?:ab|c{2})+d*$"}, ("llguidance", "xgrammar", "outlines")),
        ({"type": "string", "format": "duration"}, ("llguidance", "outlines")),
        ({"type": "string", "pattern": '^[^"]*$'}, ("llguidance",)),
        ({"type": "string", "pattern": "^\\x00$"}, ()),
        ({"type": "number", "multipleOf": 0.5}, ("llguidance",)),
        ({"enum": [f"v{i}" for i in range(300)]}, ("llguidance", "xgrammar")),
    ],
)
def test_engines(schema: Any, engines: tuple[str, ...]) -> None:
    assert plan(schema).engines == engines


def test_an_engine_is_honoured_or_refused() -> None:
    planned = plan({"type": "integer", "minimum": 0})
    assert planned.choose() == "llguidance"
    assert planned.choose("xgrammar") == "xgrammar"
    with pytest.raises(UnsupportedConstraintError, match="outlines ignores minimum"):
        planned.choose("outlines")
    with pytest.raises(UnsupportedConstraintError, match="unknown"):
        planned.choose("nobody")
    with pytest.raises(UnsupportedConstraintError, match="no grammar engine"):
        plan({"type": "string", "pattern": "^\\x00$"}).choose()


def test_obstacles_are_a_mapping_of_the_engines_that_have_any() -> None:
    obstacles = plan({"type": "string", "pattern": "^(a+b?){1,50}$"}).obstacles
    assert "llguidance" not in obstacles
    assert list(obstacles) == ["xgrammar", "outlines"]
    assert len(obstacles) == 2
    assert obstacles["xgrammar"][0].keyword == "pattern"
    assert obstacles.get("nobody") is None
    assert not plan({"type": "integer"}).obstacles


def test_a_pattern_that_is_too_large_to_read_again_is_left_to_the_safest_engine() -> None:
    planned = plan({"enum": [1, 2], "type": "integer"})
    assert not Obstacles(json.loads(planned.text), DEFAULT_LIMITS, lambda issue: issue)
    long = Obstacles(
        {"type": "string", "pattern": "^" + "a" * 5_000 + "$"}, DEFAULT_LIMITS, lambda issue: issue
    )
    assert list(long) == ["xgrammar", "outlines"]
    assert "of this size" in long["outlines"][0].why
