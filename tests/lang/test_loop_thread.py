"""Event loops on threads: outcomes, interruption, closing, and processes that fork."""

import _thread
import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import pytest

from ramet.lang import ProgramStructureError, loop_thread
from ramet.lang.loop_thread import (
    Args,
    LoopThread,
    bodies_loop,
    branches_loop,
    looking_time,
    outcome_of,
    refuse_to_block_branches,
)


def test_run_gives_results_and_errors_in_the_callers_context() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    thread = LoopThread("test")

    async def main(fails: bool) -> tuple[int, bool]:
        if fails:
            raise ValueError("mine")
        return variable.get(), thread.is_current()

    variable.set(3)
    assert thread.run(main(False)) == (3, True)
    with pytest.raises(ValueError, match="mine"):
        thread.run(main(True))
    thread.close()
    thread.close()
    assert thread.loop.is_closed()


def test_cancelling_waits_for_the_end() -> None:
    thread = LoopThread("test")
    ended: list[str] = []
    running = threading.Event()

    async def main() -> None:
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append("cleaned up")

    started = thread.start(main())
    assert running.wait(60)
    started.cancel()
    started.cancel()
    assert ended == ["cleaned up"]
    with pytest.raises(CancelledError):
        started.outcome.result()
    thread.close()


def test_closing_cancels_what_runs() -> None:
    thread = LoopThread("test")
    running, ended = threading.Event(), threading.Event()

    async def main() -> None:
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    thread.start(main())
    assert running.wait(60)
    thread.close()
    assert ended.is_set()


def test_waiting_for_its_own_loop_is_refused() -> None:
    async def outer() -> None:
        bodies_loop().run(asyncio.sleep(0))

    with pytest.raises(ProgramStructureError, match="arun"):
        bodies_loop().run(outer())

    async def blocks() -> None:
        refuse_to_block_branches()

    with pytest.raises(ProgramStructureError, match="a backend's callback"):
        branches_loop().run(blocks())
    refuse_to_block_branches()


def test_there_are_two_loops_in_a_process() -> None:
    assert branches_loop() is branches_loop()
    assert bodies_loop() is bodies_loop()
    assert bodies_loop() is not branches_loop()
    assert branches_loop().run(_process_id()) == os.getpid()


async def _process_id() -> int:
    return os.getpid()


def test_closing_ends_what_a_task_begins_when_it_ends() -> None:
    thread = LoopThread("closing")
    ended: list[str] = []
    begun = threading.Event()
    tasks: list[asyncio.Task[None]] = []

    async def wait(name: str) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(name)
            if name == "first":
                tasks.append(asyncio.get_running_loop().create_task(wait("second")))
                await asyncio.sleep(0)

    thread.start(wait("first"))
    assert begun.wait(60)
    thread.close()
    assert ended == ["first", "second"]
    assert thread.loop.is_closed()


def test_those_who_use_the_loop_leave_before_it_closes() -> None:
    thread = LoopThread("used")
    leaving, entered = threading.Event(), threading.Event()
    said: list[object] = []

    def use() -> None:
        with thread.used(leaving.set):
            entered.set()
            assert leaving.wait(60)
            said.append(thread.call(said.append, "on the loop"))

    user = threading.Thread(target=use)
    user.start()
    assert entered.wait(60)
    thread.close()
    user.join(60)
    assert said in ([True, "on the loop"], ["on the loop", True])


def test_closing_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "LEAVING_TIME", 0.01)
    thread = LoopThread("used")
    with thread.used(lambda: None):
        thread.close()
    assert thread.loop.is_closed()


def test_nothing_is_called_on_a_closed_loop() -> None:
    thread = LoopThread("closed")
    thread.close()
    called: list[int] = []
    assert not thread.call(called.append, 1)
    started = thread.start(asyncio.sleep(0))
    started.cancel()
    with pytest.raises(CancelledError):
        started.outcome.result(timeout=60)
    assert called == []


@pytest.mark.parametrize("runs_already", [False, True])
def test_an_interruption_while_it_is_started_leaves_nothing_running(runs_already: bool) -> None:
    class InterruptedThread(LoopThread):
        """Ctrl-C comes as a coroutine is handed over, once or just before."""

        def call(self, callback: Callable[[*Args], object], *args: *Args) -> bool:
            if getattr(callback, "__name__", "") != "_begin":
                return super().call(callback, *args)
            if runs_already:
                super().call(callback, *args)
                assert running.wait(60)
            raise KeyboardInterrupt

    thread = InterruptedThread("test")
    running = threading.Event()
    ended: list[str] = []

    async def main() -> None:
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        thread.run(main())
    assert ended == (["cleaned up"] if runs_already else [])
    thread.close()


def test_an_interrupt_that_wakes_nobody_is_heard() -> None:
    """As of a signal that comes in the moment before the main thread blocks."""
    thread = LoopThread("interrupted")
    ended: list[str] = []

    async def sleep() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("ended")

    threading.Timer(0.05, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        thread.run(sleep())
    assert ended == ["ended"]
    thread.close()


def test_an_outcome_is_waited_for_on_any_thread() -> None:
    future: Future[int] = Future()
    threading.Timer(0.05, future.set_result, [3]).start()
    assert outcome_of(future) == 3
    assert looking_time() is not None
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(looking_time).result() is None
