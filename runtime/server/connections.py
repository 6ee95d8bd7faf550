"""BoundedConnection: a client that neither sends nor reads is let go."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

DEFAULT_MAX_CONNECTIONS = 4096
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 24\r\n\r\nToo many are connected.\n"
)
READ = "read"
WRITE = "write"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    head_seconds: float
    """Within which a request's head has to come once the connection is there, or its first bytes are."""
    write_seconds: float
    """Within which a client has to read something of what waits for it."""
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    """Open at once; then those that ask nothing give way."""


class Connections:
    """Those that are open, the one that was silent for longest first. Lives on one event loop.

    Invariant: at most ``limit`` of them, as long as each that is refused is closed.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[BoundedConnection, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: "BoundedConnection") -> bool:
        """Takes it in, in the place of one that asks nothing where there is no other; False: all are busy."""
        if len(self._open) >= self._limit:
            idle = next((one for one in self._open if not one.is_busy), None)
            if idle is None:
                return False
            self.leave(idle)
            idle.abort()
        self._open[connection] = None
        return True

    def spoke(self, connection: "BoundedConnection") -> None:
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def leave(self, connection: "BoundedConnection") -> None:
        """Leaving twice is allowed."""
        self._open.pop(connection, None)


class BoundedConnection(asyncio.Protocol):
    """One connection, around uvicorn's own, which knows HTTP but waits for ever, and for as many as come.

    What is written waits in the kernel's buffer alone, so that whoever answers is held up as soon as that is
    full: a slow reader costs no memory, and one that reads nothing is seen. Bodies are the application's to
    bound, as are requests that were let in.
    """

    def __init__(self, inner: asyncio.Protocol, limits: ConnectionLimits, others: Connections) -> None:
        """``others``: those of the same server."""
        self._inner = inner
        self._limits = limits
        self._others = others
        self._is_refused = False
        self._transport: asyncio.Transport | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._unread = 0
        """Bytes that waited when the write timer was set."""

    @property
    def is_busy(self) -> bool:
        """A request of it is answered."""
        # uvicorn makes one when a request's head is whole.
        cycle: Any = getattr(self._inner, "cycle", None)
        return cycle is not None and not cycle.response_complete

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._others.admit(self):
            self._is_refused = True
            self._transport.write(REFUSAL)
            self._transport.close()
            return
        self._inner.connection_made(transport)
        self._transport.set_write_buffer_limits(high=0)
        self._set(READ, self._limits.head_seconds, self._close)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._others.spoke(self)
        self._inner.data_received(data)
        if self.is_busy:
            self._cancel(READ)
        elif READ not in self._timers:
            self._set(READ, self._limits.head_seconds, self._close)

    def eof_received(self) -> bool | None:
        return None if self._is_refused else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._is_refused:
            return
        self._inner.pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        if self._is_refused:
            return
        self._cancel(WRITE)
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.leave(self)
        self._cancel(READ)
        self._cancel(WRITE)
        if not self._is_refused:
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
    others = Connections(limits.max_connections)

    def connection(**options: Any) -> BoundedConnection:
        return BoundedConnection(make(**options), limits, others)

    return connection
