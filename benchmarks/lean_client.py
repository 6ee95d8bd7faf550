"""As LoadClient, on bare connections: a quarter of its CPU time, which on few cores the server would miss.

A connection serves one call. Of HTTP it knows what streams of events need: a status, and a body in chunks or
until the connection ends.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from benchmarks.load_client import ServedCall, ServerClient, Target, event_data, follow

READ_BYTES = 1 << 16


class LeanClient(ServerClient):
    """Over plain HTTP, a connection a call. ``timeout``: seconds after which a call has failed."""

    def __init__(self, target: Target, timeout: float) -> None:
        super().__init__(target)
        self._timeout = timeout

    async def _send(self, url: str, body: dict[str, Any]) -> ServedCall:
        content = msgspec.json.encode(body)
        done = ServedCall(sent=time.perf_counter())
        try:
            async with asyncio.timeout(self._timeout):
                await self._exchange(url, content, done)
        except TimeoutError:
            done.error = f"no answer within {self._timeout:g} s"
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            done.error = f"{type(error).__name__}: {error}"
        return done

    async def _exchange(self, url: str, body: bytes, done: ServedCall) -> None:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        try:
            writer.write(self._head(parts.netloc, parts.path, len(body)) + body)
            await writer.drain()
            status, is_chunked = await _read_head(reader)
            data = _chunks(reader) if is_chunked else _rest(reader)
            if status == 200:
                await follow(event_data(data), done)
            else:
                said = b"".join([part async for part in data]).decode(errors="replace")
                done.error = f"status {status}: {said[:300]}"
        finally:
            writer.close()

    def _head(self, host: str, path: str, length: int) -> bytes:
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: {host}",
            "Content-Type: application/json",
            f"Content-Length: {length}",
            "Connection: close",
        ]
        if self._target.api_key:
            lines.append(f"Authorization: Bearer {self._target.api_key}")
        return "\r\n".join([*lines, "", ""]).encode("ascii")


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """The status, and whether the body comes in chunks. Raises ValueError where it is no HTTP."""
    status = int(b" ".join((await reader.readline()).split()[1:2]))
    is_chunked = False
    while (line := await reader.readline()) not in (b"\r\n", b"\n", b""):
        name, _, value = line.lower().partition(b":")
        is_chunked = is_chunked or (name == b"transfer-encoding" and b"chunked" in value)
    return status, is_chunked


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """RFC 9112, 7.1, without trailers. Raises IncompleteReadError where the connection ends before the body."""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while part := await reader.read(READ_BYTES):
        yield part
