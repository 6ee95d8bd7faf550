"""What is read of a process, and what counts as growth."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.soak_vitals import (
    ENGINE_GROWTH,
    SERVER_GROWTH,
    Vitals,
    cpu_seconds_of,
    engine_of,
    files_of,
    growth,
    memory_of,
    parent_of,
    unrest,
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are read from /proc")

REST = Vitals(
    server_memory=100 << 20,
    server_files=20,
    server_threads=5,
    server_tasks=2,
    server_objects=90_000,
    engine_memory=800 << 20,
    engine_files=14,
    engine_threads=12,
    total_pages=100,
    free_pages=60,
    cached_pages=40,
)


def test_what_rests_does_not_grow() -> None:
    assert growth(REST, REST, SERVER_GROWTH) == []
    assert growth(REST, replace(REST, server_memory=1 << 20), SERVER_GROWTH) == []
    assert REST.lost_pages == 0
    assert replace(REST, cached_pages=39).lost_pages == 1
    assert replace(REST, cached_pages=39).metrics()["lost_pages"] == 1


@pytest.mark.parametrize("limits", [SERVER_GROWTH, ENGINE_GROWTH])
def test_each_thing_that_grows_is_named(limits: dict[str, int]) -> None:
    for name, limit in limits.items():
        before: int = getattr(REST, name)
        assert growth(REST, replace(REST, **{name: before + limit}), limits) == []
        (said,) = growth(REST, replace(REST, **{name: before + limit + 1}), limits)
        assert said.startswith(f"{name} grew from {before:,}")


def stats(**engine: int) -> dict[str, Any]:
    counts = ("running_requests", "waiting_requests", "compiling_requests", "pinned_tokens")
    return {
        "engine": {**dict.fromkeys(counts, 0), **engine},
        "server": {"live_answers": 0, "live_programs": 0, "sessions": 0},
    }


def test_unrest() -> None:
    assert unrest(stats()) == []
    assert unrest(stats(waiting_requests=2, pinned_tokens=5)) == ["waiting_requests: 2", "pinned_tokens: 5"]


def test_processes() -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        assert parent_of(child.pid) == os.getpid()
        assert memory_of(child.pid) > 0
        assert files_of(child.pid) >= 3
        assert 0 <= cpu_seconds_of(child.pid) < 60
        with pytest.raises(ProcessLookupError, match=f"process {child.pid} has no child"):
            engine_of(child.pid)
    assert parent_of(child.pid) is None
    assert memory_of(child.pid) == 0


def test_cpu_seconds_are_those_of_the_process() -> None:
    before, known = cpu_seconds_of(os.getpid()), time.process_time()
    while time.process_time() < known + 0.1:
        pass
    # The kernel counts in hundredths.
    assert cpu_seconds_of(os.getpid()) - before >= 0.05
