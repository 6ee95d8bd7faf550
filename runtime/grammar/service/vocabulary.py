"""PlainVocabulary: a tokenizer's vocabulary as plain data, to send to another process."""

import msgspec

from ramet.runtime.grammar.backend import NamesControlTokens, Vocabulary


class PlainVocabulary(msgspec.Struct, frozen=True):
    """A Vocabulary; see there."""

    spellings: list[bytes | None]
    """By token id; None for special and unused tokens."""
    stop_token_ids: tuple[int, ...]
    special_tokens: dict[str, int] = {}
    """Text -> id of each control token, where the original knows them."""

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "PlainVocabulary":
        spellings = [vocabulary.token_bytes(token_id) for token_id in range(vocabulary.vocab_size)]
        special = dict(vocabulary.special_tokens) if isinstance(vocabulary, NamesControlTokens) else {}
        return cls(spellings, tuple(vocabulary.stop_token_ids), special)

    @property
    def vocab_size(self) -> int:
        return len(self.spellings)

    def token_bytes(self, token_id: int) -> bytes | None:
        return self.spellings[token_id]
