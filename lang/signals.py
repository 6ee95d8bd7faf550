"""Waiting for something to become true, for threads and for coroutines of any event loop alike.

What waits several times is written once, as a generator of what it waits for, and is driven either way.
"""

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import TypeVar

from ramet.lang.loop_thread import looking_time, refuse_to_block_branches

T = TypeVar("T")


class Signal:
    """Wakes whoever waits; what changed is the waiter's business.

    Change what the waiters look at first, then ``notify``. A condition is called in its waiter's thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: list[Callable[[], None]] = []

    def notify(self) -> None:
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Blocks this thread until ``condition()``. Interruptible by Ctrl-C in the main thread."""
        while not condition():
            refuse_to_block_branches()
            event = threading.Event()
            if self._enlist(event.set, condition):
                while not event.wait(looking_time()):
                    pass

    async def wait_async(self, condition: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        while not condition():
            future: asyncio.Future[None] = loop.create_future()
            if self._enlist(lambda future=future: _wake(loop, future), condition):  # type: ignore[misc]
                await future

    def _enlist(self, wake: Callable[[], None], condition: Callable[[], bool]) -> bool:
        """False: the condition became true meanwhile. Looked at under the lock, so that no notice is missed."""
        with self._lock:
            if condition():
                return False
            self._waiters.append(wake)
            return True


Steps = Generator[tuple[Signal, Callable[[], bool]], None, T]
"""Yields what to wait for: a signal, and the condition that it tells of."""


def finish(steps: Steps[T]) -> T:
    """Blocks this thread wherever the steps wait."""
    while True:
        try:
            signal, condition = next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        signal.wait(condition)


async def finish_async(steps: Steps[T]) -> T:
    while True:
        try:
            signal, condition = next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await signal.wait_async(condition)


def _wake(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[None]") -> None:
    try:
        loop.call_soon_threadsafe(_resolve, future)
    except RuntimeError:
        # The waiter's loop was closed: nobody waits any more.
        if not loop.is_closed():
            raise


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
