"""Log probabilities in OpenAI's two forms, of chat and of text completions."""

from collections.abc import Sequence

import msgspec

from ramet.runtime.engine import Increment
from ramet.runtime.protocol import Logprob, TokenLogprobs
from ramet.runtime.tokenizer import Tokenizer

LOWEST = -9999.0
"""What OpenAI writes where JSON has no number: the probability is zero."""


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


def answer_logprobs(increment: Increment) -> list[TokenLogprobs]:
    """Of the tokens that spell the answer: one that ended it, such as an end of turn, is not among them."""
    entries = increment.logprobs or []
    is_stop_token = increment.finish_reason is not None and isinstance(increment.stop_reason, int)
    return entries[:-1] if is_stop_token and len(entries) == len(increment.token_ids) else entries


def content_logprobs(entries: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> list[ContentLogprob]:
    """For chat completions. ``bytes`` of all tokens together are the answer's UTF-8."""
    return [
        ContentLogprob(
            token=token_text(entry.chosen.token_id, tokenizer),
            logprob=_finite(entry.chosen),
            bytes=_bytes(entry.chosen.token_id, tokenizer),
            top_logprobs=[
                TopLogprob(
                    token=token_text(top.token_id, tokenizer),
                    logprob=_finite(top),
                    bytes=_bytes(top.token_id, tokenizer),
                )
                for top in entry.top
            ],
        )
        for entry in entries
    ]


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """For text completions: an entry a token in each list. A prompt's first token has no probability."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []

    def extend(self, other: "CompletionLogprobs") -> None:
        self.tokens += other.tokens
        self.token_logprobs += other.token_logprobs
        self.top_logprobs += other.top_logprobs
        self.text_offset += other.text_offset


class CompletionLogprobsWriter:
    """Writes one answer's tokens, prompt first where it is echoed, and counts where each begins in the text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def write(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> CompletionLogprobs:
        written = CompletionLogprobs()
        for token_id, entry in zip(token_ids, entries, strict=True):
            text = token_text(token_id, self._tokenizer)
            written.tokens.append(text)
            written.token_logprobs.append(None if entry is None else _finite(entry.chosen))
            written.top_logprobs.append(None if entry is None else self._top(entry))
            written.text_offset.append(self._offset)
            self._offset += len(text)
        return written

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        # The chosen one is always there, as OpenAI has it, even if it is not among the most probable.
        return {token_text(one.token_id, self._tokenizer): _finite(one) for one in (*entry.top, entry.chosen)}


def token_text(token_id: int, tokenizer: Tokenizer) -> str:
    """What a token spells; ``bytes:\\x..`` where that is no whole text, a special token's own text."""
    spelled = tokenizer.token_bytes(token_id)
    if spelled is None:
        return tokenizer.id_to_token(token_id) or ""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _bytes(token_id: int, tokenizer: Tokenizer) -> list[int] | None:
    spelled = tokenizer.token_bytes(token_id)
    return None if spelled is None else list(spelled)


def _finite(one: Logprob) -> float:
    return max(one.logprob, LOWEST)
