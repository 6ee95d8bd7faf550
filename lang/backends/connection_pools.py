"""Connections to one server, in pools that are small: httpx looks through all connections of a pool, and those
at rest once more for each of them, whenever a request begins or ends.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx

POOL_SIZE = 8
"""Connections of one pool. A thousand requests on 256 connections took 12.1 s of CPU time in one pool, 3.1 s in
pools of 32, 2.4 s of 16 and 1.8 s of 8."""


class Turns:
    """At most so many at once; the others wait in the order in which they came.

    Ahead of the pools, whose own queues look through all connections for each that waits.
    """

    def __init__(self, size: int) -> None:
        self._free = list(reversed(range(size)))
        """Places; the one that became free last is taken first, since its connection is warm."""
        self._waiting: deque[asyncio.Future[int]] = deque()

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[int]:
        """Which place, from 0 on: nobody else has it meanwhile."""
        place = self._free.pop() if self._free else await self._turn()
        try:
            yield place
        finally:
            self._pass_on(place)

    async def _turn(self) -> int:
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            # Its turn may have come just before it was cancelled.
            if turn.done() and not turn.cancelled():
                self._pass_on(turn.result())
            raise

    def _pass_on(self, place: int) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            # One that was cancelled does not wait any more.
            if not turn.done():
                turn.set_result(place)
                return
        self._free.append(place)


class Pools:
    """The connections of one event loop. Invariant: a pool has no more users than connections."""

    def __init__(self, size: int, make_client: Callable[[httpx.Limits], httpx.AsyncClient]) -> None:
        """``size``: connections in all pools."""
        self.turns = Turns(size)
        self._size = size
        self._make_client = make_client
        self._clients: dict[int, httpx.AsyncClient] = {}

    def client(self, place: int) -> httpx.AsyncClient:
        """Of the pool that the turn's place is in, made when it is first needed."""
        number = place // POOL_SIZE
        if number not in self._clients:
            size = min(POOL_SIZE, self._size - number * POOL_SIZE)
            limits = httpx.Limits(max_connections=size, max_keepalive_connections=size)
            self._clients[number] = self._make_client(limits)
        return self._clients[number]

    async def aclose(self) -> None:
        """Closes the connections. Closing twice is allowed."""
        clients = list(self._clients.values())
        self._clients.clear()
        for client in clients:
            await client.aclose()
