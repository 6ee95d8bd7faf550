"""Keywords: which drafts know them, and what is noted."""

from typing import Any

import pytest

from ramet.runtime.grammar.schema import plan
from ramet.runtime.grammar.schema.document import load
from ramet.runtime.grammar.schema.limits import SchemaLimits
from ramet.runtime.grammar.schema.translate import Translator

DRAFT4 = "http://json-schema.org/draft-04/schema#"


def translator(text: str, *, approximate: bool = False) -> Translator:
    return Translator(load(text, SchemaLimits()), SchemaLimits(), approximate=approximate)


@pytest.mark.parametrize(
    ("schema", "note"),
    [
        ({"$schema": DRAFT4, "const": 1}, "draft 4 has no const"),
        ({"$schema": DRAFT4, "if": {}, "then": False}, "draft 4 has no if"),
        (
            {"$schema": DRAFT4, "$ref": "#/definitions/a", "type": "null", "definitions": {"a": {}}},
            "ignores type",
        ),
        ({"format": "colour"}, "an annotation only"),
        ({"format": "regex"}, "a subset is generated"),
    ],
)
def test_notes(schema: Any, note: str) -> None:
    planned = plan(schema)
    assert planned.exact
    assert any(note in text for text in planned.notes)


def test_a_weaker_translation_builds_on_no_complement() -> None:
    text = '{"not": {"type": "null"}, "oneOf": [{"type": "null"}, {"type": ["null", "string"]}]}'
    exact, weak = translator(text), translator(text, approximate=True)
    expected: list[tuple[object, bool, bool]] = [(None, False, True), ("a", True, True), (1, False, False)]
    for value, accepted, weakly in expected:
        assert exact.algebra.accepts(exact.root(), value) == accepted
        assert weak.algebra.accepts(weak.root(), value) == weakly


def test_members_that_combine_are_read_when_needed() -> None:
    lazy = translator('{"properties": {"a": {"oneOf": [{"type": "null"}]}, "b": {"type": "null"}}}')
    lazy.algebra.definition("")
    assert list(lazy.algebra.definitions) == [""]
