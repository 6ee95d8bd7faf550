"""The same calls in process and over HTTP: what the server's way there and back costs.

The engine in process has a process of its own, whose event loop reads the streams; the server has its two, and
this one reads. Both engines have the same settings, and one of them rests while the other works.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.load_client import ServedCall
from benchmarks.load_driver import LoadRun, closed_loop
from benchmarks.load_shapes import Chain
from ramet import Engine, SamplingParams
from ramet.runtime.engine import EngineFace


def make(*, model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Worker factory."""
    engine = Engine(model, **settings)

    def run(chains: Sequence[Chain], concurrency: int) -> LoadRun:
        return asyncio.run(closed_loop(chains, concurrency, StreamingCaller(engine)))

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


def same_answers(first: LoadRun, second: LoadRun) -> float:
    """Share of the answers that both runs have. Both must have run the same calls, in whatever order."""
    known = sorted(call.text for call in first.calls)
    found = sorted(call.text for call in second.calls)
    return sum(one == other for one, other in zip(known, found, strict=True)) / len(known)
