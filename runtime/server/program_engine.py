"""GatewayEngine: the engine as a program sees it, one call at a time through the gateway."""

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

from ramet.runtime.engine import EngineFace, EngineInfo, EngineStats, Increment, Score
from ramet.runtime.protocol import ProgramTag, RequestFailedError, SamplingParams
from ramet.runtime.server.errors import HttpError
from ramet.runtime.server.gateway import Answers, Gateway, Job
from ramet.runtime.server.tenants import Tenant
from ramet.runtime.tokenizer import Tokenizer


class GatewayEngine:
    """Every call takes its place among the answers of all clients, in its tenant's name space.

    A call that finds no room waits for it, until the program's own deadline ends it. What the gateway refuses
    otherwise is a RequestFailedError.
    """

    def __init__(self, engine: EngineFace, gateway: Gateway, tenant: Tenant) -> None:
        self._engine = engine
        self._gateway = gateway
        self._tenant = tenant

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    def astream(
        self,
        prompts: Sequence[int],
        sampling_params: SamplingParams,
        *,
        tag: ProgramTag,
        priority: int,
        cache_salt: str,
    ) -> "GatewayStream":
        job = Job(
            params=sampling_params,
            prompts=list(prompts),
            tag=tag,
            priority=priority,
            cache_salt=self._tenant.salted(cache_salt),
        )
        return GatewayStream(self._gateway, job)

    async def agenerate(
        self, prompts: Sequence[Sequence[int]], sampling_params: SamplingParams, *, cache_salt: str
    ) -> None:
        """Only waits for the end: what was generated is dropped."""
        for prompt in prompts:
            tag = ProgramTag()
            stream = self.astream(prompt, sampling_params, tag=tag, priority=0, cache_salt=cache_salt)
            async with stream:
                async for _ in stream:
                    pass

    async def ascore(
        self,
        prompt: list[int],
        continuations: Sequence[list[int]],
        *,
        tag: ProgramTag,
        priority: int,
        cache_salt: str,
    ) -> list[Score]:
        try:
            # However many the continuations are, they are one request.
            async with self._gateway.room_in_turn(1):
                with self._gateway.traced_score(tag, len(continuations)):
                    return await self._engine.ascore(
                        prompt,
                        list(continuations),
                        tag=tag,
                        priority=priority,
                        cache_salt=self._tenant.salted(cache_salt),
                    )
        except HttpError as refusal:
            raise RequestFailedError(refusal.detail.message) from refusal

    def flush_cache(self) -> int:
        return self._engine.flush_cache()

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def close(self) -> None:
        """The engine is the server's."""


class GatewayStream:
    """One call's increments: it is let in on entering, and ended on leaving if it still runs."""

    def __init__(self, gateway: Gateway, job: Job) -> None:
        self._gateway = gateway
        self._job = job
        self._answers: Answers | None = None

    async def __aenter__(self) -> Self:
        try:
            self._answers = await self._gateway.open(self._job, waits=True)
        except HttpError as refusal:
            raise RequestFailedError(refusal.detail.message) from refusal
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._answers is not None:
            await self._answers.aclose()

    async def __aiter__(self) -> AsyncIterator[Increment]:
        assert self._answers is not None
        try:
            async for increment in self._answers:
                yield increment
        except HttpError as error:
            raise RequestFailedError(error.detail.message) from error
