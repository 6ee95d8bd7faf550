"""The two event loops that programs run on, each on one background thread, however many branches there are.

One runs the branches, that is the calls to the backend. The other runs what users wrote as ``async def`` when
they call it from synchronous code, so that a slow line of theirs holds up no branch.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from functools import cache
from typing import Any, Generic, TypeVar, TypeVarTuple

from ramet.lang.errors import ProgramStructureError

T = TypeVar("T")
Args = TypeVarTuple("Args")


class LoopThread:
    """An event loop on a daemon thread of its own, until ``close`` or the interpreter's exit."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def call(self, callback: Callable[[*Args], object], *args: *Args) -> None:
        """Calls it on the loop's thread, soon; in the order of the calls here."""
        self.loop.call_soon_threadsafe(callback, *args)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs it to its end, in this thread's context. Ctrl-C cancels it, waits for its end, and is raised."""
        if self.is_current():
            coroutine.close()
            raise ProgramStructureError(
                "an async program must not wait for another program's run(); write `await program.arun(...)`"
            )
        started = self.start(coroutine)
        try:
            return started.outcome.result()
        except BaseException:
            started.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "Started[T]":
        """Runs it in this thread's context, without waiting."""
        started: Started[T] = Started(self)
        # asyncio copies the context of whoever calls this; the task takes it over.
        self.call(started.begin, coroutine)
        return started

    def close(self) -> None:
        """Cancels what runs and ends the thread. Closing twice is allowed."""
        if self.loop.is_closed() or self.is_current():
            return
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
    """A coroutine that runs on a LoopThread."""

    def __init__(self, thread: LoopThread) -> None:
        self.outcome: Future[T] = Future()
        self._thread = thread
        self._task: asyncio.Task[T] | None = None

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> None:
        """On the loop's thread."""
        self._task = asyncio.get_running_loop().create_task(coroutine)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        """Cancels it if it still runs, and waits for its end."""
        if not self.outcome.done():
            self._thread.call(self._cancel_task)
            wait([self.outcome])

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: "asyncio.Task[T]") -> None:
        if task.cancelled():
            self.outcome.set_exception(CancelledError())
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


def branches_loop() -> LoopThread:
    """This process's loop for branches, started on first use."""
    return _loop_thread("ramet branches", os.getpid())


def bodies_loop() -> LoopThread:
    """This process's loop for programs written as ``async def`` that synchronous code runs."""
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
