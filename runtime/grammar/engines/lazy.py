"""LazyRouter: the router among the engines, imported when the first constraint comes."""

import threading
from typing import TYPE_CHECKING

from ramet.runtime.grammar.backend import CompiledGrammar, Vocabulary
from ramet.runtime.protocol import GrammarSpec

if TYPE_CHECKING:
    from ramet.runtime.grammar.engines.router import EngineRouter
    from ramet.runtime.grammar.token_table import TokenTable

KINDS = frozenset({"choice", "ebnf", "json_schema", "prefix", "regex", "structural_tag"})
PROBE_BUILDER = "ramet.runtime.grammar.engines.router:EngineRouter"


class LazyRouter:
    """An EngineRouter for a vocabulary, made on first use: an engine that is never asked for a constraint
    starts without the planning of schemas and all that stands behind it. Thread-safe.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._made: EngineRouter | None = None

    @property
    def kinds(self) -> frozenset[str]:
        return KINDS

    @property
    def probe_builder(self) -> str:
        return PROBE_BUILDER

    @property
    def tokens(self) -> "TokenTable":
        return self._router().tokens

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """As EngineRouter's."""
        return self._router().compile(spec)

    def load(self, spec: GrammarSpec) -> None:
        """As EngineRouter's."""
        self._router().load(spec)

    def needs_probe(self, spec: GrammarSpec) -> bool:
        """As EngineRouter's."""
        return self._router().needs_probe(spec)

    def _router(self) -> "EngineRouter":
        with self._lock:
            if self._made is None:
                from ramet.runtime.grammar.engines.router import EngineRouter

                self._made = EngineRouter(self._vocabulary)
            return self._made
