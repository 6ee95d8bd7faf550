"""Token ids to text, a few at a time."""

import codecs
from collections.abc import Iterable
from typing import Protocol


class TokenSpeller(Protocol):
    """The part of a tokenizer that detokenising needs."""

    @property
    def leading_space(self) -> bool: ...

    def output_bytes(self, token_id: int, *, skip_special_tokens: bool) -> bytes: ...


class IncrementalDetokenizer:
    """The text of a growing sequence of token ids, each character as soon as it is certain.

    The texts of all ``push`` calls and of ``flush`` concatenate to ``tokenizer.decode`` of all ids, whatever
    the chunks: an incomplete UTF-8 sequence waits for its other bytes, and what turns out to be no UTF-8
    becomes U+FFFD as it would in the whole. Time per token depends on the token alone.
    """

    def __init__(
        self, tokenizer: TokenSpeller, *, skip_special_tokens: bool = True, at_start: bool = True
    ) -> None:
        """``at_start``: the ids begin a text (see ``Tokenizer.decode``); False for the answer to a prompt."""
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._drop_space = at_start and tokenizer.leading_space

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete. Raises InvalidRequestError for ids out of range."""
        spelled = [
            self._tokenizer.output_bytes(token_id, skip_special_tokens=self._skip_special_tokens)
            for token_id in token_ids
        ]
        return self._from_start(self._decoder.decode(b"".join(spelled)))

    def flush(self) -> str:
        """What was still held back, as the end of the text. The detokenizer is used up after this."""
        return self._from_start(self._decoder.decode(b"", final=True))

    def _from_start(self, text: str) -> str:
        if self._drop_space and text:
            self._drop_space = False
            return text.removeprefix(" ")
        return text
