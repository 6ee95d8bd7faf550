"""What each engine is known not to do, in the plain dialect."""

from typing import Any

import pytest

from ramet.runtime.grammar.schema import plan
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
