"""A grammar backend that does what a spec's pattern says: sleeps, dies, takes memory, or works."""

import os
import threading
import time

import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.backend import CompiledGrammar, GrammarMatcher, Vocabulary
from ramet.runtime.protocol import GrammarSpec, Regex, RequestFailedError, UnsupportedConstraintError
from tests.runtime.grammar.fakes import ListVocabulary

BUILDER = "tests.runtime.grammar.service.troubled:build"
VOCABULARY = ListVocabulary([b"a", b"b", b"c", None], [3])


def build(vocabulary: Vocabulary) -> "TroubledBackend":
    return TroubledBackend(vocabulary)


class TroubledBackend:
    """Patterns: ``sleep N``, ``die``, ``eat``, ``refuse``, ``bug``, ``mask dies``, ``hold`` (until let go);
    everything else compiles to a grammar of as many tokens ``a`` as the pattern is long. ``risky`` ones are
    those that begin with an exclamation mark."""

    def __init__(self, vocabulary: Vocabulary = VOCABULARY) -> None:
        self.vocabulary = vocabulary
        self.compiled: list[str] = []
        self.let_go = threading.Event()

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset({"regex"})

    @property
    def probe_builder(self) -> str:
        return BUILDER

    def needs_probe(self, spec: GrammarSpec) -> bool:
        return isinstance(spec, Regex) and spec.pattern.startswith("!")

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        assert isinstance(spec, Regex)
        self.compiled.append(spec.pattern)
        command, _, argument = spec.pattern.lstrip("!").partition(" ")
        match command:
            case "sleep":
                time.sleep(float(argument))
            case "die":
                os.abort()
            case "leave":
                os._exit(3)
            case "eat":
                hoard = [np.ones(1 << 24) for _ in range(1000)]
                del hoard
            case "refuse":
                raise UnsupportedConstraintError("no, for a reason", field="grammar")
            case "fail":
                raise RequestFailedError("not now")
            case "bug":
                raise KeyError("a mistake")
            case "hold":
                self.let_go.wait(60.0)
        return CompiledRepeat(len(spec.pattern), spec.pattern.lstrip("!"))


def build_slow(vocabulary: Vocabulary) -> "SlowToLoad":
    return SlowToLoad(vocabulary)


class SlowToLoad(TroubledBackend):
    """Its engine takes two seconds and 384 MB when a spec first needs it; ``missing`` needs one that is not
    installed."""

    def load(self, spec: GrammarSpec) -> None:
        if isinstance(spec, Regex) and spec.pattern == "missing":
            raise UnsupportedConstraintError("install it", field="grammar")
        if not hasattr(self, "engine"):
            time.sleep(2.0)
            self.engine = np.ones(3 << 24)


class CompiledRepeat:
    def __init__(self, length: int, pattern: str) -> None:
        self.length = length
        self.pattern = pattern

    @property
    def num_bytes(self) -> int:
        return 1000 * self.length

    def matcher(self) -> GrammarMatcher:
        return RepeatMatcher(self, 0)


class RepeatMatcher:
    """Token 0 ``length`` times, then token 3."""

    def __init__(self, compiled: CompiledRepeat, place: int) -> None:
        self.compiled = compiled
        self.place = place

    def accept(self, token_id: int) -> bool:
        if token_id != self.forced():
            return False
        self.place += 1
        return True

    def forced(self) -> int | None:
        if self.place > self.compiled.length:
            return None
        return 3 if self.place == self.compiled.length else 0

    def fill_bitmask(self, row: npt.NDArray[np.int32]) -> None:
        if self.compiled.pattern.startswith("mask dies") and self.place == 3:
            os.abort()
        if self.compiled.pattern.startswith("mask sleeps") and self.place == 3:
            time.sleep(60.0)
        row.fill(0)
        forced = self.forced()
        if forced is not None:
            row[0] = 1 << forced

    def rollback(self, num_tokens: int) -> None:
        self.place -= num_tokens

    def forced_tokens(self) -> list[int]:
        return [] if self.place > self.compiled.length else [0] * (self.compiled.length - self.place) + [3]

    def is_terminated(self) -> bool:
        return self.place > self.compiled.length

    def is_unconstrained(self) -> bool:
        return False

    def fork(self) -> "RepeatMatcher":
        return RepeatMatcher(self.compiled, self.place)
