"""PlainVocabulary: a tokenizer's vocabulary as plain data, to send to another process."""

import msgspec

from ramet.runtime.grammar.backend import Vocabulary


class PlainVocabulary(msgspec.Struct, frozen=True):
    """A Vocabulary; see there."""

    spellings: list[bytes | None]
    """By token id; None for special and unused tokens."""
    stop_token_ids: tuple[int, ...]

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "PlainVocabulary":
        spellings = [vocabulary.token_bytes(token_id) for token_id in range(vocabulary.vocab_size)]
        return cls(spellings, tuple(vocabulary.stop_token_ids))

    @property
    def vocab_size(self) -> int:
        return len(self.spellings)

    def token_bytes(self, token_id: int) -> bytes | None:
        return self.spellings[token_id]
