"""Workers answer, pass errors on, and say when they are gone."""

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.workers import Worker, WorkerError


def calculator(*, offset: int) -> dict[str, Callable[..., Any]]:
    if offset < 0:
        raise ValueError("offset is negative")
    return {
        "add": lambda a, b: a + b + offset,
        "fail": lambda: 1 / 0,
        "die": lambda: os._exit(7),
        "sleep": lambda: time.sleep(60),
    }


def test_calls_are_answered_in_another_process_and_errors_do_not_end_it() -> None:
    with Worker("calculator", calculator, offset=1) as worker:
        assert worker.call("add", 2, 3) == 6
        with pytest.raises(WorkerError, match="ZeroDivisionError") as caught:
            worker.call("fail")
        assert "Traceback" in caught.value.details
        with pytest.raises(WorkerError, match="KeyError"):
            worker.call("unknown")
        assert worker.call("add", 0, 0) == 1
        with pytest.raises(WorkerError, match="died with exit code 7"):
            worker.call("die")
        worker.close()


def test_what_takes_too_long_is_stopped() -> None:
    with Worker("calculator", calculator, offset=1) as worker:
        assert worker.call("add", 1, 1, timeout=60.0) == 3
        with pytest.raises(WorkerError, match=r"calculator was stopped after 0 s"):
            worker.call("sleep", timeout=0.1)
        assert not worker.is_alive


def test_a_factory_that_fails_says_why() -> None:
    with pytest.raises(WorkerError, match="offset is negative"):
        Worker("calculator", calculator, offset=-1)
