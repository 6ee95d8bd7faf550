"""Complements of texts and patterns, and classes that an engine reads too loosely."""

import re

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.schema.emit_strings import engine_pattern, none_of, string_patterns
from ramet.runtime.grammar.schema.records import Unsupported
from ramet.runtime.grammar.schema.regex_syntax import parse_whole, write
from ramet.runtime.grammar.schema.shapes import String

TEXTS = st.text(alphabet='ab"\\\n', max_size=4)


@given(st.lists(TEXTS, min_size=1, max_size=6), TEXTS)
def test_none_of(texts: list[str], text: str) -> None:
    assert bool(re.fullmatch(write(none_of(texts)), text)) == (text not in texts)


def test_a_complement_that_is_too_large_is_reported() -> None:
    found: list[Unsupported] = []
    big = parse_whole("(a|b)*a(a|b){14}")
    assert string_patterns(String(forbidden=(big,), at="/x"), found.append) == []
    assert [issue.location for issue in found] == ["#/x/not"]
    assert string_patterns(String(forbidden=(parse_whole("[\\s\\S]*"),)), found.append) is None


def test_nul_leaves_classes_without_quotes() -> None:
    assert not re.fullmatch(engine_pattern(parse_whole('[^"]')), "\0")
    assert re.fullmatch(engine_pattern(parse_whole('[^"]')), "\x01")
    assert re.fullmatch(engine_pattern(parse_whole("[\\s\\S]")), "\0")
