import os
import queue
import threading
from pathlib import Path

import pytest

from ramet.runtime.engine.threads import EngineThread, choose_threads, usable_cores
from ramet.runtime.protocol import ModelLoadError


def test_the_setting_comes_before_the_environment() -> None:
    assert choose_threads(3, 5, 7) == 3
    assert choose_threads(None, 5, 7) == 5


def test_by_itself_it_is_no_more_than_torch_would_take() -> None:
    assert choose_threads(None, None, 1) == 1
    assert choose_threads(None, None, 10**6) == usable_cores()


def test_an_engine_thread_builds_and_then_runs_on_one_thread() -> None:
    thread, ran_on = EngineThread(), queue.SimpleQueue[int]()
    built_on = thread.call(threading.get_ident)
    assert built_on != threading.get_ident()
    thread.end_with(lambda: ran_on.put(threading.get_ident()))
    assert ran_on.get(timeout=60) == built_on
    thread.join(60)


def test_an_engine_thread_hands_on_what_is_raised_and_ends_when_told() -> None:
    def fail() -> None:
        raise ModelLoadError("no such model")

    thread = EngineThread()
    with pytest.raises(ModelLoadError, match="no such model"):
        thread.call(fail)
    assert thread.call(lambda: 3) == 3
    thread.end()
    thread.join(60)
    assert not thread._thread.is_alive()


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max 100000", None), ("100000 100000\n", 1), ("50000 100000", 1), ("150000 100000", 2), ("odd", None)],
)
def test_a_cgroups_quota_counts(text: str, limit: int | None, tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(text)
    cores = len(os.sched_getaffinity(0))
    assert usable_cores(file) == (cores if limit is None else min(cores, limit))
    assert usable_cores(tmp_path / "absent") == cores
