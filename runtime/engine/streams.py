"""Streams of one call's increments: an iterator, and an asynchronous iterator.

Both only wait; what there is to say about increments is IncrementQueue's.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from ramet.runtime.engine.calls import IncrementQueue
from ramet.runtime.engine.results import Increment
from ramet.runtime.engine.sinks import AsyncSink, ThreadSink

Release = Callable[[bool], None]
"""Gives a call back to its client, once; True: it may still run and is to be aborted."""


class TextStream:
    """The increments of a running request. Left early (break, close, garbage collection) it aborts the request.

    Several threads may read one stream: each increment, and an error at the end, goes to one of them.

    Raises (from ``next``, after everything that came before):
        InvalidRequestError: the engine refused the request.
        RequestFailedError, RequestAbortedError, EngineDeadError: it did not end by itself.
    """

    def __init__(self, request_id: str, increments: IncrementQueue, sink: ThreadSink, release: Release) -> None:
        self.request_id = request_id
        self._increments = increments
        self._sink = sink
        self._release: Release | None = release
        # The end comes once: whoever waits for it with others must not be the only one to hear of it.
        self._reading = threading.RLock()

    def __iter__(self) -> "TextStream":
        return self

    def __next__(self) -> Increment:
        if self._release is None:
            raise StopIteration
        increment = self._wait()
        if increment is None:
            self.close()
            raise StopIteration
        return increment

    def _wait(self) -> Increment | None:
        try:
            # In a fork the lock may be held for ever.
            self._sink.home.check()
            with self._reading:
                while (increment := self._increments.pop()) is None and not self._increments.done:
                    self._increments.add(self._sink.get())
                return increment
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Aborts the request if it still runs. Closing twice is allowed."""
        release, self._release = self._release, None
        if release is not None:
            self._sink.close()
            release(self._increments.running)

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class AsyncTextStream:
    """As TextStream, for ``async for``. Cancelling whoever waits for the next increment aborts the request."""

    def __init__(self, request_id: str, increments: IncrementQueue, sink: AsyncSink, release: Release) -> None:
        self.request_id = request_id
        self._increments = increments
        self._sink = sink
        self._release: Release | None = release
        self._reading = asyncio.Lock()

    def __aiter__(self) -> "AsyncTextStream":
        return self

    async def __anext__(self) -> Increment:
        if self._release is None:
            raise StopAsyncIteration
        increment = await self._wait()
        if increment is None:
            self._close()
            raise StopAsyncIteration
        return increment

    async def _wait(self) -> Increment | None:
        try:
            async with self._reading:
                while (increment := self._increments.pop()) is None and not self._increments.done:
                    self._increments.add(await self._sink.get())
                return increment
        except BaseException:
            self._close()
            raise

    async def aclose(self) -> None:
        """Aborts the request if it still runs. Closing twice is allowed."""
        self._close()

    async def __aenter__(self) -> "AsyncTextStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            self._sink.close()
            release(self._increments.running)


@dataclass(frozen=True, slots=True)
class OpenedBatch:
    """A batch that has been submitted."""

    prompt_token_ids: list[list[int]]
    """Of each prompt or conversation, in order."""
    stream: AsyncTextStream
    """An increment's ``index`` is the prompt's place times ``n`` plus the answer's."""
