"""Strings: what contradicts is found, and the complement is one."""

from ramet.runtime.grammar.schema import strings
from ramet.runtime.grammar.schema.regex_parser import ANY_TEXT
from ramet.runtime.grammar.schema.regex_syntax import parse_whole
from ramet.runtime.grammar.schema.shapes import String

WORD = parse_whole("[ab]+")
TEXTS = ["", "a", "ab", "abc", "c", "aaaa"]


def test_contradictions() -> None:
    assert strings.simplify(String(low=2, high=1)) == ()
    assert strings.simplify(String(required=(WORD,), forbidden=(WORD,))) == ()
    assert strings.simplify(String(forbidden=(ANY_TEXT,))) == ()
    assert strings.intersect(String(required=(WORD,)), String(required=(parse_whole("c*"),), low=1)) == ()
    assert strings.simplify(String(required=(ANY_TEXT,))) == (String(),)
    # A long bound is not searched.
    assert strings.simplify(String(required=(WORD,), low=100_000)) != ()


def test_complement() -> None:
    string = String(low=1, high=3, required=(WORD,))
    others = strings.negate(string)
    for text in TEXTS:
        inside = strings.accepts(string, text)
        assert inside == (text in ("a", "ab"))
        assert inside != any(isinstance(other, String) and strings.accepts(other, text) for other in others)


def test_exclusions() -> None:
    (both,) = strings.intersect(String(excluded=("a",)), String(excluded=("b", "a")))
    assert both.excluded == ("a", "b")
    assert not strings.accepts(both, "b")
    required, forbidden = strings.conditions(String(low=1, excluded=("a",)))
    assert len(required) == len(forbidden) == 1
