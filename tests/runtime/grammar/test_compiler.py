"""Compiling off the caller's thread: once each, within limits, remembered, for better or worse."""

import threading
from collections.abc import Iterator

import pytest

from ramet.runtime.grammar.compiler import CompileLimits, GrammarCompiler, canonical_key
from ramet.runtime.grammar.service import ProbeLimits
from ramet.runtime.protocol import (
    Choice,
    Ebnf,
    GrammarSpec,
    Prefix,
    Regex,
    RequestFailedError,
    UnsupportedConstraintError,
)
from tests.runtime.grammar.service.reachable import builders_reachable  # noqa: F401
from tests.runtime.grammar.service.test_job_threads import LIMIT, until
from tests.runtime.grammar.service.troubled import VOCABULARY, CompiledRepeat, TroubledBackend

LIMITS = CompileLimits(deadline=LIMIT, probe=ProbeLimits(seconds=3.0, memory_bytes=256 << 20))


@pytest.fixture
def backend() -> Iterator[TroubledBackend]:
    backend = TroubledBackend()
    yield backend
    backend.let_go.set()


@pytest.fixture
def compiler(backend: TroubledBackend) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(backend, LIMITS, vocabulary=VOCABULARY)
    yield compiler
    compiler.close()


def test_a_spec_is_compiled_once(backend: TroubledBackend, compiler: GrammarCompiler) -> None:
    assert compiler.compile(Regex("a")) is compiler.compile(Regex("a"))
    assert compiler.compile(Regex("b")) is not compiler.compile(Regex("a"))
    assert backend.compiled == ["a", "b"]
    stats = compiler.stats()
    assert (stats.num_hits, stats.num_misses, stats.num_refused) == (2, 2, 0)
    assert stats.cached_bytes == 2000


def test_all_who_ask_while_it_compiles_get_the_same(
    backend: TroubledBackend, compiler: GrammarCompiler
) -> None:
    first = compiler.submit(Regex("hold"))
    assert not compiler.poll(first)
    assert compiler.submit(Regex("hold")) is first
    backend.let_go.set()
    until(lambda: compiler.poll(first))
    later = compiler.submit(Regex("hold"))
    assert later.is_done
    assert later.result() is first.result()
    assert backend.compiled == ["hold"]


def test_one_that_takes_long_does_not_hold_others(backend: TroubledBackend, compiler: GrammarCompiler) -> None:
    slow = compiler.submit(Regex("hold"))
    assert isinstance(compiler.compile(Regex("quick")), CompiledRepeat)
    assert not compiler.poll(slow)


def test_a_refusal_is_remembered_and_each_time_a_new_exception(
    backend: TroubledBackend, compiler: GrammarCompiler
) -> None:
    errors = []
    for _ in range(3):
        with pytest.raises(UnsupportedConstraintError, match="for a reason") as caught:
            compiler.compile(Regex("refuse"))
        errors.append(caught.value)
    assert len(set(map(id, errors))) == 3
    assert {error.field for error in errors} == {"grammar"}
    assert backend.compiled == ["refuse"]
    with pytest.raises(UnsupportedConstraintError):
        compiler.submit(Regex("refuse"))


def test_what_is_not_the_specs_fault_is_not_remembered(
    backend: TroubledBackend, compiler: GrammarCompiler
) -> None:
    for pattern, message in (("fail", "not now"), ("bug", "KeyError: 'a mistake'")):
        for _ in range(2):
            with pytest.raises(RequestFailedError, match=message):
                compiler.compile(Regex(pattern))
    assert backend.compiled == ["fail", "fail", "bug", "bug"]


def test_a_kind_that_nobody_enforces_is_refused_at_once(
    backend: TroubledBackend, compiler: GrammarCompiler
) -> None:
    for spec in (Choice(("a",)), Ebnf("root ::= a"), Prefix("a")):
        with pytest.raises(UnsupportedConstraintError, match=rf"{type(spec).__name__}.*regex"):
            compiler.submit(spec)
    assert backend.compiled == []


def test_past_the_deadline_the_spec_is_refused_and_its_thread_replaced(backend: TroubledBackend) -> None:
    compiler = GrammarCompiler(backend, CompileLimits(deadline=0.1, num_threads=1), vocabulary=VOCABULARY)
    slow = compiler.submit(Regex("hold"))
    until(lambda: compiler.poll(slow))
    with pytest.raises(UnsupportedConstraintError, match=r"not done after 0\.1.* s; make it smaller"):
        slow.result()
    with pytest.raises(UnsupportedConstraintError, match="not done"):
        compiler.submit(Regex("hold"))
    assert isinstance(compiler.compile(Regex("quick")), CompiledRepeat)
    assert compiler.stats().num_stuck_threads == 1
    compiler.close()


