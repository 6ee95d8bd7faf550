"""Sends chains of calls as a closed loop or as Poisson arrivals, and sums up what their clients saw."""

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from benchmarks.load_client import ServedCall
from benchmarks.load_shapes import Chain
from benchmarks.record import quantile

Caller = Callable[[str, int], Awaitable[ServedCall]]
"""Given a prompt and the number of tokens of its answer."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a call has to keep to count for the goodput."""

    ttft: float = 1.0
    """Seconds to the first token."""
    tpot: float = 0.1
    """Seconds per token behind it."""

    def kept_by(self, call: ServedCall) -> bool:
        if call.error is not None or call.first_token - call.sent > self.ttft:
            return False
        per_token = call.seconds_per_token
        return per_token is None or per_token <= self.tpot


@dataclass(frozen=True, slots=True)
class LoadRun:
    """All calls of one load, and the seconds from its first call to its last answer."""

    calls: list[ServedCall]
    wall: float


async def closed_loop(chains: Sequence[Chain], concurrency: int, call: Caller) -> LoadRun:
    """``concurrency`` chains at a time; the next begins when one has ended."""
    calls: list[ServedCall] = []
    waiting = iter(chains)

    async def work() -> None:
        for chain in waiting:
            await _follow(chain, call, calls)

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(min(concurrency, len(chains)))))
    return LoadRun(calls, time.perf_counter() - started)


async def poisson_arrivals(chains: Sequence[Chain], rate: float, seed: str, call: Caller) -> LoadRun:
    """Chains begin independently of one another, so many that ``rate`` calls a second are asked for.

    How many run at once is not bounded: a server that is too slow builds up a queue.
    """
    source = random.Random(f"arrivals {seed}")
    chain_rate = rate * len(chains) / sum(map(len, chains))
    calls: list[ServedCall] = []
    started = time.perf_counter()
    due = started
    async with asyncio.TaskGroup() as tasks:
        for chain in chains:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.create_task(_follow(chain, call, calls))
            due += source.expovariate(chain_rate)
    return LoadRun(calls, time.perf_counter() - started)


def load_metrics(run: LoadRun, objectives: Objectives) -> dict[str, float | None]:
    """Rates per second, times in milliseconds, shares of 1. Failed calls count for nothing but ``failed``.

    TPOT is an answer's mean after its first token, ITL each gap between two chunks of it.
    """
    good = [call for call in run.calls if call.error is None]
    tpots = [value for call in good if (value := call.seconds_per_token) is not None]
    num_prompt = sum(call.num_prompt_tokens for call in good)
    num_output = sum(call.num_output_tokens for call in good)
    num_kept = sum(map(objectives.kept_by, run.calls))
    return {
        "requests": float(len(run.calls)),
        "failed": float(len(run.calls) - len(good)),
        "requests_per_s": len(good) / run.wall,
        "output_tokens_per_s": num_output / run.wall,
        "total_tokens_per_s": (num_prompt + num_output) / run.wall,
        "goodput_per_s": num_kept / run.wall,
        "good_share": num_kept / len(run.calls),
        **_times("ttft", [call.first_token - call.sent for call in good]),
        **_times("tpot", tpots),
        **_times("itl", [gap for call in good for gap in call.gaps]),
        **_times("e2e", [call.last_token - call.sent for call in good]),
        # A server that does not tell how long its prompts are tells nothing of its cache either.
        "cached_share": sum(call.num_cached_tokens for call in good) / num_prompt if num_prompt else None,
        "wall_s": run.wall,
    }


async def _follow(chain: Chain, call: Caller, calls: list[ServedCall]) -> None:
    for request in chain:
        await asyncio.sleep(request.pause)
        calls.append(await call(request.prompt, request.max_tokens))


def _times(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return dict.fromkeys([f"{name}_mean_ms", *(f"{name}_{at}_ms" for at in QUANTILES)])
    return {
        f"{name}_mean_ms": 1e3 * statistics.mean(seconds),
        **{f"{name}_{at}_ms": 1e3 * quantile(seconds, share) for at, share in QUANTILES.items()},
    }
