"""A process and all that it started, seen through /proc: memory, CPU time, and whether it runs. Linux only."""

import contextlib
import os
import signal
import threading
from pathlib import Path

from benchmarks.soak_vitals import cpu_seconds_of, parent_of

_KIB = 1024


def tree_of(pid: int) -> list[int]:
    """The process and its descendants, parents first. Empty where there is no such process any more."""
    children: dict[int, list[int]] = {}
    for other in map(int, filter(str.isdigit, os.listdir("/proc"))):
        parent = parent_of(other)
        if parent is not None:
            children.setdefault(parent, []).append(other)
    if parent_of(pid) is None:
        return []
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += children.get(one, [])
    return found


def peak_memory_of(pid: int) -> int:
    """The most resident bytes that a process ever had, its shared pages included; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="latin-1").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # A process that has ended but was not waited for has no such line.
    return sum(int(line.split()[1]) * _KIB for line in lines if line.startswith("VmHWM:"))


def tree_cpu_seconds(pid: int) -> float:
    """Of the processes that still run, all threads; what those took that have ended is left out."""
    total = 0.0
    for one in tree_of(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += cpu_seconds_of(one)
    return total


def send(pid: int, number: signal.Signals) -> None:
    """To the process and all its descendants, parents first, so that none of them starts another meanwhile."""
    for one in tree_of(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)


class MemoryWatch:
    """The most that a process and its descendants held, looked at every ``seconds`` from a thread of its own.

    Each process counts with its own peak, which the kernel keeps exactly, and pages that several share count
    for each of them: so the figure may be above what the machine had to give, but never below it.
    """

    def __init__(self, pid: int, seconds: float = 0.5) -> None:
        self._pid = pid
        self._seconds = seconds
        self._peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"memory of {pid}", daemon=True)
        self._thread.start()

    def peak(self) -> int:
        """Bytes, up to now."""
        self._peak = max(self._peak, sum(map(peak_memory_of, tree_of(self._pid))))
        return self._peak

    def close(self) -> None:
        """Closing twice is allowed."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(self._seconds):
            self.peak()
