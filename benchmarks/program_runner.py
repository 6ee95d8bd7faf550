"""Runs a case's programs on an engine and counts: calls, tokens, times, and what a cache without limits would
have found."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol, Self

from benchmarks.prefixes import PrefixRequest, infinite_hit_share
from benchmarks.program_cases import ProgramCase
from benchmarks.record import quantile
from ramet import Program, ProgramState, SamplingParams, function
from ramet.lang.backends.base import Backend
from ramet.lang.backends.local import LocalBackend
from ramet.runtime.engine import EngineFace, EngineInfo, EngineStats, Increment, Score
from ramet.runtime.engine.score_trie import ScoreTrie
from ramet.runtime.protocol import ProgramTag
from ramet.runtime.tokenizer import Tokenizer

PARALLEL = 8
"""Programs in flight."""


class Counted(Protocol):
    """What counts tokens and has a cache to be emptied."""

    def flush_cache(self) -> object: ...

    def stats(self) -> EngineStats: ...


@dataclass(slots=True)
class RecordedCall:
    """One thing that an engine was asked; times are seconds on one clock."""

    program_id: str
    token_ids: list[int]
    begun: float
    params: SamplingParams | None = None
    """None: the continuations are scored."""
    continuations: list[list[int]] = field(default_factory=list)
    output_token_ids: list[int] = field(default_factory=list)
    ended: float = 0.0

    def requests(self) -> list[PrefixRequest]:
        """As the engine computes them: of continuations the paths of their trie, each from the first
        position on behind which something is scored."""
        if self.params is not None:
            return [PrefixRequest(self.token_ids, self.output_token_ids)]
        last = len(self.token_ids) - 1
        return [
            PrefixRequest([*self.token_ids, *path.token_ids], [0], num_reusable=last + path.first)
            for path in ScoreTrie(self.continuations).paths
        ]


class RecordingEngine:
    """A TokenEngine that remembers what it was asked. ``calls`` are in the order of their beginnings."""

    def __init__(self, engine: EngineFace) -> None:
        self.engine = engine
        self.calls: list[RecordedCall] = []

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def astream(
        self,
        prompts: Sequence[int],
        sampling_params: SamplingParams,
        *,
        tag: ProgramTag,
        priority: int,
        cache_salt: str,
    ) -> "RecordedStream":
        call = self._begin(RecordedCall(tag.program_id, list(prompts), time.perf_counter(), sampling_params))
        stream = self.engine.astream(
            prompts, sampling_params, tag=tag, priority=priority, cache_salt=cache_salt
        )
        return RecordedStream(stream, call)

    async def agenerate(
        self, prompts: Sequence[Sequence[int]], sampling_params: SamplingParams, *, cache_salt: str
    ) -> object:
        calls = [
            self._begin(RecordedCall("", list(ids), time.perf_counter(), sampling_params)) for ids in prompts
        ]
        outputs = await self.engine.agenerate(prompts, sampling_params, cache_salt=cache_salt)
        for call, output in zip(calls, outputs, strict=True):
            call.output_token_ids, call.ended = list(output.token_ids), time.perf_counter()
        return outputs

    async def ascore(
        self,
        prompt: list[int],
        continuations: Sequence[list[int]],
        *,
        tag: ProgramTag,
        priority: int,
        cache_salt: str,
    ) -> list[Score]:
        call = self._begin(
            RecordedCall(
                tag.program_id, list(prompt), time.perf_counter(), continuations=list(map(list, continuations))
            )
        )
        scores = await self.engine.ascore(
            prompt, continuations, tag=tag, priority=priority, cache_salt=cache_salt
        )
        call.ended = time.perf_counter()
        return scores

    def flush_cache(self) -> int:
        return self.engine.flush_cache()

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def close(self) -> None:
        """The engine is not this one's."""

    def _begin(self, call: RecordedCall) -> RecordedCall:
        self.calls.append(call)
        return call


