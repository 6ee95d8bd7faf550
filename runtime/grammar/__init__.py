"""Constrained decoding: the interfaces, the compile cache, backends for choices and prefixes. No torch."""

from ramet.runtime.grammar.backend import CompiledGrammar, GrammarBackend, GrammarMatcher, Vocabulary
from ramet.runtime.grammar.choice import ChoiceBackend
from ramet.runtime.grammar.compiler import GrammarCompiler
from ramet.runtime.grammar.prefix import PrefixBackend
from ramet.runtime.grammar.token_table import TokenTable

__all__ = [
    "ChoiceBackend",
    "CompiledGrammar",
    "GrammarBackend",
    "GrammarCompiler",
    "GrammarMatcher",
    "PrefixBackend",
    "TokenTable",
    "Vocabulary",
]
