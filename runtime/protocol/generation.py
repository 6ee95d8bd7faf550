"""The records that travel between a client, the engine and the scheduler."""

from enum import StrEnum
from typing import Literal

import msgspec

from ramet.runtime.protocol.sampling_params import SamplingParams


class FinishReason(StrEnum):
    """How a request ended. Every request ends in exactly one of these."""

    STOP = "stop"
    """An end-of-turn token, a stop token, a stop string, a stop regex, or the grammar's end."""
    LENGTH = "length"
    """max_tokens was reached, or the context (or the KV pool) is full."""
    ABORT = "abort"
    ERROR = "error"


class ProgramTag(msgspec.Struct, frozen=True, kw_only=True):
    """Whose call a request is and what comes next: what scheduler, eviction and drafting may read."""

    program_id: str = ""
    branch: str = ""
    """Where in the tree of forks: "0" is the root, "0/3" its fourth branch."""
    step: int = 0
    """Calls before this one on the way from the root."""
    variable: str = ""
    """What the program calls the answer, where it has a name."""
    remaining_calls: int | None = None
    """How many calls are known to go on from this one: on its branch, and on those forked from it later. At
    least so many come; 0: none does. None: nothing is known."""
    deadline: float | None = None
    """Unix time, seconds, after which the answer is of no use."""


Pooling = Literal["last", "mean"]
"""Of which of a prompt's positions its embedding is made."""


class SessionPin(msgspec.Struct, frozen=True, kw_only=True):
    """What a request leaves in the radix cache for its session: see ``scheduler.session_pins``."""

    session: str
    """The session's name, unique among those of all tenants."""
    seconds: float
    """How long the prefix stays after the request's end, unless the session goes on or is closed."""
    max_tokens: int
    """Most tokens of it that stay."""


class GenerateInput(msgspec.Struct, frozen=True, kw_only=True):
    """One tokenised request as the engine's core takes it (n == 1: the client expands n)."""

    request_id: str
    token_ids: list[int]
    params: SamplingParams
    priority: int = 0
    """Higher runs earlier."""
    cache_salt: str = ""
    """Prefixes are shared only between requests of the same salt."""
    tag: ProgramTag = ProgramTag()
    continuations: list[list[int]] = []
    """Where there are any, the request gives their scores instead of an answer: see TextOutput.scores. Each
    node of their trie behind ``token_ids`` is computed once."""
    pooling: Pooling | None = None
    """Gives the prompt's embedding with the end: see TextOutput.embedding."""
    pin: SessionPin | None = None
    """Keeps the whole of it in the cache once it has ended by itself, as its session's prefix."""


class Logprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural-log probability of one token, and its rank (0: the most probable)."""

    token_id: int
    logprob: float
    rank: int


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The chosen token and the most probable ones at its position, best first.

    The distribution is the one sampled from before temperature, top_k, top_p and min_p, and after
    logit_bias, penalties and the grammar's mask.
    """

    chosen: Logprob
    top: tuple[Logprob, ...] = ()


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step did for one request, in tokens: the scheduler's answer to the engine."""

    request_id: str
    token_ids: list[int] = []
    """Tokens committed by this step, 0..k of them. A stop token is the last one, and is included."""
    logprobs: list[TokenLogprobs] | None = None
    """One per token of ``token_ids`` where logprobs were asked for."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Sent once, with the first token; entry 0 is None."""
    target_logprobs: list[list[float]] | None = None
    """Sent once, with the first token, where targets were asked for: of each position its tokens'."""
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """The token that ended the request, where one did."""
    error: str | None = None
    error_kind: str | None = None
    """Name of the error's type, where it is not RequestFailedError."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens whose KV came from the radix cache, on admission or between two chunks of the first run."""


class RequestStats(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of one request went. Seconds; times are of the engine's monotonic clock."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_steps: int = 0
    """Forward passes that this request took part in."""
    num_sampling_steps: int = 0
    """Those of them in which tokens were sampled: one token each, and one more for each draft accepted."""
    num_draft_tokens: int = 0
    """Tokens that the grammar forced, or that were guessed, and verified together."""
    num_accepted_draft_tokens: int = 0
    num_late_masks: int = 0
    """Steps that were lost because the grammar's mask was not there in time."""
    num_resamples: int = 0
    """How often an answer was thrown away because it was not valid (JsonSchema with ``strict`` false); the
    other counts are those of the answer that was kept."""
    num_preemptions: int = 0
    num_overtaken: int = 0
    """How often a younger request was admitted before this one."""
    queue_time: float = 0.0
    grammar_time: float = 0.0
    """Of the queue_time: until the grammar was compiled."""
    ttft: float | None = None
    """Arrival to first token."""
    e2e: float | None = None
    """Arrival to finish."""

    @property
    def forwards_per_token(self) -> float | None:
        """Forward passes that sampled, per output token: 1.0 without drafts. None: there was no output."""
        return self.num_sampling_steps / self.num_output_tokens if self.num_output_tokens else None


class TextOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine's core sends to a client: the increment of one request.

    The increments of ``text`` and of ``token_ids`` concatenate to the finished output.
    """

    request_id: str
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id, or the stop string or regex, that ended the output."""
    scores: list[list[float]] | None = None
    """At the end of a request with continuations: of each the natural-log probability of its tokens, given the
    prompt and its tokens before."""
    embedding: list[float] | None = None
    """At the end of a request with pooling: the mean of the pooled positions' hidden states behind the last
    norm, not normalised."""
    error: str | None = None
    error_kind: str | None = None
    """Name of the error's type, where it is not RequestFailedError."""
    stats: RequestStats | None = None
    """Sent with the last increment."""
