"""The engine behind a ramet server, as LocalBackend takes it: see ``runtime.protocol.wire`` for what is
said."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from ramet.lang.backends.http_client import HttpClient, Server
from ramet.lang.backends.http_errors import answered_error, error_fields
from ramet.lang.backends.sse import ServerSentEvent
from ramet.lang.errors import GenerationError
from ramet.runtime.protocol import (
    FinishReason,
    ProgramTag,
    RequestAbortedError,
    RequestFailedError,
    SamplingParams,
    wire,
)
from ramet.runtime.tokenizer import FastTokenizer, Tokenizer, TokenizerSpec


class _Stats(msgspec.Struct):
    """Of what /stats tells, what every engine has."""

    engine: dict[str, Any]


class HttpEngine:
    """A TokenEngine. Its constructor asks the server for its model and tokenizer, and waits for the answer.

    Raises:
        GenerationError: the server cannot be reached, or is no ramet server.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client = HttpClient(server, self._error)
        self._info = self._decoded(wire.MODEL_INFO_ROUTE, self._ask("GET", wire.MODEL_INFO_ROUTE))
        spec = self._ask("GET", wire.TOKENIZER_ROUTE)
        try:
            self._tokenizer = FastTokenizer(msgspec.msgpack.decode(spec, type=TokenizerSpec))
        except msgspec.DecodeError as error:
            raise self._foreign(wire.TOKENIZER_ROUTE, error) from error

    @property
    def client(self) -> HttpClient:
        """For further routes of the same server."""
        return self._client

    @property
    def info(self) -> wire.ServedModel:
        return self._info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def astream(
        self,
        prompts: Sequence[int],
        sampling_params: SamplingParams,
        *,
        tag: ProgramTag,
        priority: int,
        cache_salt: str,
    ) -> "GenerateStream":
        request = wire.GenerateRequest(
            input=wire.Input(token_ids=list(prompts)),
            params=sampling_params,
            stream=True,
            tag=tag,
            priority=priority,
            cache_salt=cache_salt,
        )
        return GenerateStream(self._client, request)

    async def agenerate(
        self, prompts: Sequence[Sequence[int]], sampling_params: SamplingParams, *, cache_salt: str
    ) -> None:
        """Only waits for the end: what was generated is dropped."""
        requests = [
            wire.GenerateRequest(
                input=wire.Input(token_ids=list(token_ids)), params=sampling_params, cache_salt=cache_salt
            )
            for token_ids in prompts
        ]
        tasks = [asyncio.create_task(self._client.post(wire.GENERATE_ROUTE, request)) for request in requests]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def ascore(
        self,
        prompt: list[int],
        continuations: Sequence[list[int]],
        *,
        tag: ProgramTag,
        priority: int,
        cache_salt: str,
    ) -> "list[RemoteScore]":
        request = wire.ScoreRequest(
            input=wire.Input(token_ids=prompt),
            continuations=list(continuations),
            tag=tag,
            priority=priority,
            cache_salt=cache_salt,
        )
        answer = await self._client.post(wire.SCORE_ROUTE, request)
        try:
            scores = msgspec.convert(answer, wire.ScoreResponse).scores
        except msgspec.ValidationError as error:
            raise self._foreign(wire.SCORE_ROUTE, error) from error
        return [
            RemoteScore([wire.from_finite(logprob) for logprob in one.token_logprobs], one.num_cached_tokens)
            for one in scores
        ]

    def flush_cache(self) -> int:
        answer = self._ask("POST", wire.FLUSH_CACHE_ROUTE)
        return msgspec.json.decode(answer, type=wire.FlushCacheResponse).num_tokens

    def stats(self) -> dict[str, Any]:
        """The counters of the server's engine."""
        answer = self._ask("GET", wire.STATS_ROUTE)
        try:
            return msgspec.json.decode(answer, type=_Stats).engine
        except msgspec.DecodeError as error:
            raise self._foreign(wire.STATS_ROUTE, error) from error

    async def aclose(self) -> None:
        await self._client.aclose()

    def close(self) -> None:
        """The server goes on: it is not the client's."""

    def _ask(self, method: str, route: str) -> bytes:
        """Waits for the answer's body."""
        server = self._server
        try:
            response = httpx.request(
                method,
                server.base_url + route,
                headers=server.all_headers,
                timeout=server.connection.timeout,
            )
        except httpx.TransportError as error:
            raise GenerationError(
                f"{server.name} cannot be reached at {server.base_url}: {type(error).__name__}: {error}"
            ) from error
        if response.status_code >= 300:
            raise self._error(response.status_code, response.content)
        return response.content

    def _error(self, status: int, body: bytes) -> Exception:
        fields = error_fields(body)
        if fields.get("code") in wire.ERROR_CODES:
            return wire.as_error(msgspec.convert(fields, wire.ErrorDetail))
        return answered_error(self._server.name, status, body)

    def _decoded(self, route: str, body: bytes) -> wire.ServedModel:
        try:
            return msgspec.json.decode(body, type=wire.ServedModel)
        except msgspec.DecodeError as error:
            raise self._foreign(route, error) from error

    def _foreign(self, route: str, error: Exception) -> GenerationError:
        return GenerationError(
            f"{self._server.name} does not answer {route} as a ramet server of this version does ({error}); "
            "for other servers use ramet.OpenAI with their base_url"
        )


@dataclass(frozen=True, slots=True)
class RemoteScore:
    """A TokenScore."""

    token_logprobs: list[float]
    num_cached_tokens: int

    @property
    def logprob(self) -> float:
        return sum(self.token_logprobs)


class GenerateStream:
    """A TokenStream: the request is sent on entering, and aborted on leaving if it still runs."""

    def __init__(self, client: HttpClient, request: wire.GenerateRequest) -> None:
        self._client = client
        self._request = request
        self._open = AsyncExitStack()
        self._increments: AsyncIterator[wire.GenerateEvent] | None = None

    async def __aenter__(self) -> Self:
        events = await self._open.enter_async_context(
            self._client.events(wire.GENERATE_ROUTE, self._request, is_end)
        )
        self._increments = await self._open.enter_async_context(aclosing(self._read(events)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    def __aiter__(self) -> AsyncIterator[wire.GenerateEvent]:
        assert self._increments is not None
        return self._increments

    async def _read(self, events: AsyncIterator[ServerSentEvent]) -> AsyncGenerator[wire.GenerateEvent, None]:
        is_whole = False
        async for event in events:
            if is_end(event):
                is_whole = True
                continue
            try:
                increment = wire.decode_event(event.data)
            except msgspec.DecodeError as error:
                raise GenerationError(
                    f"{self._client.server.name} sent an event that is none of a ramet server: {error}"
                ) from error
            if increment.error is not None:
                raise wire.as_error(increment.error)
            if increment.finish_reason is FinishReason.ABORT:
                raise RequestAbortedError("the request was aborted on the server")
            if increment.finish_reason is FinishReason.ERROR:
                raise RequestFailedError("the server failed while it computed this request")
            yield increment
        if not is_whole:
            raise GenerationError(f"{self._client.server.name} broke off its answer")


def is_end(event: ServerSentEvent) -> bool:
    """It is the last one of a stream that is whole."""
    return event.data == wire.STREAM_END
