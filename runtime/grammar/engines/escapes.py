"""SurrogateGuard: JSON text without ``\\uD800`` to ``\\uDFFF``, for an engine that lets half of a pair through.

JSON's grammar allows any four digits behind ``\\u``, but half of a surrogate pair is no character: parsers
refuse it, or make text of it that cannot be encoded. What such a pair means can be written as itself.
"""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.engines.guarded import EngineState
from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.grammar.token_table import AllowedTokens

PLAIN, BACKSLASH, ESCAPE_U, ESCAPE_UD = range(4)
"""What the text ends with: nothing of an escape sequence, a backslash, ``\\u``, ``\\ud``."""
_SURROGATE = frozenset(b"89abcdefABCDEF")


def ending(start: int, text: bytes) -> int | None:
    """What the text ends with that goes on with ``text``; None: there is half of a surrogate pair in it."""
    place = start
    for byte in text:
        match place:
            case 0:
                place = BACKSLASH if byte == 0x5C else PLAIN
            case 1:
                place = ESCAPE_U if byte == 0x75 else PLAIN
            case 2:
                place = ESCAPE_UD if byte in b"dD" else PLAIN
            case _:
                if byte in _SURROGATE:
                    return None
                place = PLAIN
    return place


class SurrogateTokens:
    """For each ending of the text, the tokens that would write half of a surrogate pair. One per tokenizer."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings

    @cached_property
    def forbidden(self) -> Mapping[int, AllowedTokens]:
        plain = self._spellings.plain
        # A token that has no backslash is to be seen only where it goes on with a sequence that has begun.
        with_backslash = [i for i, text in enumerate(plain) if b"\\" in text]
        going_on = [i for i, text in enumerate(plain) if text and text[0] in b"uUdD89abcefABCEF"]
        places = {PLAIN: with_backslash} | {
            place: sorted({*with_backslash, *going_on}) for place in (BACKSLASH, ESCAPE_U, ESCAPE_UD)
        }
        return {
            place: AllowedTokens.of(i for i in ids if ending(place, plain[i]) is None)
            for place, ids in places.items()
        }

    def spelling(self, token_id: int) -> bytes:
        return self._spellings.plain[token_id]


class SurrogateGuard:
    """An EngineState without the tokens that would write half of a surrogate pair.

    Invariant: ``_endings`` has the ending of the text after each consumed token, the start's first.
    """

    def __init__(
        self, state: EngineState, tokens: SurrogateTokens, endings: tuple[int, ...] = (PLAIN,)
    ) -> None:
        self._state = state
        self._tokens = tokens
        self._endings = list(endings)

    def consume(self, token_id: int) -> bool:
        after = ending(self._endings[-1], self._tokens.spelling(token_id))
        if after is None or not self._state.consume(token_id):
            return False
        self._endings.append(after)
        return True

    def can_stop(self) -> bool:
        return self._state.can_stop()

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        self._state.fill(row)
        forbidden = self._tokens.forbidden[self._endings[-1]]
        row[forbidden.words] &= ~forbidden.values

    def undo(self, num_tokens: int) -> None:
        self._state.undo(num_tokens)
        del self._endings[len(self._endings) - num_tokens :]

    def forced_bytes(self) -> bytes | None:
        return self._state.forced_bytes()

    def copy(self) -> "SurrogateGuard":
        return SurrogateGuard(self._state.copy(), self._tokens, tuple(self._endings))
