"""GuardedMatcher: what every engine's matcher has in common, and what none may get wrong.

Stop tokens are kept out of the engines: here they are allowed where the grammar may end, counted by rollback,
and never mistaken for text. A state in which nothing is allowed is an error with a name, not a row of zeros.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.engines.forced_text import forced_by_masks
from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.protocol import RequestFailedError

MAX_FORCED_TOKENS = 64
"""Of one look ahead; a longer run is found piece by piece."""


class EngineState(Protocol):
    """An engine's place in a grammar, without stop tokens."""

    def consume(self, token_id: int) -> bool:
        """Advance. False: not allowed, and nothing changed. Raises RequestFailedError: the engine failed."""
        ...

    def can_stop(self) -> bool:
        """The output so far is complete."""
        ...

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """Write the allowed tokens into ``row``: contiguous, ``Spellings.num_words`` long. Bits of stop tokens
        may have any value. Raises RequestFailedError: the engine failed.
        """
        ...

    def undo(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` (at least 1) that were consumed."""
        ...

    def forced_bytes(self) -> bytes | None:
        """What every continuation begins with, as far as the engine knows; may be empty. None: it is not to be
        asked, and only masks tell.
        """
        ...

    def copy(self) -> "EngineState": ...


class GuardedMatcher:
    """A GrammarMatcher on an engine's state.

    Invariant: the state has consumed ``num_accepted`` tokens, less the stop token if one has ended the output.
    ``_row`` is the state's mask, where it was needed to find what is forced, and ``_ahead`` what was found by
    masks and is still to come: some grammars' masks take long.
    """

    def __init__(self, state: EngineState, spellings: Spellings) -> None:
        self._state = state
        self._spellings = spellings
        self._stops = frozenset(spellings.stop_token_ids)
        self._num_accepted = 0
        self._has_ended = False
        self._row: npt.NDArray[np.int32] | None = None
        self._ahead = b""

    def accept(self, token_id: int) -> bool:
        """Raises RequestFailedError: the engine failed."""
        if self._has_ended or not 0 <= token_id < self._spellings.vocab_size:
            return False
        if token_id in self._stops:
            if not self._state.can_stop():
                return False
            self._has_ended = True
        elif not self._state.consume(token_id):
            return False
        self._row = None
        text = self._spellings.plain[token_id] if self._ahead else b""
        self._ahead = self._ahead[len(text) :] if self._ahead.startswith(text) else b""
        self._num_accepted += 1
        return True

    def fill_bitmask(self, row: npt.NDArray[np.int32]) -> None:
        """Raises RequestFailedError: the engine failed, or nothing is allowed and the output is incomplete."""
        if self._has_ended:
            row.fill(0)
            return
        num_words = self._spellings.num_words
        if self._row is not None:
            row[num_words:] = 0
            row[:num_words] = self._row
        elif row.flags.c_contiguous and len(row) == num_words:
            self._state.fill(row)
        else:
            exact = np.zeros(num_words, dtype=np.int32)
            self._state.fill(exact)
            row[:] = 0
            row[:num_words] = exact
        stops = self._spellings.stops
        row[stops.words] &= ~stops.values
        if self._state.can_stop():
            row[stops.words] |= stops.values
        elif not row.any():
            raise RequestFailedError(
                f"the grammar cannot go on after {self._num_accepted} tokens: this model has no token that it "
                "allows there, and the output is not complete"
            )

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= self._num_accepted:
            raise ValueError(f"cannot roll back {num_tokens} tokens: {self._num_accepted} were accepted")
        if not num_tokens:
            return
        self._num_accepted -= num_tokens
        self._row, self._ahead = None, b""
        if self._has_ended:
            self._has_ended = False
            num_tokens -= 1
        if num_tokens:
            self._state.undo(num_tokens)

    def forced_tokens(self) -> list[int]:
        """Tokens at whose places the mask has a single bit. Text that is forced but can be spelled by several
        tokens is not forced in this sense; see ``forced_bytes``.
        """
        forced: list[int] = []
        num_consumed = 0
        first: npt.NDArray[np.int32] | None = None
        try:
            while not self._has_ended and len(forced) < MAX_FORCED_TOKENS:
                token_id = self._only_token()
                first = first if num_consumed else self._row
                if token_id is None:
                    break
                forced.append(token_id)
                if token_id in self._stops or not self._state.consume(token_id):
                    break
                self._row = None
                num_consumed += 1
        finally:
            if num_consumed:
                self._state.undo(num_consumed)
                self._row = first
        return forced

    def forced_bytes(self) -> bytes:
        """What every continuation begins with, in whatever tokens; empty where nothing is known."""
        if self._has_ended:
            return b""
        known = self._state.forced_bytes()
        if known is not None:
            return known
        if not self._ahead:
            self._ahead = forced_by_masks(self._state, self._spellings, self._mask())
        return self._ahead

    def is_terminated(self) -> bool:
        return self._has_ended

    def is_unconstrained(self) -> bool:
        return False

    def fork(self) -> "GuardedMatcher":
        fork = GuardedMatcher(self._state.copy(), self._spellings)
        fork._num_accepted = self._num_accepted
        fork._has_ended = self._has_ended
        return fork

    def _mask(self) -> npt.NDArray[np.int32]:
        """Of the state, kept until it changes."""
        if self._row is None:
            row = np.zeros(self._spellings.num_words, dtype=np.int32)
            self._state.fill(row)
            self._row = row
        return self._row

    def _only_token(self) -> int | None:
        """The one token that is allowed here; None: there are several."""
        if not self._may_be_single():
            return None
        row = np.zeros(self._spellings.num_words, dtype=np.int32)
        self.fill_bitmask(row)
        (words,) = np.nonzero(row)
        if len(words) != 1:
            return None
        bits = int(row[words[0]]) & 0xFFFFFFFF
        return None if bits & (bits - 1) else int(words[0]) * 32 + bits.bit_length() - 1

    def _may_be_single(self) -> bool:
        """Whether it is worth a mask: false where two tokens are seen to be allowed."""
        if self._state.can_stop():
            return len(self._stops) == 1
        text = self._state.forced_bytes()
        if text is None:
            self._mask()
            return True
        if not text:
            return False
        tokens = self._spellings.tokens
        ends = range(1, min(len(text), tokens.max_length) + 1)
        count = 0
        for end in ends:
            count += len(tokens.ids_spelling(text[:end]))
            if count > 1:
                return False
        return True
