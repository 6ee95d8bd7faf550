"""What constraints cost inside of an engine: a clock around each mask and each look for forced text."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ramet import Engine
from ramet.runtime.grammar import CompiledGrammar, GrammarMatcher
from ramet.runtime.grammar.backend import ForcedText, GrammarBackend, RiskyBackend
from ramet.runtime.protocol import GrammarSpec

Result = TypeVar("Result")


class MaskClock:
    """Seconds of every mask, and of every look for forced text. Written by the engine's threads: read it when
    the engine is idle."""

    def __init__(self) -> None:
        self.masks: list[float] = []
        self.forced: list[float] = []

    def install(self, engine: Engine) -> None:
        """In front of the grammars of an engine that has not compiled any yet."""
        client: Any = engine._client
        client.call(self._replace)

    def _replace(self, core: Any) -> None:
        compiler = core._grammar
        compiler._backend = TimedBackend(compiler._backend, self)


class TimedBackend:
    """A RiskyBackend whose grammars' matchers are timed."""

    def __init__(self, backend: GrammarBackend, clock: MaskClock) -> None:
        self._backend = backend
        self._clock = clock

    @property
    def kinds(self) -> frozenset[str]:
        return self._backend.kinds

    @property
    def probe_builder(self) -> str:
        assert isinstance(self._backend, RiskyBackend)
        return self._backend.probe_builder

    def needs_probe(self, spec: GrammarSpec) -> bool:
        return isinstance(self._backend, RiskyBackend) and self._backend.needs_probe(spec)

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        return _TimedGrammar(self._backend.compile(spec), self._clock)


class _TimedGrammar:
    def __init__(self, compiled: CompiledGrammar, clock: MaskClock) -> None:
        self._compiled = compiled
        self._clock = clock

    def matcher(self) -> GrammarMatcher:
        return TimedMatcher(self._compiled.matcher(), self._clock)


class TimedMatcher:
    """A GrammarMatcher, and ForcedText where the timed one is."""

    def __init__(self, matcher: GrammarMatcher, clock: MaskClock) -> None:
        self._matcher = matcher
        self._clock = clock

    def accept(self, token_id: int) -> bool:
        return self._matcher.accept(token_id)

    def fill_bitmask(self, row: npt.NDArray[np.int32]) -> None:
        _timed(self._clock.masks, lambda: self._matcher.fill_bitmask(row))

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)

    def forced_tokens(self) -> list[int]:
        return _timed(self._clock.forced, self._matcher.forced_tokens)

    def forced_bytes(self) -> bytes:
        matcher = self._matcher
        return _timed(self._clock.forced, matcher.forced_bytes) if isinstance(matcher, ForcedText) else b""

    def is_terminated(self) -> bool:
        return self._matcher.is_terminated()

    def is_unconstrained(self) -> bool:
        return self._matcher.is_unconstrained()

    def fork(self) -> "TimedMatcher":
        return TimedMatcher(self._matcher.fork(), self._clock)


def _timed(seconds: list[float], work: Callable[[], Result]) -> Result:
    started = time.perf_counter()
    result = work()
    seconds.append(time.perf_counter() - started)
    return result
