"""The clock sees each mask, and changes nothing."""

import numpy as np

from benchmarks.mask_clock import MaskClock, TimedBackend
from ramet.runtime.grammar.backend import ForcedText, RiskyBackend
from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.protocol import Choice, JsonSchema
from tests.runtime.grammar.engines.walking import TINY, tiny_takes


def test_a_timed_grammar_is_the_same_grammar() -> None:
    clock = MaskClock()
    router = EngineRouter(TINY)
    backend = TimedBackend(router, clock)
    assert isinstance(backend, RiskyBackend)
    assert backend.kinds == router.kinds
    assert backend.probe_builder == router.probe_builder
    assert not backend.needs_probe(JsonSchema("true"))
    compiled = backend.compile(JsonSchema('{"const":"ab"}', max_whitespace=0))
    takes = tiny_takes(compiled)
    assert takes('"ab"')
    assert not takes('"ba"')
    assert clock.masks


def test_a_matcher_forks_and_tells_what_is_forced() -> None:
    clock = MaskClock()
    spec = JsonSchema('{"const":"ab"}', max_whitespace=0)
    plain, timed = (
        backend.compile(spec).matcher()
        for backend in (EngineRouter(TINY), TimedBackend(EngineRouter(TINY), clock))
    )
    assert isinstance(timed, ForcedText)
    assert timed.forced_tokens() == plain.forced_tokens()
    assert timed.forced_bytes() == b'"ab"'
    fork = timed.fork()
    row = np.zeros(-(-TINY.vocab_size // 32), dtype=np.int32)
    fork.fill_bitmask(row)
    first = int(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0])
    assert fork.accept(first)
    fork.rollback(1)
    assert not fork.is_terminated()
    assert not fork.is_unconstrained()
    assert (len(clock.masks), len(clock.forced)) == (1, 2)


def test_what_knows_no_forced_text_has_none() -> None:
    timed = TimedBackend(EngineRouter(TINY), MaskClock()).compile(Choice(("a", "b"))).matcher()
    assert isinstance(timed, ForcedText)
    assert timed.forced_bytes() == b""
