"""A way to a server that takes time: a proxy for TCP on loopback that hands on every byte some time later."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def slow_way(port: int, round_trip: float) -> "Iterator[SlowWay]":
    """Leads to ``port`` of this machine. Each byte takes half of ``round_trip`` seconds, in either direction,
    however many are on their way.
    """
    loop = asyncio.new_event_loop()
    way = SlowWay(loop, port, round_trip / 2)
    server = loop.run_until_complete(loop.create_server(lambda: _Near(way), "127.0.0.1", 0))
    way.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, name="slow way", daemon=True)
    thread.start()
    try:
        yield way
    finally:
        loop.call_soon_threadsafe(way.close, server)
        thread.join(60)
        loop.close()


class SlowWay:
    """``port``: where it begins. On its own event loop, but for reading its fields."""

    def __init__(self, loop: asyncio.AbstractEventLoop, there: int, delay: float) -> None:
        self.loop = loop
        self.there = there
        self.delay = delay
        self.port = 0
        self.num_turns = 0
        """How often something went there, at first and behind what had come back on the same connection: the
        round trips that a client has made, one after the other or at once."""
        self.open: set[asyncio.BaseTransport] = set()

    def close(self, server: asyncio.Server) -> None:
        server.close()
        for transport in list(self.open):
            transport.close()
        self.loop.call_later(0.05, self.loop.stop)


class _End(asyncio.Protocol):
    """One end of a connection. What it gets goes on at the other end, later, and so does its end."""

    def __init__(self, way: SlowWay) -> None:
        self.way = way
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self._waiting: list[bytes | None] = []
        """What has arrived before there was a way on."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.way.open.add(transport)
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            self.arrive(data)

    def data_received(self, data: bytes) -> None:
        self.pass_on(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.transport is not None:
            self.way.open.discard(self.transport)
        self.pass_on(None)

    def pass_on(self, data: bytes | None) -> None:
        """None: the end."""
        if self.other is not None:
            self.way.loop.call_later(self.way.delay, self.other.arrive, data)

    def arrive(self, data: bytes | None) -> None:
        if self.transport is None:
            self._waiting.append(data)
        elif data is None:
            self.transport.close()
        elif not self.transport.is_closing():
            self.transport.write(data)


class _Near(_End):
    """The client's end."""

    def __init__(self, way: SlowWay) -> None:
        super().__init__(way)
        self.is_answered = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        far = _End(self.way)
        self.other, far.other = far, self
        connecting = self.way.loop.create_task(
            self.way.loop.create_connection(lambda: far, "127.0.0.1", self.way.there)
        )
        connecting.add_done_callback(self._connected)

    def data_received(self, data: bytes) -> None:
        self.way.num_turns += self.is_answered
        self.is_answered = False
        super().data_received(data)

    def arrive(self, data: bytes | None) -> None:
        self.is_answered = True
        super().arrive(data)

    def _connected(self, connecting: "asyncio.Task[object]") -> None:
        if (connecting.cancelled() or connecting.exception() is not None) and self.transport is not None:
            self.transport.close()
