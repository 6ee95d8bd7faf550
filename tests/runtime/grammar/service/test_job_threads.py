"""Work in threads that may never return."""

import gc
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from ramet.runtime.grammar.service import JobThreads

LIMIT = 60.0


def until(condition: Callable[[], bool]) -> None:
    """Wait for it, not for ever."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.002)


def test_jobs_run_elsewhere_and_say_what_came_of_them() -> None:
    threads = JobThreads("test", 2)
    called = threading.Event()
    job = threads.submit(threading.get_ident, called.set)
    assert job.wait(LIMIT)
    assert job.result() != threading.get_ident()
    assert called.wait(LIMIT)
    failing = threads.submit(lambda: 1 // 0)
    assert failing.wait(LIMIT)
    with pytest.raises(ZeroDivisionError):
        failing.result()
    threads.close()


def test_a_job_that_is_done_runs_no_longer() -> None:
    job = JobThreads("test", 0).submit(lambda: None)
    assert job.started is not None
    assert job.ended is not None
    assert job.seconds_running() == job.ended - job.started


def test_without_threads_a_job_runs_where_it_is_submitted() -> None:
    job = JobThreads("test", 0).submit(threading.get_ident)
    assert job.is_done
    assert job.result() == threading.get_ident()


def test_a_job_that_is_given_up_does_not_keep_the_others_waiting() -> None:
    threads = JobThreads("test", 1)
    let_go = threading.Event()
    stuck = threads.submit(lambda: let_go.wait(LIMIT))
    until(lambda: stuck.started is not None)
    waiting = threads.submit(lambda: 5)
    assert not waiting.wait(0.02)
    threads.give_up(stuck)
    assert waiting.wait(LIMIT)
    assert waiting.result() == 5
    assert threads.num_stuck == 1
    let_go.set()
    assert threads.submit(lambda: 6).wait(LIMIT)
    threads.close()


def test_threads_that_are_lost_are_replaced_up_to_a_bound() -> None:
    threads = JobThreads("test", 1, max_stuck=2)
    let_go = threading.Event()
    for count in (1, 2, 3):
        job = threads.submit(lambda: let_go.wait(LIMIT))
        until(lambda job=job: job.started is not None)  # type: ignore[misc]
        threads.give_up(job)
        threads.give_up(job)
        assert threads.num_stuck == count
    assert not threads.submit(lambda: 1).wait(0.05)
    let_go.set()
    threads.close()


def test_a_job_that_was_given_up_before_it_began_is_not_done() -> None:
    threads = JobThreads("test", 1)
    let_go = threading.Event()
    done: list[int] = []
    threads.submit(lambda: let_go.wait(LIMIT))
    waiting = threads.submit(lambda: done.append(1))
    threads.give_up(waiting)
    let_go.set()
    assert threads.submit(lambda: 1).wait(LIMIT)
    assert (done, threads.num_stuck) == ([], 0)
    threads.close()


def test_closing_ends_the_threads_and_refuses_work() -> None:
    threads = JobThreads("closing", 2)
    let_go = threading.Event()
    threads.submit(lambda: let_go.wait(LIMIT))
    jobs = [threads.submit(lambda: let_go.wait(LIMIT)) for _ in range(3)]
    threads.close()
    let_go.set()
    until(lambda: not any("ramet-closing" in thread.name for thread in threading.enumerate()))
    assert not jobs[-1].is_done
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit(lambda: 1)


def test_threads_end_with_their_owner() -> None:
    threads = JobThreads("forgotten", 1)
    assert threads.submit(lambda: 1).wait(LIMIT)
    gone = weakref.ref(threads)
    del threads
    gc.collect()
    assert gone() is None
    until(lambda: not any("ramet-forgotten" in thread.name for thread in threading.enumerate()))


def test_the_number_of_threads_is_checked() -> None:
    with pytest.raises(ValueError, match="num_threads is -1"):
        JobThreads("test", -1)
