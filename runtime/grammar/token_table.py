"""A tokenizer's tokens sorted by what they spell, and sets of tokens as sparse masks."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.backend import Vocabulary


class TokenTable:
    """The tokens that spell something, sorted by their bytes. Immutable; one per tokenizer.

    A stop token ends the output, whatever it would spell, so it is not among them.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocab_size = vocabulary.vocab_size
        stops = {token_id for token_id in vocabulary.stop_token_ids if 0 <= token_id < vocabulary.vocab_size}
        self.bytes_of: dict[int, bytes] = {}
        ids_of: dict[bytes, list[int]] = {}
        for token_id in range(vocabulary.vocab_size):
            spelled = None if token_id in stops else vocabulary.token_bytes(token_id)
            if spelled:
                self.bytes_of[token_id] = spelled
                ids_of.setdefault(spelled, []).append(token_id)
        self.strings = sorted(ids_of)
        self.ids = [tuple(ids_of[string]) for string in self.strings]
        """Of the tokens that spell ``strings[i]``."""
        self.stop_token_ids = tuple(sorted(stops))
        self.single_bytes = frozenset(string[0] for string in self.strings if len(string) == 1)
        self.max_length = max(map(len, self.strings), default=0)
        """Of the longest string, bytes."""

    def starting_with(self, prefix: bytes) -> range:
        """Places in ``strings`` of those that begin with ``prefix``, itself included."""
        first = bisect_left(self.strings, prefix)
        length = len(prefix)
        end = bisect_left(self.strings, True, first, key=lambda string: string[:length] != prefix)
        return range(first, end)

    def ids_spelling(self, string: bytes) -> tuple[int, ...]:
        """Ids of the tokens that spell exactly this; may be none."""
        place = bisect_left(self.strings, string)
        if place == len(self.strings) or self.strings[place] != string:
            return ()
        return self.ids[place]

    def is_extendable(self, string: bytes) -> bool:
        """Whether a longer token begins with ``string``."""
        place = bisect_left(self.strings, string)
        if place < len(self.strings) and self.strings[place] == string:
            place += 1
        return place < len(self.strings) and self.strings[place].startswith(string)


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """A set of tokens, ascending, and the non-zero words of its bitmask."""

    token_ids: tuple[int, ...]
    words: npt.NDArray[np.int64]
    values: npt.NDArray[np.int32]

    @classmethod
    def of(cls, token_ids: Iterable[int]) -> "AllowedTokens":
        """token_ids: in any order, each once."""
        ordered = tuple(sorted(token_ids))
        ids = np.array(ordered, dtype=np.int64)
        words, starts = np.unique(ids // 32, return_index=True)
        bits = np.left_shift(np.uint32(1), (ids % 32).astype(np.uint32))
        values = np.bitwise_or.reduceat(bits, starts) if len(ids) else bits
        return cls(ordered, words, values.astype(np.uint32).view(np.int32))

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """Write the set as a bitmask into ``row``."""
        row.fill(0)
        row[self.words] = self.values
