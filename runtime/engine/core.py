"""EngineCore: one step after the other, in the caller's thread. No threads, no clocks of its own, no torch."""

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ramet.runtime.cache import CacheOutline
from ramet.runtime.engine.answer_checks import AnswerChecks, HeldAnswer
from ramet.runtime.engine.client import EngineInfo, EngineStats
from ramet.runtime.engine.output import OutputProcessor
from ramet.runtime.engine.score_requests import ScoreRequests
from ramet.runtime.grammar.backend import CompiledGrammar, GrammarMatcher
from ramet.runtime.grammar.compiler import Compilation, GrammarCompiler
from ramet.runtime.protocol import (
    FinishReason,
    GenerateInput,
    InvalidRequestError,
    JsonSchema,
    Prefix,
    RametError,
    RequestFailedError,
    RequestStats,
    SamplingParams,
    TextOutput,
    TokenOutput,
    UnsupportedConstraintError,
)
from ramet.runtime.scheduler import Executor, Request, ScheduledBatch, Scheduler
from ramet.runtime.scheduler.admission import check_request
from ramet.runtime.scheduler.batch import LaunchingExecutor, RowResult
from ramet.runtime.tokenizer import Tokenizer, TokenizerSpec

logger = logging.getLogger(__name__)

WAIT_SECONDS = 0.005
"""How long a step with nothing to compute waits for a grammar or a mask; a submission may wait as long."""
MASK_DEADLINE = 5.0
MASK_QUEUE_FACTOR = 6.0
"""How many times the mask deadline a request waits for others' masks before its own is begun."""


@dataclass(frozen=True, slots=True)
class _Live:
    """A request that has not ended, and its text side."""

    source: GenerateInput
    request: Request
    processor: OutputProcessor


