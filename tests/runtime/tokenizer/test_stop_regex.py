"""Regexes searched character by character, against Python's ``re`` on the text so far."""

import re
import sys
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.tokenizer.stop_regex import MAX_INSTRUCTIONS, RegexMatch, RegexProgram, RegexSearch

# -- The oracle ------------------------------------------------------------------------------------------------


def exact_match(pattern: str, text: str, start: int, end: int) -> bool:
    """Some match begins at start and ends at end, with the neighbouring characters seen."""
    return re.compile(rf"(?:{pattern})(?<=\A[\s\S]{{{end}}})").match(text, start) is not None


def expected(pattern: str, text: str) -> set[RegexMatch]:
    """At each end the match that began first; an empty one is none."""
    found = set()
    for end in range(1, len(text) + 1):
        start = next((start for start in range(end) if exact_match(pattern, text, start, end)), None)
        if start is not None:
            found.add(RegexMatch(start, end))
    return found


def search(pattern: str, text: str) -> list[RegexMatch]:
    growing = RegexSearch(RegexProgram(pattern))
    return [match for character in text for match in growing.step(character)] + growing.finish()


# -- Random patterns -------------------------------------------------------------------------------------------

ATOMS = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"\w", r"\W", r"\s", "\n", "A", "[a-b_]"])
ASSERTIONS = st.sampled_from([r"\b", r"\B", "^", r"\A"])
QUANTIFIERS = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,3}?", "{2,}", "{0}"])


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.sampled_from(["(?:{})", "({})", "(?i:{})", "(?s:{})", "(?m:{})"])
    return (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})")
        | st.tuples(groups, inner).map(lambda pair: pair[0].format(pair[1]))
        | st.tuples(inner, QUANTIFIERS).map(lambda pair: f"(?:{pair[0]}){pair[1]}")
    )


TEXTS = st.text("abcA \n_", max_size=9)


@settings(max_examples=400)
@given(pattern=st.recursive(ATOMS, compound, max_leaves=6), text=TEXTS)
def test_random_patterns_match_where_re_matches(pattern: str, text: str) -> None:
    found = search(pattern, text)
    assert len(set(found)) == len(found)
    assert set(found) == expected(pattern, text)
    assert [match.end for match in found] == sorted(match.end for match in found)


@settings(max_examples=400)
@given(pattern=st.recursive(ATOMS | ASSERTIONS, compound, max_leaves=6), text=TEXTS)
def test_random_patterns_with_assertions(pattern: str, text: str) -> None:
    """A match that the next character decides may come beside one that was decided before it."""
    found = search(pattern, text)
    first_starts: dict[int, int] = {}
    for match in found:
        assert exact_match(pattern, text, match.start, match.end)
        first_starts[match.end] = min(match.start, first_starts.get(match.end, match.start))
    assert {RegexMatch(start, end) for end, start in first_starts.items()} == expected(pattern, text)


@settings(max_examples=200)
@given(pattern=st.recursive(ATOMS | ASSERTIONS, compound, max_leaves=5), text=TEXTS, rest=TEXTS)
def test_every_later_match_begins_where_one_could_have(pattern: str, text: str, rest: str) -> None:
    """Text before ``earliest_start`` is let go: no match that comes later may begin in it."""
    growing = RegexSearch(RegexProgram(pattern))
    for character in text:
        growing.step(character)
    earliest = growing.earliest_start
    later = [match for character in rest for match in growing.step(character)] + growing.finish()
    assert all(match.start >= (len(text) if earliest is None else earliest) for match in later)
    assert earliest is None or 0 <= earliest < len(text)


# -- Characters ------------------------------------------------------------------------------------------------


@cache
def characters_of_interest() -> str:
    """All that case, category or a boundary of ranges could treat apart, and a sample of the rest."""
    every = map(chr, range(sys.maxunicode + 1))
    return "".join(c for c in every if c.lower() != c or c.upper() != c or ord(c) < 0x250 or ord(c) % 499 == 0)


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"\d", r"\D", r"\s", r"\S", r"\w", r"\W", ".", "(?s:.)", r"[^\n]", r"[\d\s]", r"[^\w.]"),
        *(r"(?a)\w", r"(?a)\d", r"(?a)\S", r"(?a:\w)", r"(?a)(?u:\w)", r"(?u)(?a:\W)"),
        *("(?i)i", "(?i)[a-z]", "(?i)[^k-s]", "(?i)é", "(?i)[^é]", "(?i)ß", "(?i)ſ", "(?i)µ", "(?i)ı", "(?i)İ"),
        *(
            "(?ai)s",
            "(?ai)[^K]",
            "(?i:k)",
            "(?i)(?-i:k)",
            "(?i)[Σς]",
            "[à-þ]",
            r"[\]\\^-]",
            "[^]x]",
            "\U0001f642",
        ),
    ],
)
def test_single_characters_are_those_of_re(pattern: str) -> None:
    program, compiled = RegexProgram(pattern), re.compile(pattern)
    for character in characters_of_interest():
        found = bool(RegexSearch(program).step(character))
        assert found == (compiled.fullmatch(character) is not None), hex(ord(character))


