"""A scheduler, the fake executor and the oracle together: every operation is followed by all checks."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import numpy as np

from ramet.runtime.cache import LfuEviction, PageAllocator, RadixCache
from ramet.runtime.protocol import FinishReason, GenerateInput, SessionPin, TokenOutput
from ramet.runtime.scheduler import (
    BatchRow,
    Fcfs,
    LongestPrefixMatch,
    Request,
    RowResult,
    ScheduledBatch,
    Scheduler,
    SchedulerConfig,
)
from ramet.runtime.scheduler.batch import NO_TARGETS, Targets
from tests.runtime.scheduler.fakes import (
    FakeClock,
    FakeExecutor,
    MixedProposer,
    Oracle,
    StepFailed,
    TurnMatcher,
    chain,
    logprob_of,
    lone_run,
    make_input,
    states_of,
)

VOCAB_SIZE = 40
EOS = 7


class Simulation:
    """What each request was told, against what it would have been told alone."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        fcfs: bool = False,
        lfu: bool = False,
        drafts: bool = False,
        late: bool = False,
    ) -> None:
        self.config = config
        cache = RadixCache(PageAllocator(config.num_pages, config.page_size), LfuEviction() if lfu else None)
        self.clock = FakeClock()
        self.scheduler = Scheduler(
            config,
            cache=cache,
            policy=Fcfs() if fcfs else LongestPrefixMatch(window=4),
            stop_token_ids=(EOS,),
            proposer=MixedProposer(config.vocab_size) if drafts else None,
            clock=self.clock,
        )
        self.salts: dict[str, str] = {}
        self.executor = FakeExecutor(config, self.salts)
        self.executor.lateness = Random(0) if late else None
        self.sources: dict[str, GenerateInput] = {}
        self.requests: dict[str, Request] = {}
        self.expected: dict[str, Oracle] = {}
        self.answers: dict[str, list[int]] = {}
        self.endings: dict[str, FinishReason] = {}
        self.may_fail: set[str] = set()
        """Requests that may have read what a broken row wrote."""

    def add(
        self, source: GenerateInput, matcher: TurnMatcher | None = None, targets: Targets = NO_TARGETS
    ) -> None:
        request_id = source.request_id
        own = None if matcher is None else matcher.fork()
        request = Request.from_input(source, arrival=self.clock(), matcher=matcher, targets=targets)
        self.scheduler.add(request)
        self.salts[request_id] = source.cache_salt
        self.sources[request_id] = source
        self.requests[request_id] = request
        self.expected[request_id] = lone_run(source, self.config, (EOS,), own)
        self.answers[request_id] = []
        self.check()

    def step(self, *, fails: bool = False) -> None:
        scheduler = self.scheduler
        decoding = [request for request in self.requests.values() if request.slot >= 0 and request.is_decoding]
        had_work = scheduler.has_work
        batch = scheduler.schedule()
        assert (batch is not None) == had_work
        if batch is None:
            return
        assert 0 < batch.num_tokens <= self.config.max_tokens_per_step
        rows = {row.request_id for row in batch.rows}
        assert len(rows) == len(batch.rows)
        for request in decoding[: self.config.max_tokens_per_step]:
            assert request.request_id in rows or request.slot < 0, "a decode row was left out"
        self.executor.fails = fails
        self.clock.advance(1.0)
        try:
            results = self.executor.run(batch)
        except StepFailed as error:
            outputs = scheduler.fail_batch(batch, str(error))
            assert {output.request_id for output in outputs} == rows
            self.take_failures(outputs, str(error))
        else:
            for output in scheduler.update(batch, results):
                assert output.request_id in rows
                self.take(output)
        self.check()

    def take_failures(self, outputs: list[TokenOutput], message: str) -> None:
        for output in outputs:
            assert (output.finish_reason, output.error) == (FinishReason.ERROR, message)
            self.end(output.request_id, FinishReason.ERROR)

    def take(self, output: TokenOutput) -> None:
        request_id = output.request_id
        expected, answer = self.expected[request_id], self.answers[request_id]
        source = self.sources[request_id]
        is_first = not answer and bool(output.token_ids)
        first = len(answer)
        answer += output.token_ids
        assert answer == expected.token_ids[: len(answer)], f"{request_id} got other tokens than alone"
        history = list(source.token_ids) + answer
        states = chain(history)
        if source.params.logprobs is not None and output.token_ids:
            begin = len(source.token_ids) + first
            assert output.logprobs == [
                logprob_of(states[p - 1], history[p]) for p in range(begin, len(history))
            ]
        start = source.params.prompt_logprobs_start
        if source.params.prompt_logprobs is not None and is_first:
            assert output.prompt_logprobs == [
                logprob_of(states[p - 1], history[p]) if p >= max(1, start) else None
                for p in range(len(source.token_ids))
            ]
        else:
            assert output.prompt_logprobs is None
        targets = self.requests[request_id].targets
        if targets.token_ids and is_first:
            assert output.target_logprobs == [
                [logprob_of(states[position], token_id).chosen.logprob - token_id for token_id in token_ids]
                for position, token_ids in enumerate(targets.token_ids, targets.first)
            ]
        else:
            assert output.target_logprobs is None
        if output.finish_reason is FinishReason.ERROR:
            assert output.error is not None
            assert request_id in self.may_fail or expected.finish_reason is FinishReason.ERROR
            self.end(request_id, FinishReason.ERROR)
        elif output.finish_reason is not None:
            assert answer == expected.token_ids
            assert output.finish_reason is expected.finish_reason
            assert output.stop_token_id == expected.stop_token_id
            self.end(request_id, output.finish_reason)
        else:
            assert output.token_ids

    def end(self, request_id: str, reason: FinishReason) -> None:
        assert request_id not in self.endings, "a request ended twice"
        self.endings[request_id] = reason
        request = self.requests[request_id]
        assert request.finish_reason is reason
        assert (request.pages, request.node, request.slot) == ([], None, -1)
        assert request.num_overtaken <= self.config.max_overtakes
        if request.pooled is not None and self.answers[request_id]:
            assert request.pooled.embedding() == self.embedding(request_id)
        stats = request.stats()
        assert stats.num_output_tokens >= len(self.answers[request_id])
        assert stats.e2e is not None

    def embedding(self, request_id: str) -> list[float]:
        """Of its prompt as a whole."""
        source = self.sources[request_id]
        states = states_of(chain(source.token_ids)[-1 if source.pooling == "last" else 0 :])
        assert states is not None
        total = np.zeros(states.shape[1])
        for state in states:
            total += state
        mean: list[float] = (total / len(states)).astype(np.float32).tolist()
        return mean

    def abort(self, request_id: str) -> None:
        output = self.scheduler.abort(request_id)
        assert (output is None) == (request_id in self.endings or request_id not in self.requests)
        if output is not None:
            assert output.finish_reason is FinishReason.ABORT
            self.end(request_id, FinishReason.ABORT)
        self.check()

    def finish(self, request_id: str) -> None:
        if self.scheduler.finish(request_id, FinishReason.STOP):
            self.end(request_id, FinishReason.STOP)
        self.check()

    def release(self, session: str) -> None:
        """A session is closed."""
        before = self.scheduler.stats()
        assert self.scheduler.release_session(session) <= before.num_pinned_tokens
        self.check()

    def check(self) -> None:
        self.scheduler.check_integrity()

    def alive(self) -> list[str]:
        return [request_id for request_id in self.requests if request_id not in self.endings]

    def drain(self, limit: int = 100_000, *, reset: bool = True) -> None:
        """Run until nothing is left; then nothing may be held."""
        for _ in range(limit):
            if not self.scheduler.has_work:
                break
            self.step()
        assert set(self.endings) == set(self.requests)
        for session in SESSIONS:
            self.release(session)
        stats = self.scheduler.stats()
        assert (stats.num_sessions, stats.num_pinned_tokens) == (0, 0)
        assert stats.num_free_pages + stats.cache.num_cached_pages == self.config.num_pages
        assert (stats.num_waiting, stats.num_running, stats.cache.num_locked_pages) == (0, 0, 0)
        assert stats.num_finished == len(self.requests)
        if reset:
            self.scheduler.cache.reset()
            assert self.scheduler.cache.allocator.num_free == self.config.num_pages


