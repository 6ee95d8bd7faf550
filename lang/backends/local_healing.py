"""Token healing: a prompt gives up the last tokens that a longer token could have spelled together with what
comes next, and the answer begins by spelling them again.

"http:" ends in ":", and a model that was trained on "://" as one token hardly ever writes "//" behind ":". With
the ":" taken back it is free to write "://". The answer's text begins behind what was taken back.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from weakref import WeakKeyDictionary

import msgspec

from ramet.runtime.grammar import TokenTable
from ramet.runtime.protocol import Prefix, SamplingParams
from ramet.runtime.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Healing:
    """The last ``num_tokens`` tokens of a prompt, which spell ``text``."""

    num_tokens: int = 0
    text: str = ""

    def apply(self, params: SamplingParams) -> SamplingParams:
        """The parameters of the request without those tokens. Its limits count them too, as they are mostly
        spelled again as they were; where that takes fewer tokens, AnswerReader cuts what is too much."""
        if not self.num_tokens:
            return params
        assert not isinstance(params.grammar, Prefix)
        return msgspec.structs.replace(
            params,
            grammar=Prefix(self.text, params.grammar),
            max_tokens=None if params.max_tokens is None else params.max_tokens + self.num_tokens,
            min_tokens=params.min_tokens and params.min_tokens + self.num_tokens,
        )


NOTHING = Healing()


class TokenHealer:
    """Finds what to take back. Thread-safe; the sorted vocabulary is made when first needed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def is_ready(self) -> bool:
        """Whether the vocabulary is sorted already; if not, the first call takes a moment."""
        return _token_tables().is_made(self._tokenizer)

    def healing(self, token_ids: Sequence[int], healable: str, params: SamplingParams) -> Healing:
        """What the end of ``token_ids`` gives up, which spells ``healable`` (and maybe more in front).

        From the earliest token on whose bytes, with those of the tokens behind it, begin a longer token; but
        no special token, none that spells what is not ``healable``, never all tokens, and only from the
        beginning of a character on. Nothing where one of ``stop_token_ids`` could spell it: to spell it again
        would end the answer.
        """
        if not healable:
            return NOTHING
        count, spelled = self._longest(token_ids, healable.encode())
        if not count or self._is_stop(spelled, params):
            return NOTHING
        return Healing(count, spelled.decode())

    def _longest(self, token_ids: Sequence[int], healable: bytes) -> tuple[int, bytes]:
        table = _token_tables().of(self._tokenizer)
        best, suffix, is_wanted = (0, b""), b"", False
        for count in range(1, len(token_ids)):
            token_id = token_ids[-count]
            spelled = None if token_id in table.stop_token_ids else self._tokenizer.token_bytes(token_id)
            if spelled is None:
                break
            suffix = spelled + suffix
            # SentencePiece puts a space in front of a text's first token.
            if not healable.endswith(suffix) and suffix != b" " + healable:
                break
            is_wanted |= table.is_extendable(suffix)
            if is_wanted and suffix[0] & 0xC0 != 0x80:
                best, is_wanted = (count, suffix), False
            if len(suffix) >= table.max_length and not is_wanted:
                break
        return best

    def _is_stop(self, spelled: bytes, params: SamplingParams) -> bool:
        stops = [self._tokenizer.token_bytes(token_id) for token_id in params.stop_token_ids]
        return any(stop and (stop.startswith(spelled) or spelled.startswith(stop)) for stop in stops)


class TokenTables:
    """The sorted vocabularies of the tokenizers that are alive: a program may be run many times on an engine,
    each time through a backend of its own. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: WeakKeyDictionary[Tokenizer, TokenTable] = WeakKeyDictionary()

    def is_made(self, tokenizer: Tokenizer) -> bool:
        return tokenizer in self._tables

    def of(self, tokenizer: Tokenizer) -> TokenTable:
        with self._lock:
            table = self._tables.get(tokenizer)
            if table is None:
                table = self._tables[tokenizer] = TokenTable(tokenizer)
            return table


@cache
def _token_tables() -> TokenTables:
    return TokenTables()
