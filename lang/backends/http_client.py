"""Requests to a server over HTTP: pooled connections, retries before the first byte, streams one can leave."""

import asyncio
import email.utils
import logging
import random
import ssl
import threading
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import msgspec

from ramet.lang.backends.connection_pools import Pools
from ramet.lang.backends.sse import EventParser, ServerSentEvent
from ramet.lang.errors import GenerationError
from ramet.runtime.protocol import InvalidRequestError

logger = logging.getLogger(__name__)

RETRIED_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
"""529 is Anthropic's "overloaded"."""
CONNECT_TIMEOUT = 10.0
MAX_ERROR_BYTES = 1 << 20
DRAIN_TIMEOUT = 1.0

ReadError = Callable[[int, bytes], Exception]
"""From an answer's status and body to the error that is raised for it."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a request is sent again: it could not be delivered, or was answered with one of RETRIED_STATUSES.
    Never after the first byte of an answer that began well.

    The wait doubles from ``first_delay`` to ``max_delay`` seconds, with up to a quarter less by chance. Where
    the server says how long (Retry-After) that counts, unless it is more than ``max_retry_after``: then its
    error is raised at once.
    """

    max_retries: int = 5
    first_delay: float = 0.5
    max_delay: float = 30.0
    max_retry_after: float = 120.0

    def __post_init__(self) -> None:
        for name in ("max_retries", "first_delay", "max_delay", "max_retry_after"):
            if getattr(self, name) < 0:
                raise InvalidRequestError(
                    f"{name} is {getattr(self, name)!r}; it must be at least 0", field=name
                )

    def delay(self, attempt: int, headers: Mapping[str, str]) -> float | None:
        """Seconds to wait after the attempt (from 0 on); None: do not try again."""
        if attempt >= self.max_retries or headers.get("x-should-retry") == "false":
            return None
        told = retry_after(headers, time.time())
        if told is not None:
            return told if told <= self.max_retry_after else None
        delay = min(self.max_delay, self.first_delay * 2.0**attempt)
        return delay * random.uniform(0.75, 1.0)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the server asks to wait (RFC 9110, 10.2.3; ``retry-after-ms`` is OpenAI's); None: it does
    not say. ``now``: Unix time."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit)
        except (KeyError, ValueError):
            continue
    try:
        return max(0.0, email.utils.parsedate_to_datetime(headers["retry-after"]).timestamp() - now)
    except (KeyError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Connection:
    """How a server is talked to.

    timeout: seconds without a byte after which a request has failed.
    max_connections: requests that run at once; others wait for their turn here.
    headers: sent with every request, besides the backend's own.
    """

    timeout: float = 600.0
    retries: RetryPolicy = RetryPolicy()
    max_connections: int = 256
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise InvalidRequestError(
                f"timeout is {self.timeout!r}; it must be above 0 seconds", field="timeout"
            )
        if self.max_connections < 1:
            raise InvalidRequestError(
                f"max_connections is {self.max_connections!r}; it must be at least 1", field="max_connections"
            )


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go, and how errors call it. base_url: what the paths of requests are appended to."""

    name: str
    base_url: str
    headers: Mapping[str, str] = field(repr=False)
    connection: Connection = Connection()

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise InvalidRequestError(
                f"base_url is {self.base_url!r}; it must begin with http:// or https://", field="base_url"
            )

    @property
    def all_headers(self) -> dict[str, str]:
        return {**self.headers, **self.connection.headers}


class HttpClient:
    """Sends JSON to one server. Usable from any event loop: each has a pool of connections of its own.

    Every method raises what ``read_error`` makes of an answer of status 300 or more, and GenerationError where
    there was none: the server cannot be reached, breaks off, or says nothing for too long.
    """

    def __init__(self, server: Server, read_error: ReadError) -> None:
        self.server = server
        self._read_error = read_error
        self._pools: _PoolsOfLoops = weakref.WeakKeyDictionary()
        self._tls: ssl.SSLContext | None = None
        """Of all connections; made with the first one, as that takes a while."""
        self._lock = threading.Lock()
        # Who is dropped without being closed leaves no connections open.
        weakref.finalize(self, _close_soon, self._pools)

    async def post(self, path: str, body: object) -> Any:
        """The answer's JSON."""
        return await self._json("POST", path, msgspec.json.encode(body))

    async def get(self, path: str) -> Any:
        """The answer's JSON."""
        return await self._json("GET", path, b"")

    async def _json(self, method: str, path: str, content: bytes) -> Any:
        async with self._answer(method, path, content) as response:
            with self._broken_off():
                data = await response.aread()
        try:
            return msgspec.json.decode(data) if data else None
        except msgspec.DecodeError as error:
            raise GenerationError(
                f"{self.server.name} answered {method} {path} with no JSON: {error}"
            ) from error

    @asynccontextmanager
    async def events(
        self, path: str, body: object, is_last: Callable[[ServerSentEvent], bool]
    ) -> AsyncIterator[AsyncIterator[ServerSentEvent]]:
        """The answer's events, as they come. Leaving the block early closes the connection.

        Nothing is given out behind the event that ``is_last``. Whoever goes on iterating after it leaves the
        connection to the next request.
        """
        async with (
            self._answer("POST", path, msgspec.json.encode(body)) as response,
            aclosing(self._parsed(response, is_last)) as events,
        ):
            yield events

    async def aclose(self) -> None:
        """Closes the connections, on whatever loop they are. Closing twice is allowed."""
        here = asyncio.get_running_loop()
        with self._lock:
            pools_of_loops = list(self._pools.items())
            self._pools.clear()
        for loop, pools in pools_of_loops:
            if loop is here:
                await pools.aclose()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(pools.aclose(), loop))

    async def _parsed(
        self, response: httpx.Response, is_last: Callable[[ServerSentEvent], bool]
    ) -> AsyncGenerator[ServerSentEvent, None]:
        parser = EventParser()
        pieces = response.aiter_bytes()
        with self._broken_off():
            if response.headers.get("content-type", "").startswith("application/json"):
                # Some gateways say what went wrong with a status of 200.
                raise self._read_error(response.status_code, await _head(response))
            async for data in pieces:
                for event in parser.feed(data):
                    yield event
                    if is_last(event):
                        await _drain(pieces)
                        return

    @asynccontextmanager
    async def _answer(self, method: str, path: str, content: bytes) -> AsyncIterator[httpx.Response]:
        """An answer that began well; its body has not been read."""
        pools = self._pools_here()
        attempt = 0
        while True:
            async with pools.turns.taken() as place:
                answered = await self._attempt(pools.client(place), method, path, content, attempt)
                if isinstance(answered, httpx.Response):
                    try:
                        yield answered
                    finally:
                        await answered.aclose()
                    return
            attempt += 1
            await asyncio.sleep(answered)

    async def _attempt(
        self, client: httpx.AsyncClient, method: str, path: str, content: bytes, attempt: int
    ) -> httpx.Response | float:
        """An answer that began well; or the seconds after which to try again."""
        request = client.build_request(method, self.server.base_url + path, content=content)
        try:
            response = await client.send(request, stream=True)
        except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
            raise self._silent() from error
        except httpx.TransportError as error:
            delay = self.server.connection.retries.delay(attempt, {})
            if delay is None:
                raise GenerationError(
                    f"{self.server.name} cannot be reached at {self.server.base_url} ({attempt + 1} attempts): "
                    f"{type(error).__name__}: {error}"
                ) from error
        else:
            if response.status_code < 300:
                return response
            try:
                data = await _head(response)
            finally:
                await response.aclose()
            failure = self._read_error(response.status_code, data)
            delay = None
            if response.status_code in RETRIED_STATUSES and not _is_final(data):
                delay = self.server.connection.retries.delay(attempt, response.headers)
            if delay is None:
                raise failure
        logger.info("%s: attempt %d failed, the next one is in %.1f s", self.server.name, attempt + 1, delay)
        return delay

    def _pools_here(self) -> Pools:
        """Of the running event loop."""
        with self._lock:
            pools = self._pools.get(asyncio.get_running_loop())
            if pools is None:
                if self._tls is None:
                    self._tls = httpx.create_ssl_context()
                pools = Pools(self.server.connection.max_connections, partial(_client, self.server, self._tls))
                self._pools[asyncio.get_running_loop()] = pools
        return pools

    @contextmanager
    def _broken_off(self) -> Iterator[None]:
        """Turns what happens to a connection while an answer is read into GenerationError."""
        try:
            yield
        except httpx.TimeoutException as error:
            raise self._silent() from error
        except httpx.TransportError as error:
            raise GenerationError(
                f"{self.server.name} broke off its answer: {type(error).__name__}: {error}"
            ) from error

    def _silent(self) -> GenerationError:
        timeout = self.server.connection.timeout
        return GenerationError(
            f"{self.server.name} sent nothing for {timeout:g} s; give the backend a longer timeout"
        )


_PoolsOfLoops = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Pools]


