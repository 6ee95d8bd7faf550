"""JobThreads: a few threads for work that can take long, or never return.

Python cannot end a thread. A job that is past its time is given up: its thread does not count any more, and
another takes its place, up to a bound.
"""

import contextlib
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_STUCK = 8
"""Threads that may be lost to jobs that were given up. Beyond it they are not replaced any more."""


class Job(Generic[T]):
    """Work that was handed in. Read by any thread."""

    def __init__(self, work: Callable[[], T], on_done: Callable[[], None] | None = None) -> None:
        self._work: Callable[[], T] | None = work
        self._on_done = on_done
        self._done = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        self.submitted = time.monotonic()
        self.started: float | None = None
        """When a thread took it up, seconds of the monotonic clock; None: it waits for one."""
        self.is_given_up = False

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def seconds_running(self) -> float:
        return 0.0 if self.started is None else time.monotonic() - self.started

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it is done within so long."""
        return self._done.wait(seconds)

    def result(self) -> T:
        """What the work returned or raised. Only once done."""
        assert self._done.is_set()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def run(self) -> None:
        """Do the work, in the thread that calls."""
        work, self._work = self._work, None
        if work is None or self.is_given_up:
            return
        self.started = time.monotonic()
        try:
            self._value = work()
        except BaseException as error:
            self._error = error
        self._done.set()
        if self._on_done is not None:
            self._on_done()


class JobThreads:
    """Daemon threads, started when there is work for them.

    ``num_threads`` 0: every job runs where it is submitted, before ``submit`` returns.
    """

    def __init__(self, name: str, num_threads: int, max_stuck: int = MAX_STUCK) -> None:
        if num_threads < 0:
            raise ValueError(f"num_threads is {num_threads}; it must be at least 0")
        self._name = name
        self._num_threads = num_threads
        self._max_stuck = max_stuck
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Job[object] | None] = queue.SimpleQueue()
        self._num_started = 0
        self.num_stuck = 0
        """Threads that were lost to jobs that were given up."""
        self._closed = False
        # Threads know the queue only, so that they do not keep this object alive.
        self._finalizer = weakref.finalize(self, _end_threads, self._queue, num_threads + max_stuck)

    def submit(self, work: Callable[[], T], on_done: Callable[[], None] | None = None) -> Job[T]:
        """``on_done`` is called when it is done, in the job's thread."""
        job = Job(work, on_done)
        if self._num_threads == 0:
            job.run()
            return job
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the {self._name} threads were closed")
            self._queue.put(job)  # type: ignore[arg-type]
            if self._num_started < self._num_threads:
                self._start()
        return job

    def give_up(self, job: Job[T]) -> None:
        """Nobody waits for the job any more. If it runs, another thread takes the place of its own."""
        with self._lock:
            if job.is_given_up or job.is_done:
                return
            job.is_given_up = True
            if job.started is None:
                return
            self.num_stuck += 1
            logger.warning("a %s thread is stuck: %d so far", self._name, self.num_stuck)
            if self.num_stuck <= self._max_stuck and not self._closed:
                self._start()

    def close(self) -> None:
        """Threads end after what they are at; jobs that have not begun are not done. Does not wait."""
        with self._lock:
            self._closed = True
            with contextlib.suppress(queue.Empty):
                while (waiting := self._queue.get_nowait()) is not None:
                    waiting.is_given_up = True
        self._finalizer()

    def _start(self) -> None:
        self._num_started += 1
        threading.Thread(
            target=_serve, args=(self._queue,), name=f"ramet-{self._name}-{self._num_started}", daemon=True
        ).start()


def _serve(jobs: "queue.SimpleQueue[Job[object] | None]") -> None:
    while (job := jobs.get()) is not None:
        job.run()
        if job.is_given_up and job.started is not None:
            # Another thread has taken this one's place.
            return
        del job


def _end_threads(jobs: "queue.SimpleQueue[Job[object] | None]", count: int) -> None:
    for _ in range(count):
        jobs.put(None)
