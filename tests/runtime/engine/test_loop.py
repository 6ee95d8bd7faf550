import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from ramet.runtime.engine.loop import EngineLoop
from ramet.runtime.engine.sinks import Failure, ThreadSink
from ramet.runtime.protocol import (
    EngineDeadError,
    FinishReason,
    InvalidRequestError,
    RequestFailedError,
    TextOutput,
)
from tests.runtime.engine.fake_core import INFO, CountingCore, request


@pytest.fixture
def core() -> CountingCore:
    return CountingCore()


@pytest.fixture
def loop(core: CountingCore) -> Iterator[EngineLoop]:
    loop = EngineLoop(core, INFO)
    yield loop
    core.gate.set()
    loop.close()


def drain(sink: ThreadSink, count: int = 1) -> list[TextOutput]:
    """Everything up to the end of ``count`` requests."""
    outputs: list[TextOutput] = []
    while sum(item.finish_reason is not None for item in outputs) < count:
        delivery = sink.get()
        assert not isinstance(delivery, Failure), delivery
        outputs += delivery
    return outputs


def test_a_submission_runs_to_its_end(loop: EngineLoop) -> None:
    sink = ThreadSink()
    loop.submit([request("a"), request("b", 2)], sink)
    outputs = drain(sink, 2)
    assert "".join(item.text for item in outputs if item.request_id == "a") == "0 1 2 "
    assert [item.token_ids for item in outputs if item.request_id == "b"] == [[0], [1]]


def test_a_batch_with_a_refused_request_leaves_nothing_running(loop: EngineLoop, core: CountingCore) -> None:
    sink = ThreadSink()
    loop.submit([request("a"), request("b", first=13), request("c")], sink)
    failure = sink.get()
    assert isinstance(failure, Failure)
    assert failure.request_id == "b"
    assert isinstance(failure.error, InvalidRequestError)
    assert loop.stats().running_requests == 0
    assert core.aborted == ["a"]


def test_an_error_that_nobody_foresaw_fails_its_submission_only(
    loop: EngineLoop, core: CountingCore, caplog: pytest.LogCaptureFixture
) -> None:
    core.add_failure = OverflowError("the grammar is too deep")
    sink = ThreadSink()
    loop.submit([request("a")], sink)
    failure = sink.get()
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, RequestFailedError)
    assert "OverflowError: the grammar is too deep" in str(failure.error)
    assert "could not be taken in" in caplog.text
    core.add_failure = None
    loop.submit([request("a")], sink)
    assert drain(sink)[-1].finish_reason is FinishReason.LENGTH


def test_an_id_in_use_is_refused(loop: EngineLoop, core: CountingCore) -> None:
    core.gate.clear()
    first, second = ThreadSink(), ThreadSink()
    loop.submit([request("a")], first)
    loop.submit([request("a")], second)
    core.gate.set()
    failure = second.get()
    assert isinstance(failure, Failure)
    assert "belongs to a running request" in str(failure.error)
    assert drain(first)


def test_abort_ends_with_that_reason_and_unknown_ids_are_ignored(loop: EngineLoop, core: CountingCore) -> None:
    core.gate.clear()
    sink = ThreadSink()
    loop.submit([request("a", 10**6)], sink)
    loop.abort(["a", "unknown"])
    core.gate.set()
    assert drain(sink)[-1].finish_reason is FinishReason.ABORT
    assert loop.stats().running_requests == 0


def test_requests_of_a_sink_that_nobody_reads_are_aborted(loop: EngineLoop, core: CountingCore) -> None:
    sink = ThreadSink()
    loop.submit([request("a", 10**9), request("b", 10**9)], sink)
    sink.close()
    while loop.stats().running_requests:
        pass
    assert sorted(core.aborted) == ["a", "b"]


def test_a_call_returns_or_raises(loop: EngineLoop) -> None:
    def fail(core: object) -> None:
        raise KeyError("x")

    assert loop.cache_outline("ab").num_nodes == 2
    assert loop.release_session("mine") == 4
    assert loop.flush_cache() == 7
    assert loop.call(lambda core: core.has_work()) is False
    with pytest.raises(KeyError):
        loop.call(fail)
    assert loop.flush_cache() == 7


def test_when_idle_the_accounting_is_checked_once(loop: EngineLoop, core: CountingCore) -> None:
    sink = ThreadSink()
    loop.submit([request("a")], sink)
    drain(sink)
    assert core.checked.wait(60)
    assert loop.flush_cache() == 7
    assert core.num_checks == 1


