"""ramet in process: the workloads through ``Engine.astream``, with a caller's clock."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.phases import PhaseSplit, measure_phases
from benchmarks.rounds import CallRecord, Meter, Run, prompts_of
from benchmarks.workloads import Workload
from ramet import Engine, SamplingParams
from ramet.runtime.tokenizer import encode_chat


def make(*, model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Worker factory."""
    runner = RametRunner(Engine(model, **settings))
    return {"run": runner.run, "phases": runner.phases, "info": runner.info, "close": runner.close}


class RametRunner:
    """Runs workloads on one engine, which it owns."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, workload: Workload, replay: Run | None = None) -> Run:
        """One repetition. The cache keeps what earlier ones left: every repetition has prompts of its own.

        ``replay``: another engine's run of the same workload, whose prompts are used token for token.
        Without it prompts are tokenised before the clock starts, and chat turns go on with ramet's own answers.
        """
        return asyncio.run(self._run(workload, replay))

    def phases(self, num_running: int, prompts: Sequence[str], max_tokens: int) -> PhaseSplit:
        """Where the time of a decode step goes with ``num_running`` requests; see benchmarks.phases."""
        return measure_phases(self._engine, list(prompts)[:num_running], max_tokens)

    def info(self) -> dict[str, object]:
        """What runs: the engine's own description."""
        info = self._engine.info
        return {name: getattr(info, name) for name in info.__struct_fields__}

    def close(self) -> None:
        self._engine.close()

    async def _run(self, workload: Workload, replay: Run | None) -> Run:
        params = SamplingParams(temperature=0.0, max_tokens=workload.max_tokens, ignore_eos=True)
        if replay is not None:
            return await self._rounds(prompts_of(replay), workload, params)
        if workload.conversations:
            return await self._chat(workload.conversations, params)
        prompts = [self._engine.tokenizer.encode(prompt) for prompt in workload.prompts]
        return await self._rounds([prompts], workload, params)

    async def _rounds(
        self, rounds: Sequence[Sequence[list[int]]], workload: Workload, params: SamplingParams
    ) -> Run:
        meter = Meter()
        records = []
        for turn, prompts in enumerate(rounds):
            concurrency = len(prompts) if workload.conversations else workload.concurrency
            records.append(await self._pool(prompts, concurrency, params, turn))
        return meter.stop(records)

    async def _chat(self, conversations: Sequence[Sequence[str]], params: SamplingParams) -> Run:
        meter = Meter()
        records = []
        histories: list[list[dict[str, str]]] = [[] for _ in conversations]
        for turn in range(len(conversations[0])):
            for history, texts in zip(histories, conversations, strict=True):
                history.append({"role": "user", "content": texts[turn]})
            prompts = [encode_chat(self._engine.tokenizer, history) for history in histories]
            answers = await self._pool(prompts, len(prompts), params, turn)
            for history, answer in zip(histories, answers, strict=True):
                text = self._engine.tokenizer.decode(answer.output_token_ids)
                history.append({"role": "assistant", "content": text})
            records.append(answers)
        return meter.stop(records)

    async def _pool(
        self, prompts: Sequence[list[int]], concurrency: int, params: SamplingParams, turn: int
    ) -> list[CallRecord]:
        """``concurrency`` calls at a time: the next one is sent when one has ended."""
        results: dict[int, CallRecord] = {}
        waiting = iter(enumerate(prompts))

        async def work() -> None:
            for index, prompt in waiting:
                results[index] = await self._call(prompt, params, turn)

        await asyncio.gather(*(work() for _ in range(concurrency)))
        return [results[index] for index in range(len(prompts))]

    async def _call(self, prompt: list[int], params: SamplingParams, turn: int) -> CallRecord:
        sent = time.perf_counter()
        times: list[float] = []
        tokens: list[int] = []
        cached = 0
        async for increment in self._engine.astream(prompt, params):
            if increment.token_ids:
                times.append(time.perf_counter())
                tokens += increment.token_ids
            if increment.stats is not None:
                cached = increment.stats.num_cached_tokens
        return CallRecord(prompt, tokens, cached, sent, times[0], times[-1], turn)