@pytest.mark.parametrize("pattern", [r"x\b.", r"(?a)x\b.", r"x\B."])
@given(character=st.characters())
def test_words_end_where_re_ends_them(pattern: str, character: str) -> None:
    assert bool(search(pattern, "x" + character)) == (re.fullmatch(pattern, "x" + character) is not None)


# -- Searching -------------------------------------------------------------------------------------------------


def test_matches_come_as_they_complete() -> None:
    growing = RegexSearch(RegexProgram("ab+"))
    seen = [(growing.step(character), growing.earliest_start) for character in "xabbx"]
    assert seen == [([], None), ([], 1), ([RegexMatch(1, 3)], 1), ([RegexMatch(1, 4)], 1), ([], None)]
    assert growing.finish() == []


def test_a_boundary_is_decided_by_the_next_character_or_the_end() -> None:
    growing = RegexSearch(RegexProgram(r"stop\b"))
    assert [growing.step(character) for character in "stop"] == [[]] * 4
    assert growing.earliest_start == 0
    assert growing.step(" ") == [RegexMatch(0, 4)]
    assert [match for character in "stop" for match in growing.step(character)] == []
    assert growing.finish() == [RegexMatch(5, 9)]


def test_of_those_that_complete_together_the_one_that_began_first() -> None:
    assert search("abc|bc|c", "abc") == [RegexMatch(0, 3)]
    assert search("c|bc", "xbc") == [RegexMatch(1, 3)]


def test_an_empty_match_is_none() -> None:
    assert search("a*", "bab") == [RegexMatch(1, 2)]
    assert search(r"(?:)|\b|^", "ab") == []


def test_one_program_serves_many_searches() -> None:
    program = RegexProgram("a.c")
    first, second = RegexSearch(program), RegexSearch(program)
    first.step("a")
    for character in "xab":
        second.step(character)
    first.step("b")
    assert first.step("c") == [RegexMatch(0, 3)]
    assert second.step("c") == [RegexMatch(1, 4)]


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*c", "(a*)*d", "(?:a?){40}a{40}b"])
def test_no_pattern_backtracks(pattern: str) -> None:
    """``re`` would not come back from these."""
    growing = RegexSearch(RegexProgram(pattern))
    for _ in range(1500):
        assert growing.step("a") == []
    assert growing.earliest_start is not None
    assert growing.earliest_start >= (1500 - 80 if "{" in pattern else 0)


def test_repeating_nothing_costs_nothing() -> None:
    assert len(RegexProgram(r"(?:(?:){1000000}){1000000}ab").instructions) == 3


class TestRefusals:
    @pytest.mark.parametrize(
        ("pattern", "said"),
        [
            ("a(?=b)", "a lookaround"),
            ("a(?!b)", "a lookaround"),
            ("(?<=a)b", "a lookaround"),
            ("(?<!a)b", "a lookaround"),
            (r"(a)\1", "a backreference"),
            (r"(?P<x>a)(?P=x)", "a backreference"),
            (r"(a)?(?(1)b|c)", "a conditional group"),
            ("(?>a)b", "an atomic group"),
            ("a++b", "a possessive quantifier"),
            ("x(?:y(a$|b))", "end is not known"),
            (r"a\Z", "end is not known"),
            ("(?m)a$", "end is not known"),
            ("(a", "not a valid regular expression: missing )"),
            ("a{3,2}", "not a valid"),
            ("*", "not a valid"),
            ("[b-a]", "not a valid"),
            ("a{99999999999999999999}", "not a valid"),
            (".{5000}", f"more than {MAX_INSTRUCTIONS} states"),
            ("(?:a{50}){50}", "shorten it or its counted repeats"),
            ("(" * 101 + "a" + ")" * 101, "nests 101 groups; at most 100"),
            ("(?:" * 5000 + "a" + ")" * 5000, "nests 5000 groups"),
        ],
    )
    def test_what_cannot_be_searched_is_named(self, pattern: str, said: str) -> None:
        with pytest.raises(InvalidRequestError, match=re.escape(said)) as error:
            RegexProgram(pattern)
        assert error.value.field == "stop_regex"
        assert str(error.value).startswith(f"stop_regex {pattern[:80]!r} ")

    def test_groups_nest_as_deep_as_said(self) -> None:
        assert search("(" * 100 + "a" + ")" * 100, "ba") == [RegexMatch(1, 2)]

    def test_the_bound_counts_instructions(self) -> None:
        assert len(RegexProgram(f".{{{MAX_INSTRUCTIONS - 1}}}").instructions) == MAX_INSTRUCTIONS
        with pytest.raises(InvalidRequestError, match="states"):
            RegexProgram(f".{{{MAX_INSTRUCTIONS}}}")
