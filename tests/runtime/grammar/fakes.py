"""A vocabulary for tests of grammar backends."""

from collections.abc import Sequence


class ListVocabulary:
    """Token i spells ``spellings[i]``; None: a special token."""

    def __init__(self, spellings: Sequence[bytes | None], stop_token_ids: Sequence[int]) -> None:
        self._spellings = spellings
        self._stop_token_ids = tuple(stop_token_ids)

    @property
    def vocab_size(self) -> int:
        return len(self._spellings)

    @property
    def stop_token_ids(self) -> Sequence[int]:
        return self._stop_token_ids

    def token_bytes(self, token_id: int) -> bytes | None:
        return self._spellings[token_id]


def allowed_ids(row: Sequence[int], vocab_size: int) -> list[int]:
    """Ids whose bit is set in an int32 bitmask row."""
    return [token_id for token_id in range(vocab_size) if (int(row[token_id // 32]) >> (token_id % 32)) & 1]