def test_a_failing_core_ends_everyone_who_waits_with_the_cause(core: CountingCore) -> None:
    loop = EngineLoop(core, INFO)
    core.gate.clear()
    running, queued = ThreadSink(), ThreadSink()
    loop.submit([request("a", 10**9)], running)
    answers: list[BaseException] = []

    def wait_for_stats() -> None:
        try:
            loop.stats()
        except EngineDeadError as error:
            answers.append(error)

    core.failure = ZeroDivisionError("cause")
    loop.submit([request("b")], queued)
    waiter = threading.Thread(target=wait_for_stats)
    waiter.start()
    core.gate.set()
    waiter.join()
    for sink in (running, queued):
        delivery = sink.get()
        while not isinstance(delivery, Failure):
            delivery = sink.get()
        assert isinstance(delivery.error, EngineDeadError)
        assert delivery.request_id is None
        assert str(delivery.error) == "the engine failed: ZeroDivisionError: cause"
        assert isinstance(delivery.error.__cause__, ZeroDivisionError)
    with pytest.raises(EngineDeadError, match="ZeroDivisionError: cause"):
        loop.submit([request("c")], ThreadSink())
    with pytest.raises(EngineDeadError):
        loop.stats()
    loop.abort(["a"])
    loop.close()


def test_closing_ends_what_runs_and_refuses_what_comes_later(core: CountingCore) -> None:
    loop = EngineLoop(core, INFO)
    sink = ThreadSink()
    loop.submit([request("a", 10**9)], sink)
    loop.close()
    loop.close()
    delivery = sink.get()
    while not isinstance(delivery, Failure):
        delivery = sink.get()
    assert str(delivery.error) == "the engine was closed; create a new one"
    with pytest.raises(EngineDeadError, match="was closed"):
        loop.submit([request("b")], ThreadSink())


def test_a_core_that_fails_to_close_keeps_nobody_waiting(core: CountingCore) -> None:
    loop = EngineLoop(core, INFO)
    sink = ThreadSink()
    core.gate.clear()
    loop.submit([request("a", 10**9)], sink)
    core.stepping.wait(60)
    core.failure = core.close_failure = ZeroDivisionError("cause")
    core.gate.set()
    delivery = sink.get()
    while not isinstance(delivery, Failure):
        delivery = sink.get()
    assert str(delivery.error) == "the engine failed: ZeroDivisionError: cause"
    loop.close()


def test_a_core_that_cannot_begin_fails_what_is_sent() -> None:
    class Deaf(CountingCore):
        def hear(self, _listener: object) -> None:
            raise OSError("no ears")

    loop = EngineLoop(Deaf(), INFO)
    sink = ThreadSink()
    with contextlib.suppress(EngineDeadError):
        loop.submit([request("a")], sink)
        delivery = sink.get()
        assert isinstance(delivery, Failure)
        raise delivery.error
    with pytest.raises(EngineDeadError, match="the engine failed: OSError: no ears"):
        loop.submit([request("b")], ThreadSink())
    loop.close()


def test_a_closed_loop_keeps_nothing_of_the_core() -> None:
    core = CountingCore()
    gone = weakref.ref(core)
    loop = EngineLoop(core, INFO)
    loop.close()
    del core
    gc.collect()
    assert gone() is None


def test_many_threads_submit_and_abort_at_once(loop: EngineLoop) -> None:
    def work(name: int) -> None:
        for turn in range(50):
            sink = ThreadSink()
            key = f"{name}-{turn}"
            loop.submit([request(key, 5 if turn % 2 else 10**9)], sink)
            if turn % 2 == 0:
                loop.abort([key])
            reason = drain(sink)[-1].finish_reason
            assert reason is (FinishReason.LENGTH if turn % 2 else FinishReason.ABORT)
            done.append(key)

    done: list[str] = []
    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 400
    assert loop.stats().running_requests == 0


def test_what_is_sent_with_or_behind_the_close_is_answered(core: CountingCore) -> None:
    core.gate.clear()
    loop = EngineLoop(core, INFO)
    first, second = ThreadSink(), ThreadSink()
    loop.submit([request("a")], first)
    # The step holds the loop up, so it takes all of these at once.
    assert core.stepping.wait(60)
    closer = threading.Thread(target=loop.close)
    closer.start()
    while loop._inbox.empty():
        closer.join(0.001)
    loop.submit([request("b")], second)
    late = loop.post(lambda core: core.stats())
    core.gate.set()
    closer.join()
    delivery = second.get()
    assert isinstance(delivery, Failure)
    assert isinstance(delivery.error, EngineDeadError)
    with pytest.raises(EngineDeadError, match="closed"):
        late.result(10)
