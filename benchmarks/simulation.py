"""The real scheduler and cache with an executor that computes nothing: hit rates, and what scheduling costs."""

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.prefixes import PrefixRequest
from benchmarks.record import quantile
from ramet.runtime.cache import EvictionPolicy, LfuEviction, LruEviction, PageAllocator, RadixCache
from ramet.runtime.protocol import GenerateInput, SamplingParams
from ramet.runtime.scheduler import (
    Fcfs,
    LongestPrefixMatch,
    OrderingPolicy,
    Request,
    RowResult,
    ScheduledBatch,
    Scheduler,
    SchedulerConfig,
)

POLICIES: dict[str, Callable[[], OrderingPolicy]] = {"lpm": LongestPrefixMatch, "fcfs": Fcfs}
EVICTIONS: dict[str, Callable[[], EvictionPolicy]] = {"lru": LruEviction, "lfu": LfuEviction}
MAX_WAITING = 256
"""Requests that wait at a time: arrivals are not what is measured, so the queue is kept full."""
_CONTEXT = 1 << 20
_VOCABULARY = 1 << 30


@dataclass(frozen=True, slots=True)
class CacheSetup:
    """What a simulation runs with."""

    cache_tokens: int
    page_size: int = 16
    policy: str = "lpm"
    eviction: str = "lru"
    max_running_requests: int = 64
    max_tokens_per_step: int = 8192

    def scheduler(self, *, enable_prefix_cache: bool = True) -> Scheduler:
        num_pages = self.cache_tokens // self.page_size
        config = SchedulerConfig(
            num_pages=num_pages,
            page_size=self.page_size,
            context_length=_CONTEXT,
            vocab_size=_VOCABULARY,
            max_running_requests=self.max_running_requests,
            max_tokens_per_step=self.max_tokens_per_step,
            enable_prefix_cache=enable_prefix_cache,
        )
        cache = RadixCache(PageAllocator(num_pages, self.page_size), EVICTIONS[self.eviction]())
        return Scheduler(config, cache=cache, policy=POLICIES[self.policy]())


@dataclass(frozen=True, slots=True)
class Simulated:
    """What came of a simulation."""

    hit_share: float
    """Prompt tokens that were in the cache when their request first ran, of all prompt tokens."""
    num_preemptions: int
    num_evicted_tokens: int
    step_seconds: list[float]
    """``schedule`` and ``update`` of each step together."""

    @property
    def seconds(self) -> float:
        return sum(self.step_seconds)


def simulate(
    requests: Sequence[PrefixRequest], setup: CacheSetup, *, enable_prefix_cache: bool = True
) -> Simulated:
    """Run all requests to their ends. Each enters the queue when what it waits for has ended."""
    scheduler = setup.scheduler(enable_prefix_cache=enable_prefix_cache)
    waiting = deque(enumerate(requests))
    finished: set[int] = set()
    seconds: list[float] = []
    num_waiting = 0
    while waiting or scheduler.has_work:
        while waiting and num_waiting < MAX_WAITING and _is_due(waiting[0][1], finished):
            index, request = waiting.popleft()
            scheduler.add(_request(index, request))
            num_waiting += 1
        started = time.perf_counter()
        batch = scheduler.schedule()
        lap = time.perf_counter() - started
        assert batch is not None
        results = [_result(row.request_id, row.samples, len(row.history), requests) for row in batch.rows]
        started = time.perf_counter()
        outputs = scheduler.update(batch, results)
        seconds.append(lap + time.perf_counter() - started)
        finished.update(int(output.request_id) for output in outputs if output.finish_reason is not None)
        num_waiting = scheduler.stats().num_waiting
    scheduler.check_integrity()
    stats = scheduler.stats()
    assert stats.num_finished == len(requests)
    return Simulated(
        hit_share=stats.num_cached_tokens / stats.num_prompt_tokens,
        num_preemptions=stats.num_preemptions,
        num_evicted_tokens=stats.cache.num_evicted_pages * setup.page_size,
        step_seconds=seconds,
    )


