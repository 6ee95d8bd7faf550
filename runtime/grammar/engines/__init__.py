"""The engines that enforce grammars, and the router that chooses among them. Imports none of their
libraries."""

from ramet.runtime.grammar.engines.router import EngineRouter

__all__ = ["EngineRouter"]
