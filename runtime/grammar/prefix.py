"""PrefixBackend: the output spells a text in any tokenisation, and then what another grammar says, or anything.

While the text is being spelled the state is the number of its bytes that stand. The tokens allowed are those
that spell the next of its bytes, or all that remain and more. What such a token has beyond the text goes to the
inner grammar byte by byte, as tokens of one byte: a matcher takes any tokenisation of what it allows. Where the
tokenizer has no token of a byte, a token that needs it at that place is left out; nothing is allowed that
should not be.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.backend import (
    Check,
    CompiledGrammar,
    ForcedText,
    GrammarBackend,
    GrammarMatcher,
    RiskyBackend,
    check_of,
)
from ramet.runtime.grammar.token_table import AllowedTokens, TokenTable
from ramet.runtime.protocol import GrammarSpec, Prefix, UnsupportedConstraintError


class PrefixBackend:
    """Compiles Prefix, its inner grammar by ``inner``; every other kind of spec goes to ``inner`` as it is."""

    def __init__(self, inner: GrammarBackend, tokens: Callable[[], TokenTable]) -> None:
        self._inner = inner
        self._tokens = tokens

    @property
    def kinds(self) -> frozenset[str]:
        return self._inner.kinds | {"prefix"}

    @property
    def probe_builder(self) -> str:
        """Is a RiskyBackend where ``inner`` is one."""
        return self._inner.probe_builder if isinstance(self._inner, RiskyBackend) else ""

    def needs_probe(self, spec: GrammarSpec) -> bool:
        return isinstance(self._inner, RiskyBackend) and self._inner.needs_probe(spec)

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Raises UnsupportedConstraintError: no sequence of tokens spells the text, or the inner grammar cannot
        be enforced.
        """
        if not isinstance(spec, Prefix):
            return self._inner.compile(spec)
        inner = None if spec.inner is None else self._inner.compile(spec.inner)
        try:
            text = spec.text.encode()
        except UnicodeEncodeError:
            raise UnsupportedConstraintError(
                f"the prefix {spec.text[:80]!r} has a lone surrogate, which no token can spell; remove it",
                field="grammar",
            ) from None
        return CompiledPrefix(text, inner, self._tokens())


class CompiledPrefix:
    """The text as bytes, and the tokens allowed behind each of them, worked out when first met.

    What is kept for a place is a function of the place, so sharing it between matchers and threads is harmless.
    """

    def __init__(self, text: bytes, inner: CompiledGrammar | None, tokens: TokenTable) -> None:
        self.text = text
        self.tokens = tokens
        self._inner = inner
        self._allowed: dict[int, AllowedTokens] = {}
        self._live = self._live_places()
        if not self._live[0]:
            raise UnsupportedConstraintError(
                f"the prefix {text.decode()[:80]!r} cannot be spelled with this tokenizer; shorten it, or "
                "leave it out",
                field="grammar",
            )

    def matcher(self) -> "PrefixMatcher":
        return PrefixMatcher(self, self.inner_matcher())

    @property
    def check(self) -> Check | None:
        """The inner grammar's: what the text is followed by is the answer."""
        return None if self._inner is None else check_of(self._inner)

    def inner_matcher(self) -> GrammarMatcher | None:
        """At the inner grammar's start."""
        return None if self._inner is None else self._inner.matcher()

    def is_live(self, place: int) -> bool:
        """Whether tokens can spell the rest of the text from ``place`` on."""
        return self._live[place]

    def allowed(self, place: int) -> AllowedTokens:
        """The tokens that may follow the first ``place`` bytes of the text (not all of them)."""
        known = self._allowed.get(place)
        if known is None:
            known = self._allowed[place] = AllowedTokens.of(self._continuations(place))
        return known

    def _continuations(self, place: int) -> list[int]:
        found: list[int] = []
        for end in self._ends_within(place):
            if self._live[end]:
                found += self.tokens.ids_spelling(self.text[place:end])
        found += self._finishing(place)
        return found

    def _ends_within(self, place: int) -> range:
        """Where a token that begins at ``place`` may end before the text does."""
        return range(place + 1, min(place + self.tokens.max_length, len(self.text) - 1) + 1)

    def _finishing(self, place: int) -> Iterator[int]:
        """Ids of the tokens that spell all of the text from ``place`` on, and what the inner grammar allows."""
        if len(self.text) - place > self.tokens.max_length:
            return
        rest = self.text[place:]
        matcher = self.inner_matcher()
        walk = None if matcher is None else _ByteWalk(matcher, self.tokens)
        for i in self.tokens.starting_with(rest):
            if walk is None or walk.to(self.tokens.strings[i][len(rest) :]):
                yield from self.tokens.ids[i]

    def _live_places(self) -> list[bool]:
        """For each place, whether the rest of the text can be spelled; found from the end."""
        live = [False] * len(self.text)
        for place in reversed(range(len(self.text))):
            live[place] = any(
                live[end] and self.tokens.ids_spelling(self.text[place:end]) for end in self._ends_within(place)
            ) or any(True for _ in self._finishing(place))
        return live