def test_a_spec_behind_others_waits_for_a_bounded_time_and_may_come_again(backend: TroubledBackend) -> None:
    limits = CompileLimits(deadline=LIMIT, longest_wait=0.1, num_threads=1)
    compiler = GrammarCompiler(backend, limits, vocabulary=VOCABULARY)
    compiler.submit(Regex("hold"))
    waiting = compiler.submit(Regex("quick"))
    until(lambda: compiler.poll(waiting))
    with pytest.raises(RequestFailedError, match=r"not compiled within 0\.1 s.*try again"):
        waiting.result()
    backend.let_go.set()
    # On a machine that is busy the thread may take longer than that to come back to it.
    until(lambda: is_compiled(compiler, Regex("quick")))
    compiler.close()


def is_compiled(compiler: GrammarCompiler, spec: GrammarSpec) -> bool:
    try:
        return isinstance(compiler.compile(spec), CompiledRepeat)
    except RequestFailedError:
        return False


def test_what_is_risky_is_compiled_in_a_child_first(
    backend: TroubledBackend, compiler: GrammarCompiler
) -> None:
    assert isinstance(compiler.compile(Regex("!aaa")), CompiledRepeat)
    assert backend.compiled == ["!aaa"]
    for pattern, message in (("!die", "SIGABRT"), ("!sleep 60", "after 3 s"), ("!refuse", "for a reason")):
        for _ in range(2):
            with pytest.raises(UnsupportedConstraintError, match=message):
                compiler.compile(Regex(pattern))
    assert backend.compiled == ["!aaa"], "what the child could not compile was compiled here"
    assert compiler.stats().num_refused == 3


def test_one_that_hangs_in_the_child_does_not_hold_others(compiler: GrammarCompiler) -> None:
    slow = compiler.submit(Regex("!sleep 60"))
    assert isinstance(compiler.compile(Regex("quick")), CompiledRepeat)
    until(lambda: compiler.poll(slow))


def test_the_caches_are_bounded_in_bytes(backend: TroubledBackend) -> None:
    limits = CompileLimits(cache_bytes=7000, refusal_bytes=1400)
    compiler = GrammarCompiler(backend, limits, vocabulary=VOCABULARY)
    for pattern in ("aaa", "bbb", "aaa", "ccc", "aaa", "bbb", "d" * 8, "d" * 8):
        compiler.compile(Regex(pattern))
    assert backend.compiled == ["aaa", "bbb", "ccc", "bbb", "d" * 8, "d" * 8]
    for name in ("x", "y", "z", "x"):
        with pytest.raises(UnsupportedConstraintError):
            compiler.compile(Regex(f"refuse {name}"))
    assert backend.compiled[-4:] == ["refuse x", "refuse y", "refuse z", "refuse x"]
    assert compiler.stats().cached_bytes <= 8400
    compiler.close()


def test_a_condemned_spec_is_refused(backend: TroubledBackend, compiler: GrammarCompiler) -> None:
    compiler.compile(Regex("aaa"))
    compiler.condemn(Regex("aaa"), "its masks take too long; make it smaller")
    with pytest.raises(UnsupportedConstraintError, match="masks take too long"):
        compiler.compile(Regex("aaa"))
    assert backend.compiled == ["aaa"]


def test_whoever_waits_is_told(backend: TroubledBackend) -> None:
    told = threading.Event()
    compiler = GrammarCompiler(backend, vocabulary=VOCABULARY, on_done=told.set)
    compilation = compiler.submit(Regex("a"))
    assert told.wait(LIMIT)
    assert compiler.poll(compilation)
    compiler.close()


def test_closing_does_not_wait(backend: TroubledBackend) -> None:
    compiler = GrammarCompiler(backend, LIMITS, vocabulary=VOCABULARY)
    compiler.submit(Regex("hold"))
    compiler.submit(Regex("!sleep 60"))
    compiler.close()


def test_the_key_is_that_of_the_fields() -> None:
    assert canonical_key(Regex("a")) == canonical_key(Regex("a"))
    keys = {
        canonical_key(spec) for spec in (Regex("a"), Ebnf("a"), Choice(("a",)), Prefix("a"), Regex("\ud800"))
    }
    assert len(keys) == 5
    assert len(canonical_key(Regex("x" * 100_000))) == 32
