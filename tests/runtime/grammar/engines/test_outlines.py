"""outlines-core for small regular expressions: Python's ``re`` is the oracle."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.protocol import Choice, Regex, UnsupportedConstraintError
from tests.runtime.grammar.engines.walking import TINY, allowed, spelled, tiny_takes

PATTERNS = ["[ab]+c?", "(a|bc){2,3}", "[0-9]{1,2}/x", "a*?b", "[^a]b", ".b", "x|"]


@given(pattern=st.sampled_from(PATTERNS), text=st.text("abc1/x\n", max_size=5))
def test_it_takes_what_python_matches(tiny_router: EngineRouter, pattern: str, text: str) -> None:
    ok = tiny_takes(tiny_router.compile(Regex(pattern, "outlines")))
    assert ok(text) == bool(re.fullmatch(pattern, text))


def test_forced_text_is_that_of_a_single_token(tiny_router: EngineRouter) -> None:
    matcher = tiny_router.compile(Choice(("(x", "(y"), "outlines")).matcher()
    assert matcher.forced_bytes() == b"("  # type: ignore[attr-defined]
    assert matcher.forced_tokens() == spelled("(", TINY)
    fork = matcher.fork()
    assert fork.accept(spelled("(", TINY)[0])
    assert fork.forced_bytes() == b""  # type: ignore[attr-defined]
    assert allowed(matcher, TINY) == set(spelled("(", TINY))


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (Regex(r"\w+", "outlines"), r"with \\w"),
        (Regex("(?i)a", "outlines"), "with a flag"),
        (Regex("a{100}", "outlines"), "64 copies"),
        (Regex("(a+b?)+", "outlines"), "repeat inside of a repeat"),
        (Regex("a" * 501, "outlines"), "500 characters"),
        (Choice(("a" * 501,), "outlines"), "500 characters"),
        (Regex("(?=a)", "outlines"), "look-around"),
    ],
)
def test_what_could_take_all_memory_is_refused(
    tiny_router: EngineRouter, spec: Regex | Choice, problem: str
) -> None:
    with pytest.raises(UnsupportedConstraintError, match=problem):
        tiny_router.compile(spec)
