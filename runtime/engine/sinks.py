"""Where outputs go: the table of who waits for which request, a queue for threads, a queue for coroutines."""

import asyncio
import queue
from collections.abc import Iterable
from dataclasses import dataclass

from ramet.runtime.engine.client import HomeProcess, OutputSink
from ramet.runtime.protocol import InvalidRequestError, RametError, TextOutput


class SinkTable:
    """Which sink waits for which request. Not thread-safe.

    Invariant: a request is in the table from its submission until its last output, its refusal, or the end of
    its sink.
    """

    def __init__(self) -> None:
        self._sinks: dict[str, OutputSink] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sinks

    def __len__(self) -> int:
        return len(self._sinks)

    def add(self, request_id: str, sink: OutputSink) -> None:
        assert request_id not in self._sinks
        self._sinks[request_id] = sink

    def forget(self, request_id: str) -> None:
        self._sinks.pop(request_id, None)

    def deliver(self, outputs: Iterable[TextOutput]) -> list[str]:
        """Hand each sink its outputs in one call. Returns the requests to abort: those whose sink is gone."""
        batches: dict[int, tuple[OutputSink, list[TextOutput]]] = {}
        for output in outputs:
            sink = self._sinks.get(output.request_id)
            if sink is None:
                continue
            if output.finish_reason is not None:
                del self._sinks[output.request_id]
            batches.setdefault(id(sink), (sink, []))[1].append(output)
        orphans: list[str] = []
        for sink, batch in batches.values():
            if not sink.put(batch):
                orphans += self.remove(sink)
        return orphans

    def refuse(self, error: RametError, request_id: str) -> list[str]:
        """Tell the request's sink, which is done with. Returns the other requests of the submission."""
        sink = self._sinks.get(request_id)
        if sink is None:
            return []
        others = [key for key in self.remove(sink) if key != request_id]
        sink.fail(error, request_id)
        return others

    def remove(self, sink: OutputSink) -> list[str]:
        """Forget a sink. Returns its requests."""
        request_ids = [key for key, value in self._sinks.items() if value is sink]
        for request_id in request_ids:
            del self._sinks[request_id]
        return request_ids

    def fail_all(self, error: RametError) -> None:
        """Tell everyone who waits; the table is empty then."""
        sinks = {id(sink): sink for sink in self._sinks.values()}
        self._sinks.clear()
        for sink in sinks.values():
            sink.fail(error)


@dataclass(frozen=True, slots=True)
class Failure:
    """The whole submission ended: refused because of this one of its requests, or the engine is gone (None)."""

    error: RametError
    request_id: str | None = None


Delivery = list[TextOutput] | Failure


class ThreadSink:
    """An OutputSink that a thread waits on."""

    def __init__(self) -> None:
        self.home = HomeProcess()
        self._queue: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._closed = False

    def put(self, outputs: list[TextOutput]) -> bool:
        self._queue.put(outputs)
        return not self._closed

    def fail(self, error: RametError, request_id: str | None = None) -> None:
        self._queue.put(Failure(error, request_id))

    def get(self) -> Delivery:
        """Waits for the next delivery. Raises EngineDeadError in a fork, where none will come."""
        self.home.check()
        return self._queue.get()

    def close(self) -> None:
        """From now on the engine is told that nobody listens."""
        self._closed = True


class AsyncSink:
    """An OutputSink that a coroutine waits on. Made inside the event loop that will wait.

    Raises InvalidRequestError where none runs.
    """

    def __init__(self) -> None:
        self._loop = _running_loop()
        self._home = HomeProcess()
        self._queue: asyncio.Queue[Delivery] = asyncio.Queue()
        self._closed = False

    def put(self, outputs: list[TextOutput]) -> bool:
        return self._post(outputs) and not self._closed

    def fail(self, error: RametError, request_id: str | None = None) -> None:
        self._post(Failure(error, request_id))

    async def get(self) -> Delivery:
        """Waits for the next delivery. Raises EngineDeadError in a fork, where none will come."""
        self._home.check()
        return await self._queue.get()

    def close(self) -> None:
        """From now on the engine is told that nobody listens."""
        self._closed = True

    def _post(self, delivery: Delivery) -> bool:
        """False where the event loop has been closed: nobody can listen there any more."""
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, delivery)
        except RuntimeError:
            return False
        return True


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidRequestError(
            "no event loop runs here; call astream() and the other async methods inside a coroutine, or use "
            "stream() and generate()"
        ) from None
