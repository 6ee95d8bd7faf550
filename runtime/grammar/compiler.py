"""GrammarCompiler: a backend with a bounded cache of what it compiled."""

import threading
from collections import OrderedDict

from ramet.runtime.grammar.backend import CompiledGrammar, GrammarBackend
from ramet.runtime.protocol import GrammarSpec

DEFAULT_MAX_ENTRIES = 256


class GrammarCompiler:
    """Compiles each spec once and keeps the ``max_entries`` most recently used results.

    Is a GrammarBackend itself. Safe to call from several threads; two that ask for the same new spec at the
    same time may both compile it. Failures are not kept.
    """

    def __init__(self, backend: GrammarBackend, max_entries: int = DEFAULT_MAX_ENTRIES) -> None:
        if max_entries < 1:
            raise ValueError(f"max_entries is {max_entries}; it must be at least 1")
        self._backend = backend
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._compiled: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()

    @property
    def kinds(self) -> frozenset[str]:
        return self._backend.kinds

    def __len__(self) -> int:
        return len(self._compiled)

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Raises UnsupportedConstraintError where the backend cannot enforce the spec whole."""
        with self._lock:
            known = self._compiled.get(spec)
            if known is not None:
                self._compiled.move_to_end(spec)
                return known
        # Not under the lock: compiling can take long, and others must not wait for it.
        compiled = self._backend.compile(spec)
        with self._lock:
            self._compiled[spec] = compiled
            self._compiled.move_to_end(spec)
            while len(self._compiled) > self._max_entries:
                self._compiled.popitem(last=False)
        return compiled
