"""PromptSize: refuses prompts that no tokenizer need look at to know that they are too long."""

from collections.abc import Sequence

from ramet.runtime.protocol import PromptTooLongError
from ramet.runtime.tokenizer import Tokenizer

_SLACK = 2
"""A tokenizer may drop or compose characters before it splits them into tokens."""
_VALUES_PER_TOKEN = 8
"""Of JSON, for each token of the context: even a bracket of a tool's schema is written to the prompt, and few
brackets are one token."""


class PromptSize:
    """Bounds the characters of a prompt by what the context can hold: its tokens times the longest of them.

    Tokenising takes seconds a megabyte, and so does rendering a hundred thousand messages that say nothing:
    such a prompt is refused before. Thread-safe.
    """

    def __init__(self, tokenizer: Tokenizer, context_length: int) -> None:
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._longest: int | None = None

    def check(self, prompt: object, field: str) -> None:
        """``prompt``: any JSON value; what is in it counts together.

        Raises:
            PromptTooLongError: it cannot fit.
        """
        limit = self._context_length * _VALUES_PER_TOKEN
        size = _num_characters(prompt, limit)
        if size is None:
            raise PromptTooLongError(
                f"the prompt has more than {limit} entries, which the context of {self._context_length} tokens "
                "cannot hold; shorten it",
                field=field,
            )
        # A token spells at least one byte, so short texts need no look at the vocabulary.
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

    def check_turns(self, turns: Sequence[object], field: str) -> None:
        """``turns``: messages, or items of a conversation; each takes a token at least.

        Raises:
            PromptTooLongError: there are too many.
        """
        if len(turns) > self._context_length:
            raise PromptTooLongError(
                f"{field} has {len(turns)} entries, which the context of {self._context_length} tokens cannot "
                "hold; shorten it",
                field=field,
            )


def _num_characters(value: object, max_values: int) -> int | None:
    """Of all strings inside; None: there are more than ``max_values`` values. Iterative, as a client chose the
    nesting.
    """
    total = num_values = 0
    pending = [value]
    while pending:
        match pending.pop():
            case str() as text:
                total += len(text)
            case dict() as mapping:
                num_values += len(mapping)
                pending += mapping.values()
            case list() as items:
                num_values += len(items)
                # Before they are looked at: there may be millions.
                if num_values <= max_values:
                    pending += items
        if num_values > max_values:
            return None
    return total