class RecordedStream:
    """Passes increments on, and writes their token ids down."""

    def __init__(self, stream: Any, call: RecordedCall) -> None:
        self._stream = stream
        self._call = call

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stream.__aexit__(kind, error, trace)

    async def __aiter__(self) -> AsyncIterator[Increment]:
        async for increment in self._stream:
            self._call.output_token_ids += increment.token_ids
            if increment.finish_reason is not None:
                self._call.ended = time.perf_counter()
            yield increment


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """What became of a case once. ``texts``: what each program said, to be compared."""

    calls: list[RecordedCall]
    """None of them where another process was asked."""
    texts: list[str]
    seconds: list[float]
    """Of each program."""
    wall: float
    stats: EngineStats
    """Counted during this run alone."""

    def metrics(self, page_size: int, *, has_cache: bool) -> dict[str, float | None]:
        requests = [request for call in self.calls for request in call.requests()]
        num_prompt, num_cached = self.stats.prompt_tokens, self.stats.cached_tokens
        bound = infinite_hit_share(requests, page_size) if has_cache and requests else None
        share = num_cached / num_prompt if num_prompt else 0.0
        return {
            "calls": float(len(self.calls)) if self.calls else None,
            "requests": float(len(requests) or self.stats.finished_requests),
            "prompt_tokens": float(num_prompt),
            "computed_tokens": float(num_prompt - num_cached),
            "hit_share": share,
            "bound_share": bound,
            "of_bound": share / bound if bound else None,
            "latency_mean_s": sum(self.seconds) / len(self.seconds),
            "latency_p99_s": quantile(self.seconds, 0.99),
            "programs_per_s": len(self.seconds) / self.wall,
            "output_tokens_per_s": self.stats.output_tokens / self.wall,
            "wall_s": self.wall,
        }


def run_programs(case: ProgramCase, engine: EngineFace, *, compiled: bool) -> ProgramRun:
    """All items of the case, PARALLEL at a time, on an empty cache. ``compiled``: with the compiler's passes.

    Raises what the program raises.
    """
    recording = RecordingEngine(engine)
    run = run_on_backend(case, LocalBackend(recording), engine, compiled=compiled)
    return replace(run, calls=recording.calls)


def run_on_backend(case: ProgramCase, backend: Backend, counted: Counted, *, compiled: bool) -> ProgramRun:
    """As ``run_programs``, on whatever answers. ``counted``: the engine behind it. No call is recorded."""
    counted.flush_cache()
    before = counted.stats()
    started = time.perf_counter()
    program = timed(case) if compiled else timed(case).interpreted()
    states: list[ProgramState] = program.run_batch(
        [{"arguments": dict(item)} for item in case.items], backend=backend, num_threads=PARALLEL
    )
    wall = time.perf_counter() - started
    return ProgramRun(
        [],
        [state.text() for state in states],
        [state.ret_value for state in states],
        wall,
        difference(counted.stats(), before),
    )


def replay_requests(recorded: ProgramRun, engine: EngineFace) -> ProgramRun:
    """The calls of a run as requests that nothing is known of: each begins when those have ended that had ended
    when it first began. What was computed ahead of a call is left out."""
    engine.flush_cache()
    before = engine.stats()
    started = time.perf_counter()
    calls, seconds = asyncio.run(_replay(recorded, RecordingEngine(engine)))
    wall = time.perf_counter() - started
    return ProgramRun(calls, recorded.texts, seconds, wall, difference(engine.stats(), before))


def timed(case: ProgramCase) -> Program:
    """The case's program, as one that returns how many seconds it took."""

    @function
    def timed_program(s: ProgramState, arguments: dict[str, Any]) -> float:
        started = time.perf_counter()
        case.program(s, **arguments)
        s.sync()
        return time.perf_counter() - started

    return timed_program


def difference(now: EngineStats, before: EngineStats) -> EngineStats:
    """Counters since ``before``."""
    names = ("finished_requests", "prompt_tokens", "cached_tokens", "output_tokens", "computed_tokens")
    return EngineStats(**{name: getattr(now, name) - getattr(before, name) for name in names})


async def _replay(recorded: ProgramRun, engine: RecordingEngine) -> tuple[list[RecordedCall], list[float]]:
    by_program: dict[str, list[RecordedCall]] = {}
    for call in recorded.calls:
        if call.program_id:
            by_program.setdefault(call.program_id, []).append(call)
    limit = asyncio.Semaphore(PARALLEL)
    running = [_replay_program(calls, engine, limit) for calls in by_program.values()]
    return engine.calls, list(await asyncio.gather(*running))


async def _replay_program(
    calls: Sequence[RecordedCall], engine: RecordingEngine, limit: asyncio.Semaphore
) -> float:
    async with limit:
        started = time.perf_counter()
        tasks: list[asyncio.Task[None]] = []
        for call in calls:
            earlier = [task for task, other in zip(tasks, calls, strict=False) if other.ended <= call.begun]
            tasks.append(asyncio.create_task(_replay_call(call, engine, earlier)))
        await asyncio.gather(*tasks)
        return time.perf_counter() - started


async def _replay_call(call: RecordedCall, engine: RecordingEngine, earlier: Sequence[Awaitable[None]]) -> None:
    await asyncio.gather(*earlier)
    plain = ProgramTag()
    if call.params is None:
        await engine.ascore(call.token_ids, call.continuations, tag=plain, priority=0, cache_salt="")
        return
    async with engine.astream(call.token_ids, call.params, tag=plain, priority=0, cache_salt="") as stream:
        async for _ in stream:
            pass
