"""Patterns that Python and Rust read alike: Python's ``re`` is the oracle."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.engines.full_pattern import full_pattern, literal_pattern
from ramet.runtime.protocol import UnsupportedConstraintError


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^abc$", "abc"),
        (r"\Aabc\Z", "abc"),
        ("^a|b$", "a|b"),
        ("(a)(?P<n>b)(?<m>c)", "(?:a)(?:b)(?:c)"),
        ("a*?b+?c??", "a*b+c?"),
        ("a{,3}b{2}c{2,}d{0,1}", "a{0,3}b{2}c{2,}d?"),
        ("[^[\\]&]", "[^\\[\\]\\&]"),
        ("[]a]", "[\\]a]"),
        ("[-a-c-]", "[-a-c-]"),
        (r"[\t-\n\--/\w-]", r"[\t-\n\--/\w-]"),
        ("[a-c-]", "[a-c-]"),
        (r"[!-\]&]", r"[!-\]\&]"),
        (r"\<a\>\/", r"<a>\/"),
        (r"\u00e9\U0001F600\x41\012[\b]", "é😀A\\x0a[\\x08]"),
        ("(?i)ab", "(?i)ab"),
        ("(?i:a)b", "(?i:a)b"),
        (r"\p{L}\pN", r"\p{L}\pN"),
        ("é\\é", "éé"),
        ("", ""),
    ],
)
def test_what_is_shared_is_written_one_way(pattern: str, text: str) -> None:
    assert full_pattern(pattern).text == text


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("a^b", r"\^ stands inside"),
        ("(^a)", r"\^ stands inside"),
        ("a$b", r"\$ stands inside"),
        ("[a&&b]", "&& in a set"),
        ("[+--]", "-- in a set"),
        ("[[:alpha:]]", "a named class"),
        ("[abc", "a set is not closed"),
        ("x[z-a]", "the range z-a in the set at 1 ends before it begins; give the lower character first"),
        ("[b-a-z]", "the range b-a in the set at 0 ends before it begins"),
        (r"[\x41-\x21]", "the range A-! in the set at 0 ends"),
        (r"[\n-\t]", "ends before it begins"),
        (r"[]-\[]", "ends before it begins"),
        (r"[\d-z]", r"the range \\d-z in the set at 0 has a class"),
        (r"[a-\pL]", "has a class of characters at an end"),
        ("(a", "a group is not closed"),
        ("a)", "closes no group"),
        ("*a", "repeats nothing"),
        ("a|*", "repeats nothing"),
        ("a++", "possessive"),
        ("a**", "two repeats"),
        ("a{2}{3}", "two repeats"),
        ("a{", "begins no repeat"),
        ("a{3,2}", "ends before it begins"),
        ("a{100001}", "copies"),
        ("((a{100}){100}){100}", "copies"),
        ("(" * 70 + ")" * 70, "nested more than 64 deep"),
        (r"\bab", "word boundary"),
        (r"(a)\1", "backreferences"),
        ("(?P<n>a)(?P=n)", "backreference"),
        ("(?=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        ("(?>a)b", "atomic"),
        ("(?x)a b", "a flag other than"),
        ("a(?i)b", "a flag other than|not at the start"),
        ("(?(1)a|b)", "conditional"),
        ("(?", "begins no known group"),
        ("a\\", "single backslash"),
        ("[\\", "single backslash"),
        (r"\u{110000}", "is no character"),
        (r"\ud800", "is no character"),
        (r"\x4", "needs 2 hexadecimal"),
        (r"\p", "needs a class"),
        (r"\y", "no known escape"),
        ("a\0", "NUL"),
        ("\ud800", "lone surrogate"),
    ],
)
def test_what_is_not_shared_is_refused_by_name(pattern: str, problem: str) -> None:
    with pytest.raises(UnsupportedConstraintError, match=problem) as caught:
        full_pattern(pattern)
    assert caught.value.field == "grammar"


def test_what_a_pattern_costs() -> None:
    assert full_pattern("a{7}(b{2,3}c){5}").repeats == 15
    assert full_pattern(r"(\w+\s?){1,50}").is_nested
    assert full_pattern("((ab?)c)*").is_nested
    assert not full_pattern(r"\w+( [a-z]{2}){0,49}").is_nested
    assert not full_pattern("(a+)?b").is_nested
    assert full_pattern(r"a.b[\d\S]\pL").classes == {".", r"\d", r"\S", r"\p"}
    assert not full_pattern("[^a-z]b").classes
    assert full_pattern("(?s).").has_flags


PIECES = st.sampled_from(
    ["a", "b", "[ab]", "[^a]", ".", r"\d", "(a|b)", "(?:ab)?", "a{2}", "b{0,2}", "c*", "d+?", "|", r"\.", "é"]
)


@given(st.lists(PIECES, max_size=6).map("".join), st.text("abcdé.1", max_size=6))
def test_the_written_pattern_matches_what_the_given_one_does(pattern: str, text: str) -> None:
    written = full_pattern(pattern).text
    assert bool(re.fullmatch(pattern, text)) == bool(re.fullmatch(written, text))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
def test_a_literal_matches_itself_alone(text: str) -> None:
    pattern = literal_pattern(text)
    assert re.fullmatch(pattern, text)
    assert not re.fullmatch(pattern, text + "x")
    if "\0" not in text:
        full_pattern(pattern)