class EngineCore:
    """Scheduler, executor, tokenizer and grammars, put together.

    Invariant: ``_live`` has exactly the requests that the scheduler has, and those whose last text is still to
    be made (``_late``); between two attempts at an answer a
    request is in ``_checks`` alone, and a request with continuations is in ``_scores``, its parts in ``_live``.
    Each request ends with one TextOutput that has a finish reason, and its
    stats. Not thread-safe: one thread owns it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        tokenizer: Tokenizer,
        grammar: GrammarCompiler,
        *,
        seed: int | None = None,
        wakeup: threading.Event | None = None,
        mask_deadline: float = MASK_DEADLINE,
        checks: AnswerChecks | None = None,
    ) -> None:
        """``seed``: where the seeds of requests without one come from; None: from the system's randomness.
        ``wakeup``: set by whoever has compiled a grammar or filled a mask; None: nobody does, and a step that
        has nothing else to do waits a moment instead. ``mask_deadline``: seconds within which a mask has to be
        there. ``checks``: who validates what grammars do not enforce."""
        self._scheduler = scheduler
        self._executor = executor
        self._tokenizer = tokenizer
        self._grammar = grammar
        self._seeds = random.SystemRandom() if seed is None else random.Random(seed)
        self._wakeup = threading.Event() if wakeup is None else wakeup
        self._mask_deadline = mask_deadline
        self._live: dict[str, _Live] = {}
        self._compilations: dict[str, Compilation] = {}
        """Of the requests that wait for their grammar."""
        self._checks = AnswerChecks(on_done=self._wakeup.set) if checks is None else checks
        self._scores = ScoreRequests()
        self._hear: Callable[[list[TextOutput]], None] | None = None
        self._late: list[TokenOutput] = []
        """Of the last step, to be made text of while the next one runs on its device."""
        self._ready: list[TextOutput] = []
        """To be returned by the next step."""
        self._num_extra_ends = 0
        """By how much more of the scheduler's requests have ended than of those that were added."""
        self._num_aborted = 0
        self._num_failed = 0

    def hear(self, listener: Callable[[list[TextOutput]], None]) -> None:
        """From now on, where the executor's steps run on a device of their own, most texts of a step are made
        while the next one runs there, and given to ``listener`` instead of being returned.

        Not those that the next step depends on: of requests with stops or a grammar, and of scores.
        """
        if isinstance(self._executor, LaunchingExecutor) and self._executor.runs_apart:
            self._hear = listener

    def add(self, source: GenerateInput) -> None:
        """Take in a request; it waits, for its grammar first if that is not compiled yet.

        Raises:
            InvalidRequestError: it is wrong, too long, or its grammar or stop_regex is known not to be such as
            can be honoured. Nothing is kept. A grammar that turns out so later ends the request with ERROR.
        """
        # A request of this id has ended, if there was one: the id is free once its last text is made.
        self._ready += self._take_late(source.request_id)
        params = source.params
        if params.n != 1:
            raise InvalidRequestError(
                f"n is {params.n}; the core takes one answer a request, its client makes {params.n} of them",
                field="n",
            )
        if source.request_id in self._checks:
            raise InvalidRequestError(
                f"request_id {source.request_id!r} belongs to a running request; choose another one",
                field="request_id",
            )
        if source.continuations:
            self._add_scores(source)
            return
        _check_closing(params)
        processor = OutputProcessor(self._tokenizer, params)
        compilation = None if params.grammar is None else self._grammar.submit(params.grammar)
        is_compiled = compilation is not None and self._grammar.poll(compilation)
        compiled = compilation.result() if compilation is not None and is_compiled else None
        request = Request.from_input(source, arrival=self._scheduler.now(), seed=self._seeds.getrandbits(64))
        if compiled is not None:
            request.matcher = self._matcher(compiled, request)
        self._scheduler.add(request, compiling=compilation is not None and not is_compiled)
        self._live[source.request_id] = _Live(source, request, processor)
        if compiled is not None:
            self._checks.hold(source, compiled, request.arrival)
        elif compilation is not None:
            self._compilations[source.request_id] = compilation

    def abort(self, request_id: str) -> list[TextOutput]:
        """End a request now; everything it held is free when this returns. Unknown and finished ids are
        ignored.
        """
        before = self._take_late(request_id)
        if request_id in self._scores:
            self._num_aborted += 1
            self._num_extra_ends -= 1
            return [self._end_scores(request_id, FinishReason.ABORT)]
        output = self._scheduler.abort(request_id)
        if output is not None:
            return [*before, *self._process(output)]
        ended = self._checks.abort(request_id)
        self._num_aborted += ended is not None
        return before if ended is None else [*before, ended]

    def step(self) -> list[TextOutput]:
        """Compute one step. What it gave each request; a request of a step that failed ends with ERROR.

        Where every request waits for its grammar or its mask, waits a few milliseconds for one of them.
        """
        self._wakeup.clear()
        outputs, self._ready = self._ready, []
        outputs += [*self._take_grammars(), *self._end_overdue(), *self._take_checked()]
        batch = self._scheduler.schedule()
        if batch is not None:
            return outputs + self._compute(batch)
        outputs += self._flush_late()
        if not outputs and self.has_work():
            self._wakeup.wait(WAIT_SECONDS)
        return outputs

    def _compute(self, batch: ScheduledBatch) -> list[TextOutput]:
        try:
            results = self._run(batch)
        except Exception as error:
            return [*self._flush_late(), *self._fail(batch, error)]
        try:
            outputs = self._scheduler.update(batch, results)
        except ValueError as error:
            # The results do not fit the batch: as good as none.
            return self._fail(batch, error)
        if self._hear is None:
            return self._process(*outputs)
        now = [output for output in outputs if not self._can_be_late(output)]
        self._late = [output for output in outputs if self._can_be_late(output)]
        return self._process(*now)

    def _run(self, batch: ScheduledBatch) -> list[RowResult]:
        if self._hear is None or not isinstance(self._executor, LaunchingExecutor):
            return self._executor.run(batch)
        finish = self._executor.launch(batch)
        if texts := self._flush_late():
            self._hear(texts)
        return finish()

    def _can_be_late(self, output: TokenOutput) -> bool:
        """Whether nothing of the next step depends on the text."""
        if output.error is not None or self._scores.owner(output.request_id) is not None:
            return False
        params = self._live[output.request_id].source.params
        return not params.stop and not params.stop_regex and params.grammar is None

    def _take_late(self, request_id: str) -> list[TextOutput]:
        """What is to be told of one request before anything else of it is."""
        ready = [output for output in self._ready if output.request_id == request_id]
        late = [output for output in self._late if output.request_id == request_id]
        if ready or late:
            self._ready = [output for output in self._ready if output.request_id != request_id]
            self._late = [output for output in self._late if output.request_id != request_id]
        return ready + self._process(*late)

    def _flush_late(self) -> list[TextOutput]:
        late, self._late = self._late, []
        return self._process(*late)

    def has_work(self) -> bool:
        return self._scheduler.has_work or self._checks.is_checking or bool(self._late or self._ready)

    def stats(self) -> EngineStats:
        counts = self._scheduler.stats()
        grammars = self._grammar.stats()
        config = self._scheduler.config
        return EngineStats(
            waiting_requests=counts.num_waiting,
            compiling_requests=counts.num_compiling,
            running_requests=counts.num_running,
            finished_requests=counts.num_finished - self._checks.num_resamples - self._num_extra_ends,
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
            draft_tokens=counts.num_draft_tokens,
            accepted_draft_tokens=counts.num_accepted_draft_tokens,
            late_masks=counts.num_late_masks,
            grammar_hits=grammars.num_hits,
            grammar_misses=grammars.num_misses,
            refused_grammars=grammars.num_refused,
            grammar_seconds=grammars.seconds,
            grammar_bytes=grammars.cached_bytes,
            sessions=counts.num_sessions,
            pinned_tokens=counts.num_pinned_tokens,
            dropped_pins=counts.num_dropped_pins,
            resampled_answers=self._checks.num_resamples,
        )

    def cache_outline(self, salt_prefix: str) -> CacheOutline:
        return self._scheduler.cache.outline(salt_prefix)

    def release_session(self, session: str) -> int:
        return self._scheduler.release_session(session)

    def flush_cache(self) -> int:
        """Drop every cached prefix that no running request uses; returns the tokens freed."""
        return self._scheduler.cache.reset() * self._scheduler.config.page_size

    def check_integrity(self) -> None:
        """Raises PageAccountingError or AssertionError where pages or requests do not add up."""
        self._ready += self._flush_late()
        self._scheduler.check_integrity()
        counts = self._scheduler.stats()
        missing = [key for key in self._live if self._scheduler.get(key) is None]
        assert not missing, f"requests that ended are still live: {missing[:5]}"
        num_alive = counts.num_waiting + counts.num_compiling + counts.num_running
        assert len(self._live) == num_alive, "a request has no text side"
        assert len(self._compilations) == counts.num_compiling, "a request waits for no grammar"
        self._scores.check_integrity(self._live.__contains__)
        self._checks.check_integrity(self._live.__contains__)

    def close(self) -> None:
        """Nothing more will be asked: grammars that are being compiled are given up. Does not wait."""
        self._grammar.close()
        self._checks.close()

    def _take_grammars(self) -> list[TextOutput]:
        """Grammars that are compiled now let their requests wait to run; the others' requests end."""
        outputs: list[TextOutput] = []
        for request_id, compilation in list(self._compilations.items()):
            if not self._grammar.poll(compilation):
                continue
            del self._compilations[request_id]
            try:
                compiled = compilation.result()
                matcher = self._matcher(compiled, self._live[request_id].request)
            except RametError as error:
                outputs += self._process(self._scheduler.fail(request_id, error))
            else:
                self._scheduler.supply(request_id, matcher)
                live = self._live[request_id]
                self._checks.hold(live.source, compiled, live.request.arrival)
        return outputs

    def _take_checked(self) -> list[TextOutput]:
        """Answers that were validated are sent, or drawn again."""
        outputs, again = self._checks.settle()
        self._num_failed += sum(output.finish_reason is FinishReason.ERROR for output in outputs)
        for held in again:
            self._run_again(held)
        return outputs

    def _run_again(self, held: HeldAnswer) -> None:
        source = held.attempt()
        request = Request.from_input(source, arrival=held.arrival, seed=self._seeds.getrandbits(64))
        request.matcher = self._matcher(held.compiled, request)
        self._scheduler.add(request)
        self._live[held.request_id] = _Live(source, request, OutputProcessor(self._tokenizer, source.params))

    def _matcher(self, compiled: CompiledGrammar, request: Request) -> GrammarMatcher:
        """Raises InvalidRequestError where the request is to be closed and cannot be."""
        params = request.params
        if not params.close_on_length:
            return compiled.matcher()
        room = check_request(request, self._scheduler.config) - request.num_prompt_tokens
        return self._grammar.closing_matcher(compiled, params.grammar, room)

    def _end_overdue(self) -> list[TextOutput]:
        """Requests whose mask does not come end by name; a grammar at fault is refused from now on."""
        outputs: list[TextOutput] = []
        for request in self._scheduler.held():
            guide, spec = request.guide, request.params.grammar
            if guide is None or spec is None:
                continue
            if guide.seconds_overdue() > self._mask_deadline:
                error: RametError = UnsupportedConstraintError(
                    f"the grammar's mask was not there after {self._mask_deadline:g} s, at output token "
                    f"{request.num_output_tokens}; make the grammar simpler",
                    field="grammar",
                )
                self._grammar.condemn(spec, str(error))
            elif guide.seconds_waiting() > MASK_QUEUE_FACTOR * self._mask_deadline:
                error = RequestFailedError(
                    "the grammar's mask is not there: other requests' masks take too long"
                )
            else:
                continue
            outputs += self._process(self._scheduler.fail(request.request_id, error))
        return outputs

    def _fail(self, batch: ScheduledBatch, error: Exception) -> list[TextOutput]:
        logger.error("step %d failed; its %d requests end", batch.step_id, len(batch.rows), exc_info=error)
        outputs = self._scheduler.fail_batch(batch, f"the step failed: {type(error).__name__}: {error}")
        return self._process(*outputs)

    def _process(self, *outputs: TokenOutput) -> list[TextOutput]:
        """As texts, less what is held back."""
        owners = [self._scores.owner(output.request_id) for output in outputs]
        sent: list[TextOutput] = []
        for output, whole in zip(outputs, owners, strict=True):
            if whole is None:
                sent += self._checks.push(self._text_of(output))
            elif whole in self._scores:
                # Else another part of it has failed in this step, and ended them all.
                sent += self._take_score(whole, output)
        return sent

    def _add_scores(self, source: GenerateInput) -> None:
        for part, targets in self._scores.open(source):
            request = Request.from_input(part, arrival=self._scheduler.now(), seed=0, targets=targets)
            try:
                self._scheduler.add(request)
            except RametError:
                self._end_scores(source.request_id, FinishReason.ERROR)
                raise
            self._live[part.request_id] = _Live(part, request, OutputProcessor(self._tokenizer, part.params))

    def _take_score(self, request_id: str, output: TokenOutput) -> list[TextOutput]:
        """A part of a request has ended, or gone on."""
        if output.finish_reason is None:
            return []
        stats = _stats(self._live.pop(output.request_id))
        if output.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            self._num_failed += 1
            ended = self._end_scores(request_id, output.finish_reason)
            return [msgspec.structs.replace(ended, error=output.error, error_kind=output.error_kind)]
        whole = self._scores.push(output, stats)
        self._num_extra_ends += whole is None
        return [] if whole is None else [whole]

    def _end_scores(self, request_id: str, reason: FinishReason) -> TextOutput:
        """No part of the request runs any more."""
        for part in self._scores.close(request_id):
            if self._live.pop(part, None) is not None:
                self._scheduler.abort(part)
                self._num_extra_ends += 1
        return TextOutput(request_id=request_id, finish_reason=reason, stats=RequestStats())

    def _text_of(self, output: TokenOutput) -> TextOutput:
        live = self._live[output.request_id]
        processed = live.processor.push(output)
        result = processed.output
        if processed.stopped_by_text:
            self._scheduler.finish(result.request_id, FinishReason.STOP)
        if result.finish_reason is None:
            return result
        del self._live[result.request_id]
        self._compilations.pop(result.request_id, None)
        self._num_aborted += result.finish_reason is FinishReason.ABORT
        self._num_failed += result.finish_reason is FinishReason.ERROR
        pooled, reason = live.request.pooled, result.finish_reason
        embedding = None
        if pooled is not None and reason in (FinishReason.STOP, FinishReason.LENGTH):
            embedding = pooled.embedding()
        return msgspec.structs.replace(result, stats=_stats(live), embedding=embedding)


def _check_closing(params: SamplingParams) -> None:
    """Raises InvalidRequestError where ``close_on_length`` has nothing to close, or must not."""
    if not params.close_on_length:
        return
    grammar = params.grammar.inner if isinstance(params.grammar, Prefix) else params.grammar
    if not isinstance(grammar, JsonSchema):
        raise InvalidRequestError(
            "close_on_length is true, and closes JSON alone; give a JsonSchema as grammar, or leave it out",
            field="close_on_length",
        )
    if params.min_tokens:
        raise InvalidRequestError(
            f"min_tokens is {params.min_tokens}, and close_on_length ends the document sooner where it must; "
            "leave one of them out",
            field="min_tokens",
        )


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
