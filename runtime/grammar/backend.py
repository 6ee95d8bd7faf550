"""The three interfaces of constrained decoding: backend, compiled grammar, matcher.

One int32 bitmask row per position: bit ``t % 32`` of word ``t // 32`` is 1 where token ``t`` is allowed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ramet.runtime.protocol import GrammarSpec

if TYPE_CHECKING:
    from ramet.runtime.grammar.token_table import TokenTable


class GrammarMatcher(Protocol):
    """The state of one request inside its grammar. Advanced by committed tokens only."""

    def accept(self, token_id: int) -> bool:
        """Advance by one token. False: the grammar does not allow it here, and the state is unchanged."""
        ...

    def fill_bitmask(self, row: npt.NDArray[np.int32]) -> None:
        """Write the allowed next tokens into ``row`` ([ceil(vocab_size / 32)]), stop tokens included."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undo the last ``num_tokens`` accepted tokens."""
        ...

    def forced_tokens(self) -> list[int]:
        """The tokens that must come next, as far as only one is possible; may be empty."""
        ...

    def is_terminated(self) -> bool:
        """A stop token was accepted: nothing more can follow."""
        ...

    def is_unconstrained(self) -> bool:
        """From here on every token is allowed, now and later: the request needs no matcher any more."""
        ...

    def fork(self) -> "GrammarMatcher":
        """An independent matcher in the same state."""
        ...


@runtime_checkable
class ForcedText(Protocol):
    """A GrammarMatcher that knows text which must come next, where several ways to spell it are open."""

    def forced_bytes(self) -> bytes:
        """What every continuation begins with, in whatever tokens; empty where nothing is known."""
        ...


@runtime_checkable
class ClosingGrammar(Protocol):
    """A GrammarMatcher that does not accept what leaves no room for an ending."""

    def begin_closing(self, token_id: int) -> bool:
        """From now on only an ending is accepted, because ``token_id``, which was not, left no room for one.
        False: the grammar does not allow it at all."""
        ...


class CompiledGrammar(Protocol):
    """Immutable and shared between requests."""

    def matcher(self) -> GrammarMatcher: ...


Check = Callable[[str], list[str]]
"""From a finished answer to what is wrong with it; empty: nothing. Called by any thread."""


@runtime_checkable
class PartialGrammar(Protocol):
    """A CompiledGrammar that may be weaker than its spec: then a finished answer has to pass ``check``."""

    @property
    def check(self) -> Check | None:
        """None: the whole of the spec is enforced."""
        ...


def check_of(compiled: CompiledGrammar) -> Check | None:
    """What a finished answer has to pass besides; None: nothing."""
    return compiled.check if isinstance(compiled, PartialGrammar) else None


class GrammarBackend(Protocol):
    """One per tokenizer."""

    @property
    def kinds(self) -> frozenset[str]:
        """Tags of the GrammarSpec kinds that it can enforce: choice, regex, ..."""
        ...

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Raises UnsupportedConstraintError where the spec cannot be enforced whole."""
        ...


@runtime_checkable
class SizedGrammar(Protocol):
    """A CompiledGrammar that knows how much memory it holds; without it the cache estimates."""

    @property
    def num_bytes(self) -> int: ...


@runtime_checkable
class KnowsTokens(Protocol):
    """A GrammarBackend that has its tokenizer's tokens sorted."""

    @property
    def tokens(self) -> "TokenTable": ...


@runtime_checkable
class RiskyBackend(Protocol):
    """A GrammarBackend some of whose engines can hang, take all memory or kill their process.

    What ``needs_probe`` says so of is compiled in a child process first, which builds its own backend with
    ``probe_builder``: the name ``module:function`` of a function from a Vocabulary to a GrammarBackend.
    """

    @property
    def probe_builder(self) -> str: ...

    def needs_probe(self, spec: GrammarSpec) -> bool: ...


@runtime_checkable
class LoadsEngines(Protocol):
    """A GrammarBackend that imports an engine, and reads the vocabulary into it, when a spec first needs it."""

    def load(self, spec: GrammarSpec) -> None:
        """Do so now, for what ``compile`` of this spec may need. Raises InvalidRequestError: not installed."""
        ...


class Vocabulary(Protocol):
    """What a grammar backend needs to know of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Width of the model's logits (padding included)."""
        ...

    @property
    def stop_token_ids(self) -> Sequence[int]: ...

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes that a token spells; None for special and unused tokens."""
        ...


@runtime_checkable
class NamesControlTokens(Protocol):
    """A Vocabulary that knows its control tokens by their texts."""

    @property
    def special_tokens(self) -> Mapping[str, int]: ...
