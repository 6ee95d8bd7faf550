"""JobThreads: a few threads for work that can take long, or never return.

Python cannot end a thread. A job that is past its time is given up: its thread does not count any more, and
another takes its place, up to a bound.
"""

import contextlib
import itertools
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
        self.ended: float | None = None
        self.is_given_up = False

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def seconds_running(self) -> float:
        """For how long it has run, or ran."""
        if self.started is None:
            return 0.0
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    def seconds_since_submitted(self) -> float:
        return time.monotonic() - self.submitted

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
        self.ended = time.monotonic()
        self._done.set()
        if self._on_done is not None:
            self._on_done()


class _Crew:
    """What the threads know: not JobThreads itself, so that they do not keep it alive."""

    def __init__(self, wanted: int, max_stuck: int) -> None:
        self.wanted = wanted
        self.max_stuck = max_stuck
        self.lock = threading.Lock()
        self.jobs: queue.SimpleQueue[Job[object] | None] = queue.SimpleQueue()
        self.num_threads = 0
        """Threads that take jobs."""
        self.num_stuck = 0
        """Threads that are at a job that was given up."""
        self.is_closed = False

    def serve(self) -> None:
        while (job := self.jobs.get()) is not None:
            job.run()
            with self.lock:
                if job.is_given_up and job.started is not None:
                    self.num_stuck -= 1
                    if not self.needs_thread:
                        # Another has taken this one's place.
                        return
                    self.num_threads += 1
            del job

    @property
    def needs_thread(self) -> bool:
        """Under the lock: whether one more thread may take jobs."""
        return (
            not self.is_closed
            and self.num_threads < self.wanted
            and self.num_threads + self.num_stuck < self.wanted + self.max_stuck
        )

    def close(self) -> None:
        with self.lock:
            self.is_closed = True
            with contextlib.suppress(queue.Empty):
                while (waiting := self.jobs.get_nowait()) is not None:
                    waiting.is_given_up = True
            for _ in range(self.num_threads):
                self.jobs.put(None)
            self.num_threads = 0


class JobThreads:
    """Daemon threads, started when there is work for them.

    ``num_threads`` 0: every job runs where it is submitted, before ``submit`` returns.
    """

    def __init__(self, name: str, num_threads: int, max_stuck: int = MAX_STUCK) -> None:
        if num_threads < 0:
            raise ValueError(f"num_threads is {num_threads}; it must be at least 0")
        self._name = name
        self._num_threads = num_threads
        self._crew = _Crew(num_threads, max_stuck)
        self._numbers = itertools.count(1)
        self._finalizer = weakref.finalize(self, self._crew.close)

    @property
    def num_stuck(self) -> int:
        """Threads that are at a job that was given up."""
        return self._crew.num_stuck

    def submit(self, work: Callable[[], T], on_done: Callable[[], None] | None = None) -> Job[T]:
        """``on_done`` is called when it is done, in the job's thread."""
        job = Job(work, on_done)
        if self._num_threads == 0:
            job.run()
            return job
        crew = self._crew
        with crew.lock:
            if crew.is_closed:
                raise RuntimeError(f"the {self._name} threads were closed")
            crew.jobs.put(job)  # type: ignore[arg-type]
            if crew.needs_thread:
                self._start()
        return job

    def give_up(self, job: Job[T]) -> None:
        """The job is not counted on any more. If it runs, another thread takes the place of its own, which ends
        if the job ever does; if it has not begun, it never will."""
        crew = self._crew
        with crew.lock:
            if job.is_given_up or job.is_done:
                return
            job.is_given_up = True
            if job.started is None:
                return
            crew.num_stuck += 1
            crew.num_threads -= 1
            logger.warning("a %s thread is stuck: %d at the moment", self._name, crew.num_stuck)
            if crew.needs_thread:
                self._start()

    def close(self) -> None:
        """Threads end after what they are at; jobs that have not begun are not done. Does not wait."""
        self._finalizer()

    def _start(self) -> None:
        """Under the crew's lock."""
        self._crew.num_threads += 1
        name = f"ramet-{self._name}-{next(self._numbers)}"
        threading.Thread(target=self._crew.serve, name=name, daemon=True).start()
