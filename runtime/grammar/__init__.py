"""Constrained decoding: the interfaces, the compile cache, and the backend for choices. No torch."""

from ramet.runtime.grammar.backend import CompiledGrammar, GrammarBackend, GrammarMatcher, Vocabulary
from ramet.runtime.grammar.choice import ChoiceBackend
from ramet.runtime.grammar.compiler import GrammarCompiler

__all__ = [
    "ChoiceBackend",
    "CompiledGrammar",
    "GrammarBackend",
    "GrammarCompiler",
    "GrammarMatcher",
    "Vocabulary",
]
