"""One way to answer: increments become chunks; a stream sends each, a whole answer is the chunks folded."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ramet.runtime.engine import Increment
from ramet.runtime.protocol import RametError
from ramet.runtime.protocol.wire import STREAM_END
from ramet.runtime.server.errors import HttpError, error_body, internal_error
from ramet.runtime.server.gateway import Answers, Gateway, Job

logger = logging.getLogger(__name__)

T = TypeVar("T")
Chunk = TypeVar("Chunk")

Translate = Callable[[RametError], HttpError]
"""How a family of routes tells the engine's errors."""

CLIENT_GONE = 499
"""Status for the log: nobody reads it."""


class AnswerWriter(Protocol[Chunk]):
    """A route's form of an answer. One per request; sees the increments of all its answers."""

    def push(self, increment: Increment) -> list[Chunk]:
        """What one increment adds."""
        ...

    def end(self) -> list[Chunk]:
        """What follows after the last one."""
        ...

    def encode(self, chunk: Chunk) -> bytes:
        """The chunk as a stream sends it, on one line."""
        ...

    def fold(self, chunks: Sequence[Chunk]) -> msgspec.Struct | dict[str, Any]:
        """The whole answer, from all chunks and nothing else."""
        ...


class Framing:
    """OpenAI's server-sent events: data alone, ``[DONE]`` at the end, or an ``error`` last where it failed."""

    def frame(self, data: bytes) -> bytes:
        """One chunk, encoded, as an event."""
        return b"data: " + data + b"\n\n"

    def end(self) -> bytes:
        """What a stream that is whole ends with."""
        return self.frame(STREAM_END.encode())

    def error(self, error: HttpError) -> bytes:
        """What a stream that failed ends with."""
        return self.frame(error_body(error))


OPENAI_FRAMING = Framing()


async def answer(
    request: Request,
    gateway: Gateway,
    job: Job,
    make_writer: Callable[[Answers], AnswerWriter[Any]],
    *,
    stream: bool,
    translate: Translate,
    framing: Framing = OPENAI_FRAMING,
) -> Response:
    """Runs the job and answers with it. A client that leaves ends it.

    Raises:
        HttpError: what is wrong, as long as nothing was sent; after that it is a stream's last event.
    """
    try:
        answers = await while_connected(request, gateway.open(job))
        writer = make_writer(answers)
        if stream:
            return EventStream(answers, writer, translate, framing)
        whole = await while_connected(request, _folded(answers, writer))
    except RametError as error:
        raise translate(error) from error
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)
    return Response(msgspec.json.encode(whole), media_type="application/json")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` returns. Cancels it, and raises ClientDisconnect, where the client leaves before."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _folded(answers: Answers, writer: AnswerWriter[Any]) -> msgspec.Struct | dict[str, Any]:
    chunks: list[Any] = []
    try:
        async for increment in answers:
            chunks += writer.push(increment)
    finally:
        await answers.aclose()
    return writer.fold([*chunks, *writer.end()])


class EventStream(StreamingResponse):
    """Server-sent events: a chunk each, and the end that says whether the answer is whole."""

    def __init__(
        self, answers: Answers, writer: AnswerWriter[Any], translate: Translate, framing: Framing
    ) -> None:
        self._answers = answers
        super().__init__(
            _events(answers, writer, translate, framing),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Whatever ended the response, and even if it never began.
            await self._answers.aclose()


async def _events(
    answers: Answers, writer: AnswerWriter[Any], translate: Translate, framing: Framing
) -> AsyncIterator[bytes]:
    try:
        async for increment in answers:
            if chunks := writer.push(increment):
                yield b"".join(framing.frame(writer.encode(chunk)) for chunk in chunks)
        yield b"".join(framing.frame(writer.encode(chunk)) for chunk in writer.end())
    except RametError as error:
        yield framing.error(translate(error))
        return
    except HttpError as error:
        yield framing.error(error)
        return
    except Exception:
        # The process boundary: the client has to be told that this is not the answer's end.
        logger.exception("a stream failed")
        yield framing.error(internal_error())
        return
    yield framing.end()
