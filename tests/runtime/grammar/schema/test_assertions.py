"""Patterns with word boundaries and inner anchors find what Python's re finds."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.schema.assertions import AssertingSearch
from ramet.runtime.grammar.schema.automaton import TooLargeError
from ramet.runtime.grammar.schema.limits import DEFAULT_LIMITS
from ramet.runtime.grammar.schema.regex_parser import UnsupportedPatternError, parse
from ramet.runtime.grammar.schema.regex_syntax import parse_pattern

ATOMS = st.sampled_from(["a", "b", " ", r"\b", r"\B", r"\w", "[^a]", "(?:^)", "(?:$)"])


def patterns() -> st.SearchStrategy[str]:
    return st.recursive(
        ATOMS,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=4).map("".join),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}"])).map(
                lambda pair: f"(?:a{pair[0]}){pair[1]}"
            ),
        ),
        max_leaves=6,
    )


@given(patterns(), st.lists(st.text(alphabet="ab -", max_size=8), min_size=1, max_size=6))
def test_as_python_searches(pattern: str, texts: list[str]) -> None:
    search = AssertingSearch(parse(pattern, DEFAULT_LIMITS))
    # Python's $ also stands before a last line end, which no text here has; its \B is not in an empty text.
    found = re.compile(pattern.replace(r"\B", r"(?!\b)"), re.ASCII)
    for text in texts:
        assert search.finds(text) == bool(found.search(text)), (pattern, text)


def test_boundaries_are_those_of_ascii_words() -> None:
    search = AssertingSearch(parse(r"\bé\b", DEFAULT_LIMITS))
    assert not search.finds("é")
    assert search.finds("xéy")
    assert AssertingSearch(parse("^x$", DEFAULT_LIMITS)).finds("x")
    assert not AssertingSearch(parse("a$b", DEFAULT_LIMITS)).finds("ab")


@pytest.mark.parametrize(("pattern", "why"), [(r"a\b", "word boundary"), ("a$b", "anchor")])
def test_no_plain_expression_is_made_of_them(pattern: str, why: str) -> None:
    with pytest.raises(UnsupportedPatternError, match=why):
        parse_pattern(pattern)


def test_a_pattern_that_is_too_large() -> None:
    with pytest.raises(TooLargeError):
        AssertingSearch(parse(r"\b(?:abcdefgh){9999}", DEFAULT_LIMITS))