def step_costs(num_running: int, num_waiting: int, num_steps: int) -> dict[str, float | None]:
    """Microseconds of scheduling per decode step with ``num_running`` requests of 128 tokens and their queue.

    ``num_waiting`` more requests wait, of 16 kinds of prompt; none can start before a running one ends, so each
    step is a decode step. ``first_us``: the first step that finds the queue.
    """
    page_size, length = 16, 128
    setup = CacheSetup(
        cache_tokens=(num_running * (length + num_steps + 64) // page_size + num_running) * page_size,
        max_running_requests=num_running,
        max_tokens_per_step=max(512, num_running),
    )
    scheduler = setup.scheduler()
    running = [PrefixRequest([index] * length, []) for index in range(num_running)]
    for index, request in enumerate(running):
        scheduler.add(_request(index, request, max_tokens=num_steps + 32))
    while len(_step(scheduler).rows) < num_running or scheduler.stats().num_waiting:
        continue
    started = time.perf_counter()
    for index in range(num_waiting):
        prompt = PrefixRequest([index % 16] * 64 + [num_running + index] * 64, [])
        scheduler.add(_request(num_running + index, prompt, max_tokens=4))
    added = time.perf_counter() - started
    seconds = [_timed(lambda: _step(scheduler)) for _ in range(num_steps)]
    return {
        "step_median_us": statistics.median(seconds) * 1e6,
        "step_p99_us": quantile(seconds, 0.99) * 1e6,
        "step_per_request_us": statistics.median(seconds) * 1e6 / num_running,
        "first_us": seconds[0] * 1e6,
        "add_us": added / num_waiting * 1e6 if num_waiting else None,
    }


def ordering_cost(num_waiting: int) -> dict[str, float | None]:
    """Milliseconds of the step that first finds ``num_waiting`` requests, 16 kinds of prompt, in its queue.

    ``admit_ms``: that step, an admission included. ``whole_ms``: the ordering policy over all of them at once.
    """
    setup = CacheSetup(cache_tokens=1 << 20, max_running_requests=64, max_tokens_per_step=512)
    scheduler = setup.scheduler()
    for kind in range(16):
        scheduler.add(_request(kind, PrefixRequest([kind] * 256, []), max_tokens=1))
    while scheduler.has_work:
        _step(scheduler)
    waiting = []
    for index in range(16, 16 + num_waiting):
        request = _request(index, PrefixRequest([index % 16] * 256 + [index] * 64, []), max_tokens=4)
        scheduler.add(request)
        waiting.append(request)
    cache = scheduler.cache

    def prefix_length(request: Request) -> int:
        return cache.probe(request.history, "", None).num_tokens

    whole = _timed(lambda: LongestPrefixMatch(num_waiting).order(waiting, prefix_length))
    admit = _timed(lambda: _step(scheduler))
    return {"admit_ms": admit * 1e3, "whole_ms": whole * 1e3}


def _step(scheduler: Scheduler) -> ScheduledBatch:
    batch = scheduler.schedule()
    assert batch is not None
    scheduler.update(batch, [RowResult([7] if row.samples else []) for row in batch.rows])
    return batch


def _timed(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def _is_due(request: PrefixRequest, finished: set[int]) -> bool:
    return request.after is None or request.after in finished


def _request(index: int, request: PrefixRequest, max_tokens: int | None = None) -> Request:
    params = SamplingParams(
        max_tokens=max_tokens or len(request.output_token_ids), temperature=0.0, ignore_eos=True
    )
    source = GenerateInput(request_id=str(index), token_ids=request.token_ids, params=params)
    return Request.from_input(source, arrival=0.0, seed=0)


def _result(request_id: str, samples: bool, num_known: int, requests: Sequence[PrefixRequest]) -> RowResult:
    if not samples:
        return RowResult([])
    request = requests[int(request_id)]
    return RowResult([request.output_token_ids[num_known - len(request.token_ids)]])
