"""Text that must come, found by masks: right, bounded, and without a trace in the state."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.grammar.engines.forced_text import MAX_FORCED_BYTES, forced_by_masks
from ramet.runtime.grammar.engines.guarded import GuardedMatcher
from ramet.runtime.protocol import Ebnf, GrammarSpec, JsonSchema, Regex
from ramet.runtime.tokenizer import FastTokenizer
from tests.runtime.grammar.engines.test_guarded import SPELLINGS, OneText
from tests.runtime.grammar.engines.walking import TINY, allowed, spelled


@given(st.text('ab{": \\}tu', max_size=60), st.integers(0, 60))
def test_a_single_text_is_forced_up_to_the_bound(text: str, start: int) -> None:
    state = OneText(text.encode(), path=(min(start, len(text)),))
    before = state.__dict__ | {"_path": list(state._path)}
    mask = np.zeros(SPELLINGS.num_words, dtype=np.int32)
    state.fill(mask)
    assert forced_by_masks(state, SPELLINGS, mask) == text.encode()[start:][:MAX_FORCED_BYTES]
    assert state.__dict__ == before


@pytest.mark.parametrize(
    ("spec", "start", "forced"),
    [
        (Ebnf('root ::= "abc" [0-9]', backend="xgrammar"), "", b"abc"),
        (Ebnf('root ::= "abc" [0-9]'), "a", b"bc"),
        (Ebnf('root ::= "a" ("bc" | "bd")'), "", b"ab"),
        (Ebnf('root ::= "a" | "ab"'), "", b"a"),
        (Ebnf('root ::= "a" | "ab"'), "a", b""),
        (Ebnf("root ::= [a-z]"), "", b""),
        (Ebnf('root ::= "é"'), "", "é".encode()),
        (Ebnf('start: "x" %json {"const": "abc"}'), "x", b'"abc"'),
        (Regex("abc[0-9]", backend="xgrammar"), "a", b"bc"),
        (JsonSchema('{"const": "abc"}', backend="xgrammar"), '"', b'abc"'),
    ],
)
def test_what_grammars_force(tiny_router: EngineRouter, spec: GrammarSpec, start: str, forced: bytes) -> None:
    matcher = tiny_router.compile(spec).matcher()
    for token_id in spelled(start, TINY):
        assert matcher.accept(token_id)
    before = allowed(matcher, TINY)
    assert isinstance(matcher, GuardedMatcher)
    assert matcher.forced_bytes() == forced
    assert allowed(matcher, TINY) == before


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_long_forced_text_is_found_piece_by_piece(
    router: EngineRouter, smollm2: FastTokenizer, backend: str
) -> None:
    matcher = router.compile(Ebnf(f'root ::= "{"ab" * 20_000}"', backend=backend)).matcher()
    assert isinstance(matcher, GuardedMatcher)
    for _ in range(3):
        assert matcher.forced_bytes() == b"ab" * (MAX_FORCED_BYTES // 2)
        assert matcher.forced_tokens() == []
        assert matcher.accept(smollm2.encode("abab")[0])
        matcher.rollback(1)
        assert len(matcher.forced_bytes()) == MAX_FORCED_BYTES
        for rest in range(MAX_FORCED_BYTES - 1, 0, -1):
            assert matcher.accept(smollm2.encode("ab"[rest % 2 == 0])[0])
            assert matcher.forced_bytes() == (b"ab" * MAX_FORCED_BYTES)[MAX_FORCED_BYTES - rest :][:rest]
        assert matcher.accept(smollm2.encode("b")[0])


_GREEDY = """
import sys
sys.path[:0] = sys.argv[2:]
from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.protocol import Ebnf
from tests.runtime.grammar.engines.walking import TINY, spelled
matcher = EngineRouter(TINY).compile(Ebnf(sys.argv[1])).matcher()
for token_id in spelled("aaa", TINY):
    print(matcher.forced_bytes(), matcher.forced_tokens(), matcher.accept(token_id))
"""


@pytest.mark.parametrize(
    "grammar",
    [
        'start: /a+/ "a"',
        'start: A "a"\nA: "a"+',
        'root ::= x y\nx ::= [a]+\ny ::= "a" y | "ab"',
    ],
)
def test_a_lexeme_that_takes_all_of_the_next_one_does_not_keep_the_process(grammar: str) -> None:
    """In another process: what hung here held the interpreter's lock."""
    done = subprocess.run(
        [sys.executable, "-c", _GREEDY, grammar, *sys.path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.count("True\n") == 3, done.stderr
