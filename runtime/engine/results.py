"""What the user's face returns: whole outputs, increments of a stream, and scores."""

import msgspec

from ramet.runtime.protocol import FinishReason, RequestStats, TokenLogprobs


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to a prompt; ``n`` of them share the prompt."""

    index: int
    text: str
    token_ids: list[int]
    """All tokens that were generated, those of the stop included; ``text`` ends before the stop."""
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    """The stop token id, or the stop string or regex, that ended the answer."""
    logprobs: list[TokenLogprobs] | None = None
    """One per token id, where they were asked for."""
    stats: RequestStats
    error: str | None = None
    """Why the request failed, where finish_reason is ERROR."""


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """All answers to one prompt. The properties below speak of the first one."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[Completion]
    """One per answer, by index."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One per prompt token, where they were asked for; None where a position has none."""

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.outputs[0].finish_reason

    @property
    def stop_reason(self) -> int | str | None:
        return self.outputs[0].stop_reason

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        return self.outputs[0].logprobs

    @property
    def stats(self) -> RequestStats:
        return self.outputs[0].stats

    @property
    def error(self) -> str | None:
        """Of the first answer that has one."""
        return next((item.error for item in self.outputs if item.error is not None), None)


class Increment(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream yields. Texts, token ids and logprobs of one ``index`` concatenate to its Completion.

    Text may come later than its tokens: a character needs all its bytes, and what may become a stop string is
    held back.
    """

    request_id: str
    index: int = 0
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    stats: RequestStats | None = None
    """With the last increment of an index."""


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """Of one prompt."""

    embedding: list[float]
    """[embedding_size]"""
    token_ids: list[int]
    """The prompt's."""
    num_cached_tokens: int = 0


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How probable one continuation is after the prompt."""

    text: str
    token_ids: list[int]
    token_logprobs: list[float]
    """Natural-log probability of each token of the continuation, given everything before it."""
    logprob: float
    """Their sum."""
    score: float
    """What to compare: ``logprob``, or the mean per token where ``normalize`` was asked for."""
    num_cached_tokens: int = 0
    """Of the request, which scored all continuations together."""