class _ByteWalk:
    """A matcher led along one byte string after the other, from the same start."""

    def __init__(self, matcher: GrammarMatcher, tokens: TokenTable) -> None:
        self._matcher = matcher
        self._tokens = tokens
        self._stand = b""
        # The strings come sorted, so those that begin with refused bytes come one after the other.
        self._refused: bytes | None = None

    def to(self, string: bytes) -> bool:
        """Whether the grammar allows the bytes of ``string`` from its start."""
        if self._refused is not None and string.startswith(self._refused):
            return False
        common = 0
        while self._stand[common : common + 1] and self._stand[: common + 1] == string[: common + 1]:
            common += 1
        if common < len(self._stand):
            self._matcher.rollback(len(self._stand) - common)
        accepted = accept_bytes(self._matcher, string[common:], self._tokens)
        self._stand = string[: common + accepted]
        if len(self._stand) < len(string):
            self._refused = string[: len(self._stand) + 1]
            return False
        return True


def accept_bytes(matcher: GrammarMatcher, string: bytes, tokens: TokenTable) -> int:
    """Advance by tokens of one byte each; how many of the string's bytes were accepted."""
    for count, byte in enumerate(string):
        ids = tokens.ids_spelling(bytes([byte]))
        if not ids or not matcher.accept(ids[0]):
            return count
    return len(string)


class PrefixMatcher:
    """Where one request is in the text, or in the inner grammar behind it.

    Invariant: ``_steps`` has one entry for each accepted token, the place before it and the tokens that the
    inner matcher accepted for it.
    """

    def __init__(self, compiled: CompiledPrefix, inner: GrammarMatcher | None) -> None:
        self._compiled = compiled
        self._inner = inner
        self._place = 0
        self._steps: list[tuple[int, int]] = []

    def accept(self, token_id: int) -> bool:
        place, text, tokens = self._place, self._compiled.text, self._compiled.tokens
        num_inner = 0
        if place == len(text):
            if self._inner is None:
                if not 0 <= token_id < tokens.vocab_size:
                    return False
            elif self._inner.accept(token_id):
                num_inner = 1
            else:
                return False
        else:
            spelled = tokens.bytes_of.get(token_id)
            rest = text[place:]
            if spelled is None:
                return False
            if len(spelled) < len(rest):
                if not rest.startswith(spelled) or not self._compiled.is_live(place + len(spelled)):
                    return False
                self._place += len(spelled)
            else:
                if not spelled.startswith(rest) or not self._enter(spelled[len(rest) :]):
                    return False
                num_inner = 0 if self._inner is None else len(spelled) - len(rest)
                self._place = len(text)
        self._steps.append((place, num_inner))
        return True

    def _enter(self, beyond: bytes) -> bool:
        """Lead the inner grammar along the bytes behind the text; False: it refuses them and stays."""
        if self._inner is None:
            return True
        accepted = accept_bytes(self._inner, beyond, self._compiled.tokens)
        if accepted == len(beyond):
            return True
        if accepted:
            self._inner.rollback(accepted)
        return False

    def fill_bitmask(self, row: npt.NDArray[np.int32]) -> None:
        if self._place < len(self._compiled.text):
            self._compiled.allowed(self._place).fill(row)
        elif self._inner is not None:
            self._inner.fill_bitmask(row)
        else:
            row.fill(-1)
            spare = 32 * len(row) - self._compiled.tokens.vocab_size
            if spare:
                row[-1] = np.int32(2 ** (32 - spare) - 1)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= len(self._steps):
            raise ValueError(f"cannot roll back {num_tokens} tokens: {len(self._steps)} were accepted")
        if not num_tokens:
            return
        undone = self._steps[-num_tokens:]
        del self._steps[-num_tokens:]
        self._place = undone[0][0]
        num_inner = sum(count for _, count in undone)
        if num_inner:
            assert self._inner is not None
            self._inner.rollback(num_inner)

    def forced_tokens(self) -> list[int]:
        forced: list[int] = []
        ahead = self.fork()
        while ahead._place < len(self._compiled.text):
            allowed = self._compiled.allowed(ahead._place).token_ids
            if len(allowed) != 1:
                return forced
            forced += allowed
            accepted = ahead.accept(allowed[0])
            assert accepted
        return forced if ahead._inner is None else forced + ahead._inner.forced_tokens()

    def forced_bytes(self) -> bytes:
        """See ForcedText."""
        rest = self._compiled.text[self._place :]
        return rest + self._inner.forced_bytes() if isinstance(self._inner, ForcedText) else rest

    def is_terminated(self) -> bool:
        return self._inner is not None and self._inner.is_terminated()

    def is_unconstrained(self) -> bool:
        return self._place == len(self._compiled.text) and (
            self._inner is None or self._inner.is_unconstrained()
        )

    def fork(self) -> "PrefixMatcher":
        fork = PrefixMatcher(self._compiled, None if self._inner is None else self._inner.fork())
        fork._place = self._place
        fork._steps = list(self._steps)
        return fork
