"""BoundedConnection: a client that neither sends nor reads is let go."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

READ = "read"
WRITE = "write"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    head_seconds: float
    """Within which a request's head has to come once the connection is there, or its first bytes are."""
    write_seconds: float
    """Within which a client has to read something of what waits for it."""


class BoundedConnection(asyncio.Protocol):
    """One connection, around uvicorn's own, which knows HTTP but waits for ever.

    What is written waits in the kernel's buffer alone, so that whoever answers is held up as soon as that is
    full: a slow reader costs no memory, and one that reads nothing is seen. Bodies are the application's to
    bound, as are requests that were let in.
    """

    def __init__(self, inner: asyncio.Protocol, limits: ConnectionLimits) -> None:
        self._inner = inner
        self._limits = limits
        self._transport: asyncio.Transport | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._unread = 0
        """Bytes that waited when the write timer was set."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)
        self._transport.set_write_buffer_limits(high=0)
        self._set(READ, self._limits.head_seconds, self._close)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)
        # uvicorn makes one when a request's head is whole.
        cycle: Any = getattr(self._inner, "cycle", None)
        if cycle is not None and not cycle.response_complete:
            self._cancel(READ)
        elif READ not in self._timers:
            self._set(READ, self._limits.head_seconds, self._close)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        self._cancel(WRITE)
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel(READ)
        self._cancel(WRITE)
        self._inner.connection_lost(exc)

    def _watch_writing(self) -> None:
        assert self._transport is not None
        self._unread = self._transport.get_write_buffer_size()
        self._set(WRITE, self._limits.write_seconds, self._check_writing)

    def _check_writing(self) -> None:
        assert self._transport is not None
        if self._transport.get_write_buffer_size() < self._unread:
            self._watch_writing()
        else:
            # Not close(), which would wait for the buffer to be read.
            self._transport.abort()

    def _close(self) -> None:
        assert self._transport is not None
        self._transport.close()

    def _set(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        self._cancel(name)
        self._timers[name] = asyncio.get_running_loop().call_later(seconds, act)

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


def bounded(limits: ConnectionLimits) -> Callable[..., BoundedConnection]:
    """What uvicorn is to make of each connection."""
    make: Callable[..., asyncio.Protocol] = AutoHTTPProtocol

    def connection(**options: Any) -> BoundedConnection:
        return BoundedConnection(make(**options), limits)

    return connection
