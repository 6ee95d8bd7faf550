"""The bounded cache of compiled grammars."""

import pytest

from ramet.runtime.grammar.backend import CompiledGrammar
from ramet.runtime.grammar.choice import ChoiceBackend
from ramet.runtime.grammar.compiler import GrammarCompiler
from ramet.runtime.protocol import Choice, GrammarSpec, Regex, UnsupportedConstraintError
from tests.runtime.grammar.fakes import ListVocabulary


class CountingBackend:
    """A choice backend that writes down what it compiles."""

    def __init__(self) -> None:
        self._backend = ChoiceBackend(ListVocabulary([b"a", b"b", b"c", None], [3]))
        self.compiled: list[GrammarSpec] = []

    @property
    def kinds(self) -> frozenset[str]:
        return self._backend.kinds

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        self.compiled.append(spec)
        return self._backend.compile(spec)


A, B, C = Choice(("a",)), Choice(("b",)), Choice(("c",))


def test_a_spec_is_compiled_once() -> None:
    backend = CountingBackend()
    compiler = GrammarCompiler(backend)
    assert compiler.compile(A) is compiler.compile(Choice(("a",)))
    assert compiler.compile(A) is not compiler.compile(B)
    assert backend.compiled == [A, B]


def test_the_least_recently_used_goes_first() -> None:
    backend = CountingBackend()
    compiler = GrammarCompiler(backend, max_entries=2)
    for spec in (A, B, A, C, A, B):
        compiler.compile(spec)
    assert backend.compiled == [A, B, C, B]
    assert len(compiler) == 2


def test_failures_are_raised_and_not_kept() -> None:
    backend = CountingBackend()
    compiler = GrammarCompiler(backend)
    for _ in range(2):
        with pytest.raises(UnsupportedConstraintError, match="Regex"):
            compiler.compile(Regex("a"))
    assert len(backend.compiled) == 2
    assert len(compiler) == 0


def test_the_bound_must_be_positive() -> None:
    with pytest.raises(ValueError, match="max_entries is 0"):
        GrammarCompiler(CountingBackend(), max_entries=0)
