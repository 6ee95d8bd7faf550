"""The same calls in process and over HTTP: what the server's way there and back costs.

The engine in process has a process of its own, whose event loop reads the streams; the server has its two, and
this one reads. Both engines have the same settings, and one of them rests while the other works.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.load_client import ServedCall, Target, open_client
from benchmarks.load_driver import LoadRun, closed_loop
from benchmarks.load_shapes import Chain
from benchmarks.soak_vitals import cpu_seconds_of, engine_of
from ramet import Engine, SamplingParams
from ramet.runtime.engine import EngineFace


def make(*, model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Worker factory."""
    engine = Engine(model, **settings)

    def run(chains: Sequence[Chain], concurrency: int) -> tuple[LoadRun, float]:
        """With the CPU seconds that it took."""
        before = time.process_time()
        done = asyncio.run(closed_loop(chains, concurrency, StreamingCaller(engine)))
        return done, time.process_time() - before

    return {"run": run, "close": engine.close}


class StreamingCaller:
    """As LoadClient.call, on an engine in this process."""

    def __init__(self, engine: EngineFace) -> None:
        self._engine = engine

    async def __call__(self, prompt: str, max_tokens: int) -> ServedCall:
        """A greedy answer to one user's message. Raises what the engine raises."""
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        done = ServedCall(sent=time.perf_counter())
        said: list[str] = []
        async for increment in self._engine.astream(
            messages=[{"role": "user", "content": prompt}], sampling_params=params
        ):
            if increment.text:
                now = time.perf_counter()
                if said:
                    done.gaps.append(now - done.last_token)
                else:
                    done.first_token = now
                done.last_token = now
                said.append(increment.text)
            done.num_output_tokens += len(increment.token_ids)
            if increment.stats is not None:
                done.num_prompt_tokens = increment.stats.num_prompt_tokens
                done.num_cached_tokens = increment.stats.num_cached_tokens
        done.text = "".join(said)
        return done


async def run_over_http(target: Target, chains: Sequence[Chain], timeout: float) -> LoadRun:
    """All chains at once."""
    async with open_client(target, timeout) as client:
        return await closed_loop(chains, len(chains), client.call)


def cpu_seconds(server_pid: int) -> dict[str, float]:
    """So far, by part: the server, its engine, and this process, which is the client. Empty off Linux."""
    if not sys.platform.startswith("linux"):
        return {}
    return {
        "server_cpu_s": cpu_seconds_of(server_pid),
        "engine_cpu_s": cpu_seconds_of(engine_of(server_pid)),
        "client_cpu_s": time.process_time(),
    }


def same_answers(first: LoadRun, second: LoadRun) -> float:
    """Share of the answers that both runs have. Both must have run the same calls, in whatever order."""
    known = sorted(call.text for call in first.calls)
    found = sorted(call.text for call in second.calls)
    return sum(one == other for one, other in zip(known, found, strict=True)) / len(known)
