"""A small HTTP server on loopback, and what tests make of it: each request is answered as the test's function
says.

It speaks HTTP/1.1 with keep-alive and chunked answers, and lets a test see what no framework shows: which
connection a request came on, and when a client has left.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    content: bytes
    connection: int
    """Counted from 0."""

    @property
    def json(self) -> Any:
        return json.loads(self.content)


@dataclass
class Answer:
    """``parts``: the body, piece by piece. ``broken``: the connection ends after them without an end."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    parts: AsyncIterator[bytes] | None = None
    broken: bool = False


Handler = Callable[[Request], Awaitable[Answer]]


@dataclass
class Loopback:
    url: str
    requests: list[Request]
    left: threading.Event
    """Set once a client has closed its connection before its answer was whole."""
    closed: threading.Event
    """Set once a client has closed its connection between two requests."""


def of_json(document: object, status: int = 200, **headers: str) -> Answer:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, json.dumps(document).encode(), {"content-type": "application/json", **names})


def of_events(*documents: object, done: bool = True) -> Answer:
    """Server-sent events: each document as JSON, texts as they are; and [DONE]."""

    async def parts() -> AsyncIterator[bytes]:
        for document in documents:
            text = document if isinstance(document, str) else f"data: {json.dumps(document)}\n\n"
            yield text.encode()
        if done:
            yield b"data: [DONE]\n\n"

    return Answer(headers={"content-type": "text/event-stream"}, parts=parts())


@contextmanager
def serving(handler: Handler, port: int = 0) -> Iterator[Loopback]:
    """The server, on a thread of its own; what a handler raises is raised here at the end."""
    loop = asyncio.new_event_loop()
    state = _State(handler, port)
    thread = threading.Thread(target=_serve, args=(loop, state), daemon=True)
    thread.start()
    assert state.ready.wait(60)
    try:
        yield Loopback(f"http://127.0.0.1:{state.port}", state.requests, state.left, state.closed)
    finally:
        loop.call_soon_threadsafe(state.stop.set)
        thread.join(60)
    if state.errors:
        raise state.errors[0]


@dataclass
class _State:
    handler: Handler
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    num_connections: int = 0
    ready: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)


def _serve(loop: asyncio.AbstractEventLoop, state: _State) -> None:
    asyncio.set_event_loop(loop)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        state.tasks.add(task)
        number, state.num_connections = state.num_connections, state.num_connections + 1
        try:
            while (request := await _read(reader, number)) is not None:
                state.requests.append(request)
                if not await _answer(await state.handler(request), reader, writer, state):
                    return
            state.closed.set()
        except (ConnectionError, asyncio.IncompleteReadError):
            state.left.set()
        except Exception as error:
            state.errors.append(error)
        finally:
            state.tasks.discard(task)
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", state.port)
        state.port = server.sockets[0].getsockname()[1]
        state.ready.set()
        await state.stop.wait()
        server.close()
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    loop.run_until_complete(main())
    loop.close()


async def _read(reader: asyncio.StreamReader, number: int) -> Request | None:
    line = await reader.readline()
    if not line:
        return None
    method, path, _ = line.decode().split(" ")
    headers: dict[str, str] = {}
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    content = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, content, number)


async def _answer(
    answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: _State
) -> bool:
    """Whether the connection can be used again."""
    headers = dict(answer.headers)
    if answer.parts is None:
        headers["content-length"] = str(len(answer.body) + answer.broken)
    else:
        headers["transfer-encoding"] = "chunked"
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {answer.status} Said\r\n{head}\r\n".encode() + answer.body)
    await writer.drain()
    if answer.parts is not None:
        gone = asyncio.create_task(_until_gone(reader))
        sending = asyncio.create_task(_send(answer.parts, writer))
        await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            state.left.set()
        for task in (gone, sending):
            task.cancel()
        results = await asyncio.gather(gone, sending, return_exceptions=True)
        if isinstance(results[1], Exception):
            raise results[1]
        if not answer.broken and sending.done() and not sending.cancelled():
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    return not answer.broken


async def _send(parts: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
    async for part in parts:
        writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        await writer.drain()


async def _until_gone(reader: asyncio.StreamReader) -> None:
    """A client that sends nothing while it is answered: what ends is the connection."""
    while not reader.at_eof():
        await asyncio.sleep(0.005)