def _close_soon(pools_of_loops: _PoolsOfLoops) -> None:
    """On the event loops that still run; with one that does not its connections are gone."""
    for loop, pools in list(pools_of_loops.items()):
        if loop.is_running():
            asyncio.run_coroutine_threadsafe(pools.aclose(), loop)


def _client(server: Server, tls: ssl.SSLContext, limits: httpx.Limits) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        headers={"content-type": "application/json", **server.all_headers},
        # For a connection there is no bound: it waits only for others that are being closed.
        timeout=httpx.Timeout(server.connection.timeout, connect=CONNECT_TIMEOUT, pool=None),
        limits=limits,
        verify=tls,
    )


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    """Reads on to the body's end, which comes at once behind the last event: only then is the connection free
    for another request. A server that does not end it loses the connection, and nothing else."""
    try:
        async with asyncio.timeout(DRAIN_TIMEOUT):
            async for _ in pieces:
                pass
    except (TimeoutError, httpx.TransportError) as error:
        logger.debug("the end of a stream did not come: %r", error)


async def _head(response: httpx.Response) -> bytes:
    """The body, up to MAX_ERROR_BYTES; what came of it where it breaks off."""
    data = b""
    try:
        async for part in response.aiter_bytes():
            data += part
            if len(data) > MAX_ERROR_BYTES:
                break
    except httpx.TransportError:
        return data
    return data


def _is_final(data: bytes) -> bool:
    """Whether the error's code says that waiting does not help."""
    return b'"insufficient_quota"' in data
