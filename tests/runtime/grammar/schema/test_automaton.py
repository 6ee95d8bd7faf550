"""Automata against Python's re, on all short texts."""

import itertools
import re

import pytest

from ramet.runtime.grammar.schema.automaton import TooLargeError, combine, is_empty, matches
from ramet.runtime.grammar.schema.regex_syntax import parse_pattern, write

TEXTS = ["".join(letters) for length in range(5) for letters in itertools.product("abc-", repeat=length)]
PATTERNS = ["^a+$", "b", "^[a-c]{1,3}$", "^a-", "^(ab|c)*$", "^(a|b)?c{2,}$"]


@pytest.mark.parametrize(("left", "right"), list(itertools.permutations(PATTERNS, 2)))
def test_differences_and_intersections(left: str, right: str) -> None:
    a, b = (parse_pattern(pattern).required[0] for pattern in (left, right))
    for required, forbidden, wanted in (((a, b), (), True), ((a,), (b,), False)):
        made = combine(required, forbidden)
        expected = [text for text in TEXTS if re.search(left, text) and bool(re.search(right, text)) == wanted]
        assert [text for text in TEXTS if made is not None and matches(made, text)] == expected
        assert (made is None) == is_empty(required, forbidden)
        if made is not None:
            assert [text for text in TEXTS if re.search(write(made), text)] == expected


def test_budgets() -> None:
    many = parse_pattern("(a|b)*a(a|b){12}").required[0]
    with pytest.raises(TooLargeError):
        combine((many,), (), max_states=50)
    with pytest.raises(TooLargeError):
        is_empty((many, parse_pattern("^c").required[0]), (many,), max_states=20)
    with pytest.raises(TooLargeError):
        matches(parse_pattern("((a|b){100}){99}(a|b){90}").required[0], "a")


def test_what_is_large_only_for_states_that_do_the_same_is_made_smaller() -> None:
    letters = [parse_pattern(letter).required[0] for letter in "abcd"]
    longer = parse_pattern("^.{1,3}$").required[0]
    made = combine(letters, (longer,))
    assert made is not None
    for order in itertools.permutations("abcd"):
        text = "".join(order)
        assert matches(made, text)
        assert matches(made, f"-{text}-{text[0]}")
        assert not matches(made, text[1:] + text[1])
        assert not matches(made, text[:3])


def test_a_long_text_takes_linear_time() -> None:
    assert not matches(parse_pattern("^(a+)+$").required[0], "a" * 5_000 + "b")
