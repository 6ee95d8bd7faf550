"""A tokenizer's tokens as the engines want them: bytes that no text can contain stand for control tokens."""

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.backend import NamesControlTokens, Vocabulary
from ramet.runtime.grammar.token_table import AllowedTokens, TokenTable
from ramet.runtime.protocol import UnsupportedConstraintError


class Spellings:
    """What each token spells, what stands for control tokens, and which tokens end the output.

    Immutable; one per tokenizer, worked out when first needed. A control token is never part of a text, so no
    grammar of text allows one: it can only be asked for by its id or name.
    """

    MARK = b"\xff"
    """UTF-8 has no such byte, so a spelling that begins with it matches no text."""

    def __init__(self, vocabulary: Vocabulary, tokens: Callable[[], TokenTable] | None = None) -> None:
        """``tokens``: the vocabulary's table, where another part has it too."""
        self._vocabulary = vocabulary
        self._table = tokens
        self.vocab_size = vocabulary.vocab_size
        self.num_words = -(-self.vocab_size // 32)
        """Of a bitmask row, int32."""

    @cached_property
    def tokens(self) -> TokenTable:
        return TokenTable(self._vocabulary) if self._table is None else self._table()

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ascending.

        Raises:
            UnsupportedConstraintError: there is none, so no constrained output could ever end.
        """
        stops = self.tokens.stop_token_ids
        if not stops:
            raise UnsupportedConstraintError(
                "the constraint cannot be enforced: the tokenizer has no stop token to end the output with",
                field="grammar",
            )
        return stops

    @cached_property
    def stops(self) -> AllowedTokens:
        return AllowedTokens.of(self.stop_token_ids)

    @cached_property
    def control_tokens(self) -> Mapping[int, str]:
        """Id -> name of each token that spells nothing: control tokens, padding, and stop tokens."""
        names: dict[int, str] = {}
        if isinstance(self._vocabulary, NamesControlTokens):
            names = {token_id: name for name, token_id in self._vocabulary.special_tokens.items()}
        spelled = self.tokens.bytes_of
        return {i: names.get(i) or f"<|{i}|>" for i in range(self.vocab_size) if i not in spelled}

    @cached_property
    def plain(self) -> list[bytes]:
        """The bytes of each token; empty for control tokens and for bytes that UTF-8 does not have."""
        spelled = self.tokens.bytes_of
        plain = [spelled.get(token_id, b"") for token_id in range(self.vocab_size)]
        return [b"" if self.MARK in text or b"\xfe" in text else text for text in plain]

    @cached_property
    def first_bytes(self) -> npt.NDArray[np.int16]:
        """The first byte of each token, -1 where it spells no text; padded to whole words of a mask."""
        first = np.full(32 * self.num_words, -1, dtype=np.int16)
        first[: self.vocab_size] = [text[0] if text else -1 for text in self.plain]
        return first

    @cached_property
    def byte_tokens(self) -> npt.NDArray[np.int32]:
        """[256]: a token that spells this byte alone; -1 where there is none."""
        tokens = np.full(256, -1, dtype=np.int32)
        for token_id, text in enumerate(self.plain):
            if len(text) == 1 and token_id not in self.stop_token_ids:
                tokens[text[0]] = token_id
        return tokens

    def control_token(self, name: object) -> int:
        """The id of a control token by its id or its text.

        Raises:
            UnsupportedConstraintError: there is no such control token, or it ends the output.
        """
        ids = {text: token_id for token_id, text in self.control_tokens.items()}
        token_id = ids.get(name) if isinstance(name, str) else name
        if not isinstance(token_id, int) or token_id not in self.control_tokens:
            raise UnsupportedConstraintError(
                f"{name!r} is no control token of this model; give the text itself if it is written as text",
                field="grammar",
            )
        if token_id in self.stop_token_ids:
            raise UnsupportedConstraintError(
                f"the token {name!r} ends the output of this model, so no grammar can continue behind it",
                field="grammar",
            )
        return token_id
