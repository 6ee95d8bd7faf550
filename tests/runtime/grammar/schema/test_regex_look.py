"""Lookaheads inside a pattern; what they mean is tested with the patterns' syntax."""

import pytest

from ramet.runtime.grammar.schema.regex_look import has_look, resolve_looks
from ramet.runtime.grammar.schema.regex_parser import ANY_TEXT, Look, Repeat, Seq, UnsupportedPatternError
from ramet.runtime.grammar.schema.regex_syntax import literal


def test_nothing_is_left_where_the_rest_contradicts() -> None:
    assert resolve_looks([Look(literal("a"), negative=False), literal("b")]) is None
    assert resolve_looks([Look(ANY_TEXT, negative=True), literal("b")]) is None


def test_a_sequence_without_lookahead_stays() -> None:
    assert resolve_looks([literal("a"), literal("b")]) == literal("ab")
    assert not has_look(literal("a"))
    assert has_look(Seq((literal("a"), Look(literal("b"), negative=True))))


def test_a_repeated_lookahead_is_refused() -> None:
    with pytest.raises(UnsupportedPatternError, match="inside a repetition"):
        resolve_looks([Repeat(Look(literal("a"), negative=True), 0, None)])
