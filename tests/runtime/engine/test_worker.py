"""The child's side of the connection, with both ends in this process."""

import gc
import sys
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq

from ramet.runtime.engine.loop import EngineLoop
from ramet.runtime.engine.messages import (
    Abort,
    Call,
    Close,
    Died,
    FromEngine,
    Outputs,
    Refused,
    Result,
    Submit,
    ToEngine,
)
from ramet.runtime.engine.worker import SWITCH_SECONDS, Replies, load_builder, serve, share_interpreter
from ramet.runtime.protocol import FinishReason, TextOutput
from tests.runtime.engine import builders
from tests.runtime.engine.fake_core import INFO, CountingCore, request


class Parent:
    """Sends and receives as the parent does."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self.core = CountingCore()
        self._to_child, child_in = (context.socket(kind) for kind in (zmq.PUSH, zmq.PULL))
        self._from_child, child_out = (context.socket(kind) for kind in (zmq.PULL, zmq.PUSH))
        self._from_child.set(zmq.RCVTIMEO, 60_000)
        self._sockets = (self._to_child, child_in, self._from_child, child_out)
        child_in.bind("inproc://requests")
        self._to_child.connect("inproc://requests")
        self._from_child.bind("inproc://replies")
        child_out.connect("inproc://replies")
        self.loop = EngineLoop(self.core, INFO)
        self._thread = threading.Thread(
            target=serve, args=(self.loop, child_in, Replies(child_out)), daemon=True
        )
        self._thread.start()

    def send(self, message: ToEngine | dict[str, Any]) -> None:
        self._to_child.send(msgspec.msgpack.encode(message))

    def receive(self) -> FromEngine:
        message: FromEngine = msgspec.msgpack.decode(self._from_child.recv(), type=FromEngine)
        return message

    def close(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.loop.close()
        for socket in self._sockets:
            socket.close(linger=0)


@pytest.fixture
def parent() -> Iterator[Parent]:
    with zmq.Context() as context:
        parent = Parent(context)
        yield parent
        parent.close()


def test_requests_are_served_until_close(parent: Parent) -> None:
    parent.send(Submit([request("a", 2), request("b", 1)]))
    outputs: list[TextOutput] = []
    while sum(output.finish_reason is not None for output in outputs) < 2:
        message = parent.receive()
        assert isinstance(message, Outputs)
        outputs += message.outputs
    assert [output.token_ids for output in outputs if output.request_id == "a"] == [[0], [1]]
    parent.send(Close())


def test_refusals_calls_and_aborts(parent: Parent) -> None:
    parent.send(Submit([request("a"), request("b", first=13)]))
    refused = parent.receive()
    assert isinstance(refused, Refused)
    assert (refused.request_id, refused.error.kind) == ("b", "InvalidRequestError")
    parent.send(Call(5, "flush_cache"))
    result = parent.receive()
    assert isinstance(result, Result)
    assert (result.call_id, msgspec.msgpack.decode(result.value), result.error) == (5, 7, None)
    parent.core.gate.clear()
    parent.send(Submit([request("c", 10**9)]))
    parent.send(Abort(["c"]))
    parent.core.gate.set()
    message = parent.receive()
    while not (isinstance(message, Outputs) and message.outputs[-1].finish_reason):
        message = parent.receive()
    assert message.outputs[-1].finish_reason is FinishReason.ABORT
    parent.send(Close())


def test_a_call_that_raises_is_answered(parent: Parent) -> None:
    def broken() -> None:
        raise AssertionError("a page was lost")

    parent.core.check_integrity = broken  # type: ignore[method-assign]
    parent.send(Call(1, "check_integrity"))
    result = parent.receive()
    assert isinstance(result, Result)
    assert result.error is not None
    assert (result.error.kind, result.error.message) == ("AssertionError", "a page was lost")
    parent.send(Close())


def test_a_dead_engine_is_reported_and_ends_the_service(parent: Parent) -> None:
    parent.core.failure = ZeroDivisionError("cause")
    parent.send(Submit([request("a")]))
    died = parent.receive()
    assert isinstance(died, Died)
    assert died.error.message == "the engine failed: ZeroDivisionError: cause"
    parent.send(Submit([request("b")]))
    assert isinstance(parent.receive(), Died)


def test_a_builder_is_found_by_its_name() -> None:
    assert load_builder("tests.runtime.engine.builders:counting") is builders.counting
    with pytest.raises(ModuleNotFoundError):
        load_builder("no.such.module:f")


def test_a_submission_that_only_the_parent_accepts_is_refused_and_the_others_go_on(parent: Parent) -> None:
    wrong = msgspec.to_builtins(Submit([request("a"), request("b")]))
    wrong["inputs"][1]["params"]["stop_regex"] = ["("]
    parent.send(wrong)
    refused = parent.receive()
    assert isinstance(refused, Refused)
    assert (refused.request_id, refused.error.kind) == ("a", "InvalidRequestError")
    assert "stop_regex" in refused.error.message
    parent.send(Submit([request("c", 1)]))
    answer = parent.receive()
    assert isinstance(answer, Outputs)
    assert answer.outputs[0].finish_reason is FinishReason.LENGTH
    parent.send(Close())


def test_what_was_loaded_is_no_garbage_collectors_business() -> None:
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    try:
        share_interpreter()
        assert gc.get_freeze_count() > 1_000
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
