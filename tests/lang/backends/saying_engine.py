"""A TokenEngine that says what it is told, one character a token or so, and keeps what it was asked."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from ramet.runtime.engine.client import EngineInfo, EngineStats
from ramet.runtime.engine.results import Increment, Score
from ramet.runtime.protocol import FinishReason, ProgramTag, RequestStats, SamplingParams
from ramet.runtime.tokenizer import Tokenizer


@dataclass
class SayingStream:
    increments: list[Increment]
    gate: threading.Event | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """There is nothing to abort."""

    async def __aiter__(self) -> AsyncIterator[Increment]:
        for _ in range(0 if self.gate is None else 2000):
            assert self.gate is not None
            if self.gate.is_set():
                break
            yield Increment(request_id="0")
            await asyncio.sleep(0.005)
        for increment in self.increments:
            yield increment


@dataclass
class SayingEngine:
    """``answers``: one after the other; each ends as a turn does."""

    tokenizer: Tokenizer
    answers: list[str]
    grammars: tuple[str, ...] = ("choice", "json_schema")
    size: int | None = None
    """Characters of an increment; None: the whole answer is one."""
    gate: threading.Event | None = None
    """Answers begin once it is set."""
    prompts: list[str] = field(default_factory=list)
    prompt_ids: list[list[int]] = field(default_factory=list)
    asked: list[SamplingParams] = field(default_factory=list)

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            model="saying",
            vocab_size=self.tokenizer.vocab_size,
            context_length=4096,
            kv_tokens=4096,
            grammars=self.grammars,
        )

    def astream(
        self,
        prompts: Sequence[int],
        sampling_params: SamplingParams,
        *,
        tag: ProgramTag,
        priority: int,
        cache_salt: str,
    ) -> SayingStream:
        self.prompts.append(self.tokenizer.decode(list(prompts), skip_special_tokens=False))
        self.prompt_ids.append(list(prompts))
        self.asked.append(sampling_params)
        answer = self.answers[len(self.asked) - 1]
        ids = self.tokenizer.encode(answer, at_start=False)
        stats = RequestStats(num_prompt_tokens=len(prompts), num_output_tokens=len(ids) + 1)
        end = next(iter(self.tokenizer.stop_token_ids))
        size = self.size or len(answer) or 1
        parts = [answer[start : start + size] for start in range(0, len(answer), size)] or [""]
        return SayingStream(
            [
                *(Increment(request_id="0", text=part) for part in parts[:-1]),
                Increment(request_id="0", text=parts[-1], token_ids=ids),
                Increment(
                    request_id="0",
                    token_ids=[end],
                    finish_reason=FinishReason.STOP,
                    stop_reason=end,
                    stats=stats,
                ),
            ],
            self.gate,
        )

    async def agenerate(
        self, prompts: Sequence[Sequence[int]], sampling_params: SamplingParams, *, cache_salt: str
    ) -> object:
        return None

    async def ascore(
        self,
        prompt: list[int],
        continuations: Sequence[list[int]],
        *,
        tag: ProgramTag,
        priority: int,
        cache_salt: str,
    ) -> list[Score]:
        raise AssertionError("it only speaks")

    def flush_cache(self) -> int:
        return 0

    def stats(self) -> EngineStats:
        return EngineStats()

    def close(self) -> None:
        """There is nothing to close."""
