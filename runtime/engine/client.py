"""The seam between the user's face and an engine: one small protocol, in this process or over a socket.

Nothing here, and nothing that is imported from here, needs torch.
"""

import os
from collections.abc import Sequence
from typing import Protocol

import msgspec

from ramet.runtime.cache import CacheOutline
from ramet.runtime.protocol import EngineDeadError, GenerateInput, RametError, TextOutput


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine tells of itself: the limits that requests are checked against, and what runs."""

    model: str
    architecture: str = ""
    vocab_size: int
    """Width of the model's logits; token ids are below it."""
    context_length: int
    """Most tokens of prompt and answer together."""
    kv_tokens: int
    """Size of the KV pool, tokens."""
    page_size: int = 1
    device: str = "cpu"
    dtype: str = "float32"
    quantization: str = "none"
    kv_cache_dtype: str = "float32"
    kernels: str = "torch"
    """What a CPU computes with: the instruction set that ramet's kernels in C were compiled for, else torch and
    why."""
    grammars: tuple[str, ...] = ()
    """Tags of the GrammarSpec kinds that it enforces."""
    embedding_size: int = 0
    """Numbers of an embedding; 0: the model gives none."""
    num_layers: int = 0
    num_parameters: int = 0
    weight_bytes: int = 0
    """Of the weights in memory, scales included."""
    kv_bytes: int = 0
    """Of the KV pool."""
    timings: dict[str, float] = {}
    """Seconds by phase of the start."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the start, and the state of this moment."""

    waiting_requests: int = 0
    compiling_requests: int = 0
    """They wait for their grammar."""
    running_requests: int = 0
    """Here and above one that scores continuations counts once for each path that its trie is computed in."""
    finished_requests: int = 0
    """All that ended, whatever their finish reason."""
    aborted_requests: int = 0
    failed_requests: int = 0
    prompt_tokens: int = 0
    """Of requests that ran."""
    cached_tokens: int = 0
    """Prompt tokens whose KV came from the radix cache."""
    output_tokens: int = 0
    computed_tokens: int = 0
    """Tokens that went through the model: prompts as far as they were not cached, and outputs."""
    steps: int = 0
    preemptions: int = 0
    total_pages: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    """Held by the radix cache alone: evicted when pages are needed."""
    page_size: int = 1
    draft_tokens: int = 0
    """Tokens that a grammar forced, or that were guessed, and computed before they were certain."""
    accepted_draft_tokens: int = 0
    late_masks: int = 0
    """Rows of a step that were lost because a grammar's mask was not there in time."""
    grammar_hits: int = 0
    """Grammars that were compiled, refused or being compiled already when they were asked for."""
    grammar_misses: int = 0
    refused_grammars: int = 0
    """Of the misses."""
    grammar_seconds: float = 0.0
    """Spent compiling, off the engine's thread."""
    grammar_bytes: int = 0
    """Held by the caches of compiled grammars and of refusals."""
    sessions: int = 0
    """Those that pin a prefix in the cache."""
    pinned_tokens: int = 0
    """In those prefixes; what they share counts once."""
    dropped_pins: int = 0
    """Prefixes of sessions that gave way to requests or to other sessions."""
    resampled_answers: int = 0
    """Thrown away because they were not valid, and drawn again (JsonSchema with ``strict`` false)."""

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that came from the cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class HomeProcess:
    """The process that made an engine's client. Threads and sockets do not follow into a fork of it, where a
    request would wait for ever.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raises EngineDeadError in a fork."""
        if not self.is_here:
            raise EngineDeadError(
                f"this engine belongs to process {self._pid}, of which this one ({os.getpid()}) is a fork; "
                "create an engine here, or start processes with multiprocessing's spawn"
            )


class OutputSink(Protocol):
    """Where the outputs of a submission go. Called from the engine's thread: it must not block."""

    def put(self, outputs: list[TextOutput]) -> bool:
        """False: nobody listens any more, and the engine aborts these requests."""
        ...

    def fail(self, error: RametError, request_id: str | None = None) -> None:
        """The submission was refused as a whole because of this one of its requests, or the engine is gone
        (None).

        Nothing follows.
        """
        ...


class EngineClient(Protocol):
    """What the user's face needs of an engine. Every method may be called from any thread."""

    @property
    def info(self) -> EngineInfo: ...

    def submit(self, inputs: Sequence[GenerateInput], sink: OutputSink) -> None:
        """Queue all of ``inputs`` or none: where one is refused, ``sink.fail`` gets its InvalidRequestError.

        Request ids are unique among the requests that run; each submission has a sink of its own. Every request
        then ends with exactly one TextOutput that has a finish reason, or by ``sink.fail``.

        Raises:
            EngineDeadError: the engine is closed or gone, or this is a fork of its process.
        """
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests with FinishReason.ABORT; unknown and finished ones are ignored. Does not wait."""
        ...

    def check_alive(self) -> None:
        """Raises EngineDeadError where nothing more can be computed. Does not wait for the engine."""
        ...

    def stats(self) -> EngineStats: ...

    def cache_outline(self, salt_prefix: str) -> CacheOutline:
        """The shape of the radix trees whose salt begins so."""
        ...

    def release_session(self, session: str) -> int:
        """What a SessionPin of this name keeps may be evicted; how many tokens that are."""
        ...

    def flush_cache(self) -> int:
        """Drop every cached prefix that no running request uses; returns the tokens freed."""
        ...

    def check_integrity(self) -> None:
        """Raises where the accounting of pages and requests does not add up."""
        ...

    def close(self) -> None:
        """End what runs (EngineDeadError to whoever waits) and free everything. Closing twice is allowed."""
        ...
