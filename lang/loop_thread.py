"""The two event loops that programs run on, each on one background thread, however many branches there are.

One runs the branches, that is the calls to the backend. The other runs what users wrote as ``async def`` when
they call it from synchronous code, so that a slow line of theirs holds up no branch.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, Protocol, TypeVar, TypeVarTuple

from ramet.lang.errors import ProgramStructureError

T = TypeVar("T")
Args = TypeVarTuple("Args")

LEAVING_TIME = 1.0
"""Seconds that closing waits for those who use a loop from other threads."""


LOOKING_TIME = 0.5
"""Seconds after which the main thread looks whether Ctrl-C came. Python tells it at once, but for a signal that
comes in the moment before it blocks, of which it would hear when it is woken."""


class Calls(Protocol):
    """What branches need of the event loop that they run on."""

    def call(self, callback: Callable[[*Args], object], *args: *Args) -> bool:
        """See LoopThread."""
        ...


class RunningLoop:
    """The event loop that runs where this is made: a server's, for the programs of its clients."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def call(self, callback: Callable[[*Args], object], *args: *Args) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            return False
        return True


class LoopThread:
    """An event loop on a daemon thread of its own, until ``close`` or the interpreter's exit."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._users: list[Callable[[], None]] = []
        self._users_changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def call(self, callback: Callable[[*Args], object], *args: *Args) -> bool:
        """Calls it on the loop's thread, soon; in the order of the calls here. False: the loop is closed, and
        nothing is called any more: the interpreter exits."""
        try:
            self.loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            if not self.loop.is_closed():
                raise
            return False
        return True

    @contextmanager
    def used(self, leave: Callable[[], None]) -> Iterator[None]:
        """While the block runs, on whatever thread, ``close`` begins with calling ``leave``, and waits for the
        block's end, but not for ever."""
        with self._users_changed:
            self._users.append(leave)
        try:
            yield
        finally:
            with self._users_changed:
                self._users.remove(leave)
                self._users_changed.notify_all()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs it to its end, in this thread's context. Ctrl-C cancels it, waits for its end, and is raised."""
        if self.is_current():
            coroutine.close()
            raise ProgramStructureError(
                "an async program must not wait for another program's run(); write `await program.arun(...)`"
            )
        started = Started(self, coroutine)
        try:
            started.start()
            return outcome_of(started.outcome)
        except BaseException:
            started.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "Started[T]":
        """Runs it in this thread's context, without waiting."""
        started = Started(self, coroutine)
        started.start()
        return started

    def close(self) -> None:
        """Cancels what runs and ends the thread. Closing twice is allowed."""
        if self.loop.is_closed() or self.is_current():
            return
        with self._users_changed:
            users = list(self._users)
        for leave in users:
            leave()
        with self._users_changed:
            self._users_changed.wait_for(lambda: not self._users, LEAVING_TIME)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5.0)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            # What was submitted just now becomes a task only here, and one that ends may begin another.
            self.loop.run_until_complete(asyncio.sleep(0))
            while tasks := asyncio.all_tasks(self.loop):
                for task in tasks:
                    task.cancel()
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()


class Started(Generic[T]):
    """A coroutine that runs on a LoopThread.

    Make it, then ``start`` it where it is cancelled too if Ctrl-C comes: it may run before ``start`` returns.
    """

    def __init__(self, thread: LoopThread, coroutine: Coroutine[Any, Any, T]) -> None:
        self.outcome: Future[T] = Future()
        self._thread = thread
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        """In this thread's context, without waiting."""
        # asyncio copies the context of whoever calls this; the task takes it over.
        if not self._thread.call(self._begin):
            self._never_begin()

    def _begin(self) -> None:
        """On the loop's thread."""
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._end)

    def _never_begin(self) -> None:
        self._coroutine.close()
        self.outcome.set_exception(CancelledError())

    def cancel(self) -> None:
        """Cancels it if it still runs, and waits for its end."""
        if not self.outcome.done() and self._thread.call(self._cancel_task):
            while not wait([self.outcome], looking_time()).done:
                pass

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self.outcome.done():
            # It never came to the loop, where what is called first is first.
            self._never_begin()

    def _end(self, task: "asyncio.Task[T]") -> None:
        if task.cancelled():
            self.outcome.set_exception(CancelledError())
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


def looking_time() -> float | None:
    """How long this thread may block at once; None: it is not the main one, which alone is interrupted."""
    return LOOKING_TIME if threading.current_thread() is threading.main_thread() else None


def outcome_of(future: Future[T]) -> T:
    """As ``future.result()``, and Ctrl-C is heard."""
    while not wait([future], looking_time()).done:
        pass
    return future.result()


def branches_loop() -> LoopThread:
    """This process's loop for branches, started on first use."""
    return _loop_thread("ramet branches", os.getpid())


def bodies_loop() -> LoopThread:
    """This process's loop for programs written as ``async def`` that synchronous code runs."""
    # What is started first is closed last: these programs end their branches when they are cancelled.
    branches_loop()
    return _loop_thread("ramet async programs", os.getpid())


def refuse_to_block_branches() -> None:
    """Raises ProgramStructureError on the thread that runs the branches: to wait there is to wait for ever."""
    if branches_loop().is_current():
        raise ProgramStructureError(
            "a backend's callback waits for a program; do that in a thread of its own, or use arun"
        )


@cache
def _loop_thread(name: str, process_id: int) -> LoopThread:
    """``process_id``: a forked process has none of its parent's threads and needs its own."""
    thread = LoopThread(name)
    atexit.register(thread.close)
    return thread
