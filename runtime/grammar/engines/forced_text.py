"""Text that a grammar forces, found by its masks.

Engines that know it themselves give the whole of it, however long: xgrammar for a grammar whose rules double
forty times, llguidance without end, and without letting another thread run, where one lexeme swallows what the
next one needs (``/a+/ "a"``). Here the work is bounded.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.engines.spellings import Spellings

MAX_FORCED_BYTES = 32
"""That are looked for. A byte costs a mask, of which some tens are filled in a millisecond."""
MAX_ALLOWED_WORDS = 32
"""Words of a mask with a bit in them: where there are more, the next byte is taken not to be forced."""


class Steps(Protocol):
    """Of an EngineState, what is needed here."""

    def consume(self, token_id: int) -> bool: ...

    def can_stop(self) -> bool: ...

    def fill(self, row: npt.NDArray[np.int32]) -> None: ...

    def undo(self, num_tokens: int) -> None: ...


def forced_by_masks(state: Steps, spellings: Spellings, first: npt.NDArray[np.int32]) -> bytes:
    """What every continuation begins with, as far as it is found: at most MAX_FORCED_BYTES, each of which the
    vocabulary has as a token. ``first``: the mask of the state, which is left as it was.

    Raises RequestFailedError: the engine failed, and its state is of no use any more.
    """
    text = bytearray()
    row = first.copy()
    while len(text) < MAX_FORCED_BYTES and not state.can_stop():
        if text:
            row.fill(0)
            state.fill(row)
        byte = _first_byte(row, spellings)
        token_id = -1 if byte is None else int(spellings.byte_tokens[byte])
        if byte is None or token_id < 0 or not state.consume(token_id):
            break
        text.append(byte)
    if text:
        state.undo(len(text))
    return bytes(text)


def _first_byte(row: npt.NDArray[np.int32], spellings: Spellings) -> int | None:
    """The byte that every allowed token begins with; None: they differ, or one of them spells nothing."""
    row[spellings.stops.words] &= ~spellings.stops.values
    (words,) = np.nonzero(row)
    if not len(words) or len(words) > MAX_ALLOWED_WORDS:
        return None
    bits = np.unpackbits(row[words].view(np.uint8), bitorder="little").reshape(len(words), 32)
    which, places = np.nonzero(bits)
    first = spellings.first_bytes[32 * words[which] + places]
    return int(first[0]) if first[0] >= 0 and bool((first == first[0]).all()) else None