SESSIONS = ("alpha", "beta")


def random_source(rng: Random, request_id: str, config: SchedulerConfig) -> GenerateInput:
    """Prompts that share prefixes of all lengths, whole pages and parts of them, under all kinds of limits."""
    stem = [[1, 2, 3, 4, 5, 6, 8, 9] * 6, [1, 2, 3, 4] + [9] * 44, [11] * 48][rng.randrange(3)]
    most = min(config.context_length, config.num_slots) - 1
    prompt = stem[: rng.randrange(1, 40)] + [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([0, 0, 1, 9]))]
    prompt = prompt[:most]
    room = config.context_length - len(prompt)
    max_tokens = rng.choice([None, 1, min(room, 5), min(room, 20), min(room, 20), room])
    params: dict[str, object] = {"max_tokens": max_tokens, "ignore_eos": rng.random() < 0.5}
    if rng.random() < 0.3:
        params["min_tokens"] = rng.randrange(0, (max_tokens or room) + 1)
    if rng.random() < 0.3:
        params["stop_token_ids"] = (rng.randrange(VOCAB_SIZE), rng.randrange(VOCAB_SIZE))
    if rng.random() < 0.2:
        params["logprobs"] = 0
    if rng.random() < 0.3:
        params["prompt_logprobs"] = 0
        params["prompt_logprobs_start"] = rng.choice([0, 1, rng.randrange(60)])
    source = make_input(
        request_id,
        prompt,
        priority=rng.choice([0, 0, 0, 1, -1]),
        salt=rng.choice(["", "", "tenant"]),
        **params,
    )
    return msgspec.structs.replace(
        source, pin=random_pin(rng), pooling=rng.choice([None, None, "last", "mean"])
    )


