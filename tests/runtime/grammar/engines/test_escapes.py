"""Half of a surrogate pair is never written, in whatever tokens."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.grammar.engines.escapes import PLAIN, SurrogateGuard, SurrogateTokens, ending
from ramet.runtime.grammar.engines.guarded import GuardedMatcher
from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.protocol import JsonSchema
from tests.runtime.grammar.engines.test_guarded import OneText
from tests.runtime.grammar.engines.walking import TINY, allowed, spelled, takes

SPELLINGS = Spellings(TINY)
TOKENS = SurrogateTokens(SPELLINGS)


@given(
    st.lists(st.sampled_from(["\\", "u", "d", "D", "8", "b", "F", "7", "x", "00"]), max_size=12).map("".join)
)
def test_the_ending_finds_what_a_parser_finds(text: str) -> None:
    data = text.encode()
    at, found = 0, False
    while at < len(data):
        if data[at : at + 1] == b"\\":
            rest = data[at + 1 : at + 4]
            found = found or (
                rest[:1] == b"u"
                and rest[1:2] in (b"d", b"D")
                and rest[2:3].lower() in tuple(b"%c" % c for c in b"89abcdef")
            )
            at += 2
        else:
            at += 1
    assert (ending(PLAIN, data) is None) == found
    for cut in range(len(data)):
        half = ending(PLAIN, data[:cut])
        assert half is None or ending(half, data[cut:]) == ending(PLAIN, data)


def test_tokens_that_would_write_one_are_taken_out() -> None:
    for text, reached in ((b"\\ud8", 3), (b"\\\\ud8", 5), (b"\\uD7", 4), (b"x\\uDfx", 4)):
        made = GuardedMatcher(SurrogateGuard(OneText(text), TOKENS), SPELLINGS)
        count = 0
        for byte in text:
            (token_id,) = spelled(bytes([byte]), TINY)
            if not made.accept(token_id):
                break
            count += 1
        assert count == reached
    made = GuardedMatcher(SurrogateGuard(OneText(b"\\ud8"), TOKENS), SPELLINGS)
    assert spelled("\\ud8", TINY)[0] not in allowed(made, TINY)
    assert made.accept(spelled("\\u", TINY)[0])
    assert spelled("d8", TINY)[0] not in allowed(made, TINY)
    made.rollback(1)
    assert made.accept(spelled("\\", TINY)[0])


def test_no_engine_lets_one_through(tiny_router: EngineRouter) -> None:
    for engine in ("llguidance", "xgrammar"):
        compiled = tiny_router.compile(JsonSchema('{"type":"string"}', engine))
        for text in ('"\\ud8ab"', '"\\uDFFF"', '"a\\ud83d"'):
            assert not takes(compiled, spelled(text, TINY), TINY), (engine, text)
        for text in ('"\\u0007"', '"\\\\ud8ab"', '"ud8"'):
            assert takes(compiled, spelled(text, TINY), TINY), (engine, text)
            assert json.loads(text)
