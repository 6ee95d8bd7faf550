"""Patterns as full matches, against Python's re, which searches."""

import itertools
import re

import pytest

from ramet.runtime.grammar.schema.automaton import matches
from ramet.runtime.grammar.schema.limits import SchemaLimits
from ramet.runtime.grammar.schema.regex_parser import UnsupportedPatternError
from ramet.runtime.grammar.schema.regex_syntax import (
    literal,
    parse_pattern,
    parse_whole,
    single_text,
    write,
)

TEXTS = ["".join(letters) for length in range(5) for letters in itertools.product("ab1-", repeat=length)]


@pytest.mark.parametrize(
    "pattern",
    ["", "a", "^a", "a$", "^a$", "^$", "a|^b$", "(^a|b)$", "^(a|b$)", "^^a",
     "\\d{2,3}?", "[\\w\\-.]+",
     "[^ab]", "(?:a|b)*1$", "(?<name>a)b", "x*", "^(?!ab)(?=.*1)", "a(?!b)", "(?=ab)a", "^(a|(?!b)1|b(?=1$))",
     "^(?!a$)", "\\u0061", "\\x61|\\u{62}", "[\\]a]|b", "^[\\s\\S]*$"],
)  # fmt: skip
def test_search(pattern: str) -> None:
    parsed = parse_pattern(pattern, SchemaLimits())
    python = re.compile(pattern.replace("(?<name>", "(?P<name>").replace("\\u{62}", "b"))
    written = [re.compile(write(regex)) for regex in parsed.required]
    for text in TEXTS:
        forbidden = any(matches(regex, text) for regex in parsed.forbidden)
        found = bool(python.search(text))
        assert (all(matches(regex, text) for regex in parsed.required) and not forbidden) == found
        assert (all(regex.fullmatch(text) for regex in written) and not forbidden) == found


def test_classes_are_those_of_ecma() -> None:
    assert not matches(parse_whole("\\d"), "٣")
    assert not matches(parse_whole("\\w"), "é")
    assert matches(parse_whole("\\W"), "é")
    assert matches(parse_whole("\\s"), "\ufeff")
    assert not matches(parse_whole("."), "\u2028")
    assert matches(parse_whole("\\cJ"), "\n")


@pytest.mark.parametrize("pattern", ["a^b", "a$b", "(a(?=b))*", "(?=a(?=b))c"])
def test_what_stands_in_the_wrong_place(pattern: str) -> None:
    with pytest.raises(UnsupportedPatternError):
        parse_pattern(pattern)


def test_what_browsers_read_as_itself() -> None:
    assert matches(parse_whole("a{,3}"), "a{,3}")
    assert matches(parse_whole("[\\w-.]+"), "a-.")


def test_literals() -> None:
    assert single_text(literal('a"\\é')) == 'a"\\é'
    assert single_text(parse_whole("a|b")) is None
    assert re.fullmatch(write(literal("a.b\n")), "a.b\n")