def random_pin(rng: Random) -> SessionPin | None:
    if rng.random() < 0.6:
        return None
    return SessionPin(
        session=rng.choice(SESSIONS), seconds=rng.choice([2.0, 1e6, 1e6]), max_tokens=rng.choice([7, 1000])
    )


def random_targets(rng: Random, source: GenerateInput) -> Targets:
    """Of some positions of the prompt, up to its end or not."""
    if rng.random() < 0.6:
        return NO_TARGETS
    first = rng.randrange(len(source.token_ids))
    count = rng.choice([1, 3, len(source.token_ids)])
    token_ids = [tuple(range(rng.randrange(4))) for _ in source.token_ids[first : first + count]]
    return Targets(first, tuple(token_ids))


def random_matcher(rng: Random) -> TurnMatcher | None:
    if rng.random() < 0.7:
        return None
    breaks_at = rng.randrange(8) if rng.random() < 0.1 else -1
    return TurnMatcher(VOCAB_SIZE, EOS, length=rng.randrange(1, 12), breaks_at=breaks_at)


def tiny_config(page_size: int, **changes: object) -> SchedulerConfig:
    """A pool of about three requests: preemption is the rule."""
    config = SchedulerConfig(
        num_pages=96 // page_size,
        page_size=page_size,
        context_length=72,
        vocab_size=VOCAB_SIZE,
        max_running_requests=5,
        max_tokens_per_step=16,
        max_overtakes=3,
        admission_headroom=4,
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def roomy_config(page_size: int = 4, **changes: Any) -> SchedulerConfig:
    values: dict[str, Any] = {
        "num_pages": 1024 // page_size,
        "page_size": page_size,
        "context_length": 600,
        "vocab_size": VOCAB_SIZE,
        "max_running_requests": 16,
        "max_tokens_per_step": 64,
        "admission_headroom": 8,
    }
    return SchedulerConfig(**{**values, **changes})


def prompt_of(length: int, variant: int = 0) -> list[int]:
    return [(index * 5 + index // 8 + variant) % VOCAB_SIZE for index in range(length)]


class Steps(Simulation):
    """A simulation that keeps the batches."""

    def __init__(self, config: SchedulerConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self.batches: list[ScheduledBatch] = []
        run = self.executor.run

        def record(batch: ScheduledBatch) -> list[RowResult]:
            self.batches.append(batch)
            return run(batch)

        self.executor.run = record  # type: ignore[method-assign]

    def submit(self, request_id: str, token_ids: Sequence[int], **params: Any) -> Request:
        matcher = params.pop("matcher", None)
        params = {"max_tokens": 8, "ignore_eos": True, **params}
        self.add(make_input(request_id, token_ids, **params), matcher)
        return self.requests[request_id]

    def last(self) -> dict[str, BatchRow]:
        return {row.request_id: row for row in self.batches[-1].rows}
