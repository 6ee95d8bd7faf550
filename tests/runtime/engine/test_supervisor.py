"""Engines that are killed, and engines that die of a request: streams go on, and the culprit alone fails."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.engine import EngineProcess
from ramet.runtime.protocol import (
    EngineDeadError,
    EngineRestartingError,
    InvalidRequestError,
    RequestAbortedError,
    RequestFailedError,
)

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 60.0


@pytest.fixture(autouse=True)
def tests_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def start(builder: str) -> EngineProcess:
    return EngineProcess(
        "fake", builder=f"tests.runtime.engine.builders:{builder}", start_timeout=SECONDS, supervised=True
    )


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    with start("slow") as engine:
        yield engine


def wait_until_back(engine: EngineProcess, old: int) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            if engine.pid != old:
                return
        except EngineRestartingError:
            pass
        time.sleep(0.005)
    raise AssertionError("the engine did not come back")


def expected(num_tokens: int) -> str:
    return "".join(f"{count} " for count in range(num_tokens))


def test_streams_go_on_where_they_stopped(engine: EngineProcess) -> None:
    streams = [engine.stream("x", max_tokens=300 + index, temperature=1) for index in range(3)]
    heads = [next(stream).text for stream in streams]
    for _ in range(2):
        old = engine.pid
        os.kill(old, signal.SIGKILL)
        wait_until_back(engine, old)
        heads = [head + next(stream).text for head, stream in zip(heads, streams, strict=True)]
    for index, (head, stream) in enumerate(zip(heads, streams, strict=True)):
        increments = list(stream)
        assert head + "".join(one.text for one in increments) == expected(300 + index)
        assert increments[-1].stats is not None
    assert engine.generate("y", max_tokens=2).text == "0 1 "
    assert engine.cache_outline("abc").num_nodes == 3
    assert engine.release_session("mine") == 4
    engine.check_integrity()


def test_requests_wait_for_the_new_engine_and_may_be_aborted_meanwhile(
    engine: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that what stands below is asked before the engine is back.
    monkeypatch.setattr("ramet.runtime.engine.supervisor.RESTART_DELAYS", (1.0, 1.0, 5.0))
    running = engine.stream("x", max_tokens=10**6, request_id="mine")
    next(running)
    os.kill(engine.pid, signal.SIGKILL)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            engine.check_alive()
        except EngineRestartingError:
            break
        time.sleep(0.005)
    with pytest.raises(EngineRestartingError, match="try again"):
        engine.stats()
    waiting = engine.stream("z", max_tokens=3)
    engine.abort("mine")
    with pytest.raises(RequestAbortedError):
        for _ in running:
            pass
    assert "".join(one.text for one in waiting) == expected(3)


def test_the_request_that_it_dies_of_fails_alone() -> None:
    with start("poisoned") as engine:

        async def ask(prompt: str) -> Any:
            try:
                return (await engine.agenerate(prompt, max_tokens=300)).text
            except RequestFailedError as error:
                return error

        async def run() -> list[Any]:
            return list(await asyncio.gather(*(ask(prompt) for prompt in ("x", "Bad", "y"))))

        good, bad, other = asyncio.run(asyncio.wait_for(run(), SECONDS))
        assert good == other == expected(300)
        assert isinstance(bad, RequestFailedError)
        assert "the engine died 3 times while it ran this request" in str(bad)
        assert engine.generate("again", max_tokens=2).text == "0 1 "


def test_refusals_pass_and_ids_are_used_once(engine: EngineProcess) -> None:
    with pytest.raises(InvalidRequestError, match="13 is refused"):
        engine.generate([13])
    with engine.stream("x", max_tokens=10**6, request_id="one") as stream:
        next(stream)
        with pytest.raises(InvalidRequestError, match="belongs to a running request"):
            engine.stream("x", request_id="one")


def test_an_engine_that_cannot_be_started_again_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.runtime.engine.supervisor.RESTART_DELAYS", (0.0, 0.01))
    with start("slow") as engine:
        stream = engine.stream("x", max_tokens=10**6)
        next(stream)
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="could not be started again"):
            for _ in stream:
                pass
        with pytest.raises(EngineDeadError, match="could not be started again"):
            engine.generate("x")
        with pytest.raises(EngineDeadError):
            engine.check_alive()


def test_closing_ends_everything(engine: EngineProcess) -> None:
    stream = engine.stream("x", max_tokens=10**6)
    next(stream)
    pid = engine.pid
    engine.close()
    with pytest.raises(EngineDeadError, match="was closed"):
        for _ in stream:
            pass
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(EngineDeadError):
        engine.generate("x")


def test_one_that_hangs_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.runtime.engine.child.TERMINATE_SECONDS", 0.5)
    with EngineProcess(
        "fake", builder="tests.runtime.engine.builders:slow", supervised=True, hang_timeout=4.0
    ) as engine:
        stream = engine.stream("x", max_tokens=600)
        text = next(stream).text
        first = engine.pid
        os.kill(first, signal.SIGSTOP)
        text += "".join(increment.text for increment in stream)
        assert text == expected(600)
        assert engine.pid != first
        engine.check_integrity()


def test_a_stream_may_be_abandoned_in_the_middle_of_anything(engine: EngineProcess) -> None:
    """As by the garbage collector: in a thread that holds the supervisor's lock, while the engine's last word
    on another request waits for it."""
    client: Any = engine._client
    remote = client._client
    streams = [engine.stream("x", max_tokens=2), engine.stream("x", max_tokens=1500)]
    returned = threading.Event()

    def abandon() -> None:
        with client._lock:
            until(lambda: not _is_free(remote._lock))
            streams.pop()
        returned.set()

    threading.Thread(target=abandon, daemon=True).start()
    assert returned.wait(SECONDS)
    assert "".join(one.text for one in streams[0]) == expected(2)
    until(lambda: engine.stats().running_requests == 0)


def test_an_abort_is_of_what_was_there(engine: EngineProcess) -> None:
    client: Any = engine._client
    with client._lock:
        engine.abort("mine")
        client.abort(["mine"])
        stream = engine.stream("x", max_tokens=3, request_id="mine")
    assert "".join(one.text for one in stream) == expected(3)


def _is_free(lock: Any) -> bool:
    """Whether a thread that holds it not could have it now."""
    free: list[bool] = []

    def look() -> None:
        free.append(lock.acquire(blocking=False))
        if free[0]:
            lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return free[0]


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)
