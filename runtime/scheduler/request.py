"""Request: what the scheduler knows of one request while it lives."""

import secrets
from dataclasses import dataclass, field
from enum import StrEnum

from ramet.runtime.cache import RadixNode
from ramet.runtime.grammar.backend import GrammarMatcher
from ramet.runtime.grammar.guide import Guide
from ramet.runtime.protocol import (
    FinishReason,
    GenerateInput,
    ProgramTag,
    RequestStats,
    SamplingParams,
    SessionPin,
    TokenLogprobs,
)
from ramet.runtime.scheduler.batch import NO_TARGETS, Targets
from ramet.runtime.scheduler.pooling import PooledStates

NO_SLOT = -1
NO_TAG = ProgramTag()


class RequestStatus(StrEnum):
    """(GRAMMAR ->) WAITING -> RUNNING -> FINISHED, with RUNNING -> PREEMPTED -> RUNNING any number of times; a
    request may also go from GRAMMAR, WAITING or PREEMPTED to FINISHED (aborted, or its grammar was refused)."""

    GRAMMAR = "grammar"
    """Its grammar is being compiled."""
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """Mutable; changed by the scheduler alone, between and in its own calls.

    Invariants between two calls of the scheduler:
    - ``history`` is the prompt and then the output; it only grows.
    - RUNNING: the KV of ``history[:num_computed_tokens]`` is in ``pages``, and ``num_computed_tokens`` is less
      than ``len(history)``: the last token is always still to be computed. While decoding it is the only one.
    - RUNNING: ``pages[:num_tree_pages]`` belong to the radix tree and ``node``, which is locked, is where they
      end (``node.end == num_tree_pages * page_size``); the pages behind them are the request's own.
    - Otherwise it owns nothing: no pages, no slot, no lock.
    - FINISHED has exactly one ``finish_reason``.
    """

    request_id: str
    params: SamplingParams
    history: list[int]
    num_prompt_tokens: int
    seed: int
    """64-bit, not negative."""
    arrival: float
    """Seconds of the scheduler's clock."""
    priority: int = 0
    cache_salt: str = ""
    tag: ProgramTag = NO_TAG
    pin: SessionPin | None = None
    matcher: GrammarMatcher | None = None
    guide: Guide | None = None
    """Around the matcher, and there exactly while that is, from when the request waits to be admitted."""

    # Set once, by Scheduler.add.
    sequence: int = 0
    """Order of arrival."""
    max_total_tokens: int = 0
    """``history`` never grows beyond it."""
    stop_token_ids: frozenset[int] = frozenset()
    banned_token_ids: tuple[int, ...] = ()
    """What may not be sampled before min_tokens."""

    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    num_computed_tokens: int = 0

    pages: list[int] = field(default_factory=list)
    num_tree_pages: int = 0
    node: RadixNode | None = None
    duplicates: dict[int, int] = field(default_factory=dict)
    """During a step only: page index -> the tree's page with the same tokens, which replaces the request's
    own page once the step is over."""
    num_sent_pages: int = 0
    """``pages[:num_sent_pages]`` are known to the executor."""
    slot: int = NO_SLOT
    hint: RadixNode | None = None
    """Where the last probe of the tree ended, to go on from there; it may be out of date."""

    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Gathered chunk by chunk, one for each prompt position; None once sent, and where not asked for."""
    next_prompt_logprob: int = 0
    """First prompt position whose log probability is still to come; num_prompt_tokens where none is."""
    targets: Targets = NO_TARGETS
    """Of positions of the prompt."""
    target_logprobs: list[list[float]] = field(default_factory=list)
    """Of the targets' first positions, as far as they were computed."""
    pooled: PooledStates | None = None
    """None: nobody wants the prompt's embedding."""
    num_forced_drafts: int = 0
    """Of the step that is being computed: how many of its drafts the grammar forces."""

    num_cached_tokens: int = 0
    """Prompt tokens found in the radix cache when the request first ran."""
    num_steps: int = 0
    num_sampling_steps: int = 0
    num_drafts: int = 0
    num_accepted_drafts: int = 0
    num_late_masks: int = 0
    grammar_time: float = 0.0
    """Seconds that it waited for its grammar."""
    num_preemptions: int = 0
    num_overtaken: int = 0
    admission_time: float | None = None
    first_token_time: float | None = None
    finish_time: float | None = None

    @classmethod
    def from_input(
        cls,
        source: GenerateInput,
        *,
        arrival: float,
        matcher: GrammarMatcher | None = None,
        seed: int | None = None,
        targets: Targets = NO_TARGETS,
    ) -> "Request":
        """``seed``: used where the parameters name none; drawn at random where it is None too."""
        params = source.params
        if params.seed is not None:
            seed = params.seed
        num_prompt_tokens = len(source.token_ids)
        wants_logprobs = params.prompt_logprobs is not None
        return cls(
            request_id=source.request_id,
            params=params,
            history=list(source.token_ids),
            num_prompt_tokens=num_prompt_tokens,
            seed=secrets.randbits(64) if seed is None else seed % 2**64,
            arrival=arrival,
            priority=source.priority,
            cache_salt=source.cache_salt,
            tag=source.tag,
            pin=source.pin,
            matcher=matcher,
            targets=targets,
            pooled=None if source.pooling is None else PooledStates(source.pooling, num_prompt_tokens),
            prompt_logprobs=[None] * num_prompt_tokens if wants_logprobs else None,
            next_prompt_logprob=max(1, params.prompt_logprobs_start) if wants_logprobs else num_prompt_tokens,
        )

    @property
    def num_output_tokens(self) -> int:
        return len(self.history) - self.num_prompt_tokens

    @property
    def is_decoding(self) -> bool:
        """Running, and only its last sampled token is still to be computed."""
        known = len(self.history)
        return self.num_computed_tokens == known - 1 and known > self.num_prompt_tokens

    @property
    def is_held(self) -> bool:
        """It sits out, until its masks are there."""
        return self.guide is not None and self.guide.is_late

    @property
    def max_cached_tokens(self) -> int:
        """How much of the history may come from the cache: the last token must be computed, to sample from
        it, and so must the token before each prompt position whose log probability is still to come, and each
        position whose targets or hidden states are."""
        limit = len(self.history) - 1
        if self.next_prompt_logprob < self.num_prompt_tokens:
            limit = self.next_prompt_logprob - 1
        if len(self.target_logprobs) < len(self.targets.token_ids):
            limit = min(limit, self.targets.first + len(self.target_logprobs))
        if self.pooled is not None and self.pooled.next < self.num_prompt_tokens:
            limit = min(limit, self.pooled.next)
        return limit

    def stats(self) -> RequestStats:
        """Where its time went, up to now; complete once it is FINISHED."""
        return RequestStats(
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self.num_output_tokens,
            num_steps=self.num_steps,
            num_sampling_steps=self.num_sampling_steps,
            num_draft_tokens=self.num_drafts,
            num_accepted_draft_tokens=self.num_accepted_drafts,
            num_late_masks=self.num_late_masks,
            grammar_time=self.grammar_time,
            num_preemptions=self.num_preemptions,
            num_overtaken=self.num_overtaken,
            queue_time=_since(self.arrival, self.admission_time or self.finish_time) or 0.0,
            ttft=_since(self.arrival, self.first_token_time),
            e2e=_since(self.arrival, self.finish_time),
        )


def _since(start: float, end: float | None) -> float | None:
    return None if end is None else end - start
