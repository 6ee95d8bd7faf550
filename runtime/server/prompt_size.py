"""PromptSize: refuses text that no tokenizer need look at to know that it is too long."""

from ramet.runtime.protocol import PromptTooLongError
from ramet.runtime.tokenizer import Tokenizer

_SLACK = 2
"""A tokenizer may drop or compose characters before it splits them into tokens."""


class PromptSize:
    """Bounds the characters of a prompt by what the context can hold: its tokens times the longest of them.

    Tokenising takes seconds a megabyte; a prompt of that size is refused without it. Thread-safe.
    """

    def __init__(self, tokenizer: Tokenizer, context_length: int) -> None:
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._longest: int | None = None

    def check(self, prompt: object, field: str) -> None:
        """``prompt``: any JSON value; the strings in it count together.

        Raises:
            PromptTooLongError: it cannot fit.
        """
        # A token spells at least one byte, so short texts need no look at the vocabulary.
        size = _num_characters(prompt)
        if size <= self._context_length:
            return
        if self._longest is None:
            spellings = (self._tokenizer.token_bytes(one) for one in range(self._tokenizer.vocab_size))
            self._longest = max(len(spelled) for spelled in spellings if spelled is not None)
        if size > (limit := self._context_length * self._longest * _SLACK):
            raise PromptTooLongError(
                f"the prompt has {size} characters, which the context of {self._context_length} tokens cannot "
                f"hold (at most about {limit}); shorten it",
                field=field,
            )


def _num_characters(value: object) -> int:
    """Of all strings inside; iterative, as a client chose the nesting."""
    total = 0
    pending = [value]
    while pending:
        match pending.pop():
            case str() as text:
                total += len(text)
            case dict() as mapping:
                pending += mapping.values()
            case list() as items:
                pending += [item for item in items if isinstance(item, str | dict | list)]
    return total
