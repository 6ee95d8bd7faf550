"""StopMatcher against a rule written plainly, for every way to cut a text."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.tokenizer import StopMatcher


def run(matcher: StopMatcher, pieces: Iterable[str]) -> tuple[str, str | None]:
    """The whole text that comes out. No piece may hold what a later one takes back, so they only
    concatenate."""
    out = []
    for piece in pieces:
        safe, hit = matcher.push(piece)
        out.append(safe)
        if hit is not None:
            return "".join(out), hit
    safe, hit = matcher.flush()
    return "".join([*out, safe]), hit


def chunkings(text: str) -> Iterator[list[str]]:
    """Every way to cut a text into non-empty pieces."""
    for cuts in itertools.product([False, True], repeat=max(len(text) - 1, 0)):
        pieces, start = [], 0
        for i, cut in enumerate(cuts, 1):
            if cut:
                pieces.append(text[start:i])
                start = i
        yield [*pieces, text[start:]]


def expected(
    text: str, stops: Sequence[str], patterns: Sequence[str], *, include_stop: bool
) -> tuple[str, str | None]:
    """The documented rule, by trying every end and every beginning."""
    for end in range(1, len(text) + 1):
        found = [(end - len(stop), -1, i, stop) for i, stop in enumerate(stops) if text[:end].endswith(stop)]
        for i, pattern in enumerate(patterns):
            exact = re.compile(rf"(?:{pattern})(?<=\A[\s\S]{{{end}}})")
            found += [(start, 0, i, pattern) for start in range(end) if exact.match(text, start)]
        if found:
            start, _, _, stop = min(found)
            return text[: end if include_stop else start], stop
    return text, None


class TestStrings:
    @given(
        text=st.text("ab", max_size=9),
        stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
        include_stop=st.booleans(),
    )
    def test_every_chunking_follows_the_rule(self, text: str, stops: list[str], include_stop: bool) -> None:
        want = expected(text, stops, [], include_stop=include_stop)
        for pieces in chunkings(text):
            assert run(StopMatcher(stops, include_stop=include_stop), pieces) == want

    def test_text_that_only_began_like_a_stop_is_released_at_once(self) -> None:
        matcher = StopMatcher(["\n###"])
        assert matcher.push("one\n") == ("one", None)
        assert matcher.push("two\n#") == ("\ntwo", None)
        assert matcher.push("#") == ("", None)
        assert matcher.push("!") == ("\n##!", None)
        assert matcher.push("\n##") == ("", None)
        assert matcher.flush() == ("\n##", None)

    def test_a_stop_inside_one_token(self) -> None:
        assert StopMatcher(["nesd"]).push("Wednesday") == ("Wed", "nesd")

    def test_what_follows_a_stop_is_dropped(self) -> None:
        matcher = StopMatcher(["five"])
        assert matcher.push("four five six") == ("four ", "five")
        assert matcher.push("seven") == ("", "five")
        assert matcher.flush() == ("", "five")
        assert matcher.hit == "five"

    def test_the_longest_of_those_that_end_together(self) -> None:
        assert StopMatcher(["bc", "abc"]).push("xabc") == ("x", "abc")
        assert StopMatcher(["bc", "abcd"]).push("xabcd") == ("xa", "bc")

    def test_many_stops(self) -> None:
        stops = [f"<{i}>" for i in range(64)]
        assert run(StopMatcher(stops), "a <6 b <64> c <63> d") == ("a <6 b <64> c ", "<63>")

    def test_multi_byte_characters(self) -> None:
        assert run(StopMatcher(["。"]), "漢字。かな") == ("漢字", "。")

    def test_no_stops(self) -> None:
        matcher = StopMatcher()
        assert matcher.push("anything") == ("anything", None)
        assert matcher.flush() == ("", None)

    def test_with_include_stop_nothing_is_held_back(self) -> None:
        matcher = StopMatcher(["END"], include_stop=True)
        assert matcher.push("the EN") == ("the EN", None)
        assert matcher.push("D of") == ("D", "END")


class TestMinTokens:
    def test_a_stop_does_not_complete_before(self) -> None:
        matcher = StopMatcher([","], [r"\d"])
        assert matcher.push("a, 1", enabled=False) == ("a, 1", None)
        assert matcher.push(" b, c") == (" b", ",")

    def test_but_may_begin_before(self) -> None:
        matcher = StopMatcher(["\n\n"])
        assert matcher.push("a\n", enabled=False) == ("a", None)
        assert matcher.push("\nb") == ("", "\n\n")

    def test_a_match_decided_by_the_next_character_still_ends_before(self) -> None:
        matcher = StopMatcher(stop_regexes=[r"stop\b"])
        assert matcher.push("stop", enabled=False) == ("", None)
        assert matcher.push("; stop;") == ("stop; ", r"stop\b")

    def test_a_match_that_ends_later_is_not_lost_to_one_that_ended_before(self) -> None:
        matcher = StopMatcher(stop_regexes=[r"a\b|a;"])
        assert matcher.push("a", enabled=False) == ("", None)
        assert matcher.push(";") == ("", r"a\b|a;")


PATTERNS = [
    "a+b",
    "ab|b+a",
    "(?:ab)+c?a",
    "a{2,3}",
    "[^a]b",
    "a.b",
    "a*?b",
    r"b\b",
    r"\ba",
    r"\Bb",
    "^a|bb",
    "(?i:A)b",
    "c(a|b)*c",
    r"(?s:a.)",
    "(?m:^b)",
]


class TestRegexes:
    @given(
        text=st.text("abc\n ", max_size=8),
        patterns=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2),
        stops=st.lists(st.text("ab", min_size=1, max_size=3), max_size=1),
        include_stop=st.booleans(),
    )
    def test_every_chunking_follows_the_rule(
        self, text: str, patterns: list[str], stops: list[str], include_stop: bool
    ) -> None:
        outcomes = {
            run(StopMatcher(stops, patterns, include_stop=include_stop), pieces) for pieces in chunkings(text)
        }
        assert len(outcomes) == 1
        # A match that the next character decides comes a character late, so it loses a tie at its own end.
        if not any(r"\b" in pattern.lower() for pattern in patterns):
            assert outcomes == {expected(text, stops, patterns, include_stop=include_stop)}

    @pytest.mark.parametrize("pattern", PATTERNS)
    @given(text=st.text("abAB\nc ", max_size=10))
    def test_one_pattern_alone_follows_the_rule(self, pattern: str, text: str) -> None:
        assert run(StopMatcher((), [pattern]), text) == expected(text, (), [pattern], include_stop=False)

    def test_stops_at_the_shortest_match(self) -> None:
        assert run(StopMatcher((), [r"\d+\."]), ["Steps: 12", ". Do"]) == ("Steps: ", r"\d+\.")
        assert run(StopMatcher((), [r"\d+"]), ["Steps: 12", ". Do"]) == ("Steps: ", r"\d+")

    def test_holds_back_only_from_where_a_match_could_begin(self) -> None:
        matcher = StopMatcher((), [r"\n\d+\."])
        assert matcher.push("a\nb\n12") == ("a\nb", None)
        assert matcher.push("3") == ("", None)
        assert matcher.push("x") == ("\n123x", None)

    def test_a_boundary_at_the_end_of_the_text(self) -> None:
        matcher = StopMatcher((), [r"\bstop\b"])
        assert matcher.push("non-stopper; stop") == ("non-stopper; ", None)
        assert matcher.flush() == ("", r"\bstop\b")

    def test_what_cannot_be_searched_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match="lookaround") as error:
            StopMatcher((), ["a", "a(?=b)"])
        assert error.value.field == "stop_regex"

    def test_too_large_together(self) -> None:
        with pytest.raises(InvalidRequestError, match="together"):
            StopMatcher((), [".{1500}"] * 4)
