"""The engine's own thread, and how many threads its operations get on a CPU."""

import math
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


class EngineThread:
    """A daemon thread that builds an engine and then runs it.

    One thread for both, because OpenMP keeps a pool of threads for every thread that computes. With a second
    pool there are more threads than cores; OpenMP then stops waiting actively, and a step of a small model took
    30 ms instead of 22.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ramet-engine", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the thread; returns or raises what it does."""
        future: Future[T] = Future()

        def task() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._tasks.put(task)
        return future.result()

    def end_with(self, function: Callable[[], None]) -> None:
        """Run ``function`` as the thread's last work."""
        self._tasks.put(function)
        self._tasks.put(None)

    def end(self) -> None:
        self._tasks.put(None)

    def join(self, seconds: float) -> None:
        """Wait for its end, save from the thread itself."""
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task


def choose_threads(configured: int | None, environment: int | None, default: int) -> int:
    """The setting, else the environment's, else ``default`` (torch's own choice) as far as this process
    may use them: threads that have to share a core spin against each other, and everything becomes many times
    slower.
    """
    if configured is not None:
        return configured
    if environment is not None:
        return environment
    return max(1, min(default, usable_cores()))


def usable_cores(cpu_max: Path = _CPU_MAX) -> int:
    """Cores that this process may run on: its affinity, and what its cgroup's quota leaves (``cpu.max``, cgroup
    v2).
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    if not cpu_max.is_file():
        return cores
    quota, _, period = cpu_max.read_text().strip().partition(" ")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return cores
    return max(1, min(cores, math.ceil(int(quota) / int(period))))
