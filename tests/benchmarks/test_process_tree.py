"""Processes seen from outside: a parent with a child, suspended and gone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.process_tree import MemoryWatch, peak_memory_of, send, tree_cpu_seconds, tree_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

PARENT = """
import subprocess, sys
code = "import time; held = bytearray(64 << 20); print(flush=True); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", code]).wait()
"""
GONE = 2**22 + 1
"""Above the largest number that Linux gives to a process."""


@contextmanager
def family() -> Iterator[tuple[int, int]]:
    """The numbers of a parent and of its child, which has said that it holds 64 MiB."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        pids = tree_of(parent.pid)
        try:
            yield pids[0], pids[1]
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_tree_is_the_process_and_its_descendants() -> None:
    with family() as (parent, child):
        assert parent != child
        assert tree_of(child) == [child]
        assert tree_cpu_seconds(parent) > 0
        assert peak_memory_of(child) > 64 << 20
        watch = MemoryWatch(parent, seconds=0.01)
        assert watch.peak() > peak_memory_of(child) > peak_memory_of(parent) > 0
    watch.close()
    watch.close()
    assert watch.peak() > 64 << 20, "what has ended still counts"


def test_all_of_a_tree_stands_still_and_goes_on() -> None:
    with family() as (parent, child):
        send(parent, signal.SIGSTOP)
        deadline = time.monotonic() + 20
        while {state(parent), state(child)} != {"T"} and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (state(parent), state(child)) == ("T", "T")
        send(parent, signal.SIGCONT)
        while "T" in {state(parent), state(child)} and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "T" not in {state(parent), state(child)}


def test_what_is_gone_has_nothing() -> None:
    assert tree_of(GONE) == []
    assert peak_memory_of(GONE) == 0
    assert tree_cpu_seconds(GONE) == 0
    send(GONE, signal.SIGCONT)
