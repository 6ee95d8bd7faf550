"""EngineCore: one step after the other, in the caller's thread. No threads, no clocks of its own, no torch."""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ramet.runtime.engine.client import EngineInfo, EngineStats
from ramet.runtime.engine.output import OutputProcessor
from ramet.runtime.grammar import GrammarBackend
from ramet.runtime.protocol import (
    FinishReason,
    GenerateInput,
    InvalidRequestError,
    RequestStats,
    TextOutput,
    TokenOutput,
)
from ramet.runtime.scheduler import Executor, Request, ScheduledBatch, Scheduler
from ramet.runtime.tokenizer import Tokenizer, TokenizerSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Live:
    """A request that has not ended, and its text side."""

    request: Request
    processor: OutputProcessor


class EngineCore:
    """Scheduler, executor, tokenizer and grammars, put together.

    Invariant: ``_live`` has exactly the requests that the scheduler has. Each request ends with one TextOutput
    that has a finish reason, and its stats. Not thread-safe: one thread owns it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        tokenizer: Tokenizer,
        grammar: GrammarBackend,
        *,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``seed``: where the seeds of requests without one come from; None: from the system's randomness.
        ``clock``: the scheduler's."""
        self._scheduler = scheduler
        self._executor = executor
        self._tokenizer = tokenizer
        self._grammar = grammar
        self._clock = clock
        self._seeds = random.SystemRandom() if seed is None else random.Random(seed)
        self._live: dict[str, _Live] = {}
        self._num_aborted = 0
        self._num_failed = 0

    def add(self, source: GenerateInput) -> None:
        """Take in a request; it waits.

        Raises:
            InvalidRequestError: it is wrong, too long, or its grammar or stop_regex cannot be honoured. Nothing
            is kept.
        """
        params = source.params
        if params.n != 1:
            raise InvalidRequestError(
                f"n is {params.n}; the core takes one answer a request, its client makes {params.n} of them",
                field="n",
            )
        processor = OutputProcessor(self._tokenizer, params)
        matcher = None if params.grammar is None else self._grammar.compile(params.grammar).matcher()
        request = Request.from_input(
            source, arrival=self._clock(), matcher=matcher, seed=self._seeds.getrandbits(64)
        )
        self._scheduler.add(request)
        self._live[source.request_id] = _Live(request, processor)

    def abort(self, request_id: str) -> list[TextOutput]:
        """End a request now; everything it held is free when this returns. Unknown and finished ids are
        ignored.
        """
        output = self._scheduler.abort(request_id)
        return [] if output is None else [self._process(output)]

    def step(self) -> list[TextOutput]:
        """Compute one step. What it gave each request; a request of a step that failed ends with ERROR."""
        batch = self._scheduler.schedule()
        if batch is None:
            return []
        try:
            results = self._executor.run(batch)
        except Exception as error:
            return self._fail(batch, error)
        try:
            outputs = self._scheduler.update(batch, results)
        except ValueError as error:
            # The results do not fit the batch: as good as none.
            return self._fail(batch, error)
        return [self._process(output) for output in outputs]

    def has_work(self) -> bool:
        return self._scheduler.has_work

    def stats(self) -> EngineStats:
        counts = self._scheduler.stats()
        config = self._scheduler.config
        return EngineStats(
            waiting_requests=counts.num_waiting,
            running_requests=counts.num_running,
            finished_requests=counts.num_finished,
            aborted_requests=self._num_aborted,
            failed_requests=self._num_failed,
            prompt_tokens=counts.num_prompt_tokens,
            cached_tokens=counts.num_cached_tokens,
            output_tokens=counts.num_output_tokens,
            computed_tokens=counts.num_computed_tokens,
            steps=counts.num_steps,
            preemptions=counts.num_preemptions,
            total_pages=config.num_pages,
            free_pages=counts.num_free_pages,
            cached_pages=counts.cache.num_cached_pages - counts.cache.num_locked_pages,
            page_size=config.page_size,
        )

    def flush_cache(self) -> int:
        """Drop every cached prefix that no running request uses; returns the tokens freed."""
        return self._scheduler.cache.reset() * self._scheduler.config.page_size

    def check_integrity(self) -> None:
        """Raises PageAccountingError or AssertionError where pages or requests do not add up."""
        self._scheduler.check_integrity()
        counts = self._scheduler.stats()
        missing = [key for key in self._live if self._scheduler.get(key) is None]
        assert not missing, f"requests that ended are still live: {missing[:5]}"
        assert len(self._live) == counts.num_waiting + counts.num_running, "a request has no text side"

    def _fail(self, batch: ScheduledBatch, error: Exception) -> list[TextOutput]:
        logger.error("step %d failed; its %d requests end", batch.step_id, len(batch.rows), exc_info=error)
        outputs = self._scheduler.fail_batch(batch, f"the step failed: {type(error).__name__}: {error}")
        return [self._process(output) for output in outputs]

    def _process(self, output: TokenOutput) -> TextOutput:
        live = self._live[output.request_id]
        processed = live.processor.push(output)
        result = processed.output
        if processed.stopped_by_text:
            self._scheduler.finish(result.request_id, FinishReason.STOP)
        if result.finish_reason is None:
            return result
        del self._live[result.request_id]
        self._num_aborted += result.finish_reason is FinishReason.ABORT
        self._num_failed += result.finish_reason is FinishReason.ERROR
        return msgspec.structs.replace(result, stats=_stats(live))


def _stats(live: _Live) -> RequestStats:
    # Tokens that one step committed behind a stop in the text are none of the answer's.
    return msgspec.structs.replace(live.request.stats(), num_output_tokens=live.processor.num_tokens)


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """What a builder returns: an engine that is ready to step, and what its clients need to know."""

    core: EngineCore
    info: EngineInfo
    tokenizer: Tokenizer
    tokenizer_spec: TokenizerSpec
