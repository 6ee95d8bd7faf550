"""What RemoteClient does beneath the face: ids, closing, and a process that goes away."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
import zmq

from ramet.runtime.engine import child, remote
from ramet.runtime.engine.config import EngineConfig
from ramet.runtime.engine.messages import Outputs
from ramet.runtime.engine.remote import RemoteClient
from ramet.runtime.engine.sinks import Failure, ThreadSink
from ramet.runtime.protocol import (
    EngineDeadError,
    FinishReason,
    InvalidRequestError,
    TextOutput,
    UnsupportedModelError,
)
from tests.runtime.engine.fake_core import request

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteClient]:
    monkeypatch.syspath_prepend(str(ROOT))
    client = RemoteClient(EngineConfig(), builder="tests.runtime.engine.builders:slow", start_timeout=60)
    yield client
    client.close()


def outputs_until_end(sink: ThreadSink) -> list[TextOutput]:
    outputs: list[TextOutput] = []
    while not outputs or outputs[-1].finish_reason is None:
        delivery = sink.get()
        assert not isinstance(delivery, Failure), delivery
        outputs += delivery
    return outputs


def test_requests_run_and_end(client: RemoteClient) -> None:
    sink = ThreadSink()
    client.submit([request("a", 3)], sink)
    assert [output.token_ids for output in outputs_until_end(sink)] == [[0], [1], [2]]
    assert client.ready.tokenizer.vocab_size == client.info.vocab_size


def test_what_is_submitted_before_the_process_can_read_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    late = "from tests.runtime.engine.late_worker import main"
    monkeypatch.setattr(
        child, "_BOOTSTRAP", child._BOOTSTRAP.replace("from ramet.runtime.engine.worker import main", late)
    )
    client = RemoteClient(EngineConfig(), builder="tests.runtime.engine.builders:slow", start_timeout=60)
    try:
        sink = ThreadSink()
        other = ThreadSink()
        client.submit([request("a", 2)], sink)
        client.submit([request("b", 1)], other)
        assert [output.token_ids for output in outputs_until_end(sink)] == [[0], [1]]
        assert [output.token_ids for output in outputs_until_end(other)] == [[0]]
        client.check_integrity()
    finally:
        client.close()


def test_an_engine_that_says_more_than_can_be_read_still_hears_what_is_sent(client: RemoteClient) -> None:
    class Flood:
        """There is always one more."""

        num_read = 0

        def recv(self, _flags: int) -> bytes:
            self.num_read += 1
            assert self.num_read < 10**4, "nothing else is looked at"
            return msgspec.msgpack.encode(Outputs([TextOutput(request_id="a")]))

    client._receive(cast("zmq.Socket[bytes]", Flood()), remote.RECEIVED_AT_ONCE)
    sink = ThreadSink()
    client.submit([request("b", 1)], sink)
    assert outputs_until_end(sink)[-1].finish_reason is FinishReason.LENGTH


def test_why_a_process_ended_is_heard_where_that_comes_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    bind = remote._bind

    def bind_late(socket: "zmq.Socket[bytes]", address: str) -> None:
        if socket.type != zmq.PULL:
            return bind(socket, address)
        socket.bind("inproc://late")
        far, near = socket.context.socket(zmq.PULL), socket.context.socket(zmq.PUSH)
        bind(far, address)
        near.connect("inproc://late")
        threading.Thread(target=carry, args=(far, near), daemon=True).start()

    def carry(far: "zmq.Socket[bytes]", near: "zmq.Socket[bytes]") -> None:
        with far, near, contextlib.suppress(zmq.ContextTerminated):
            while True:
                frame = far.recv()
                held.wait(60)
                near.send(frame)

    # The message comes when the process has ended and been waited for.
    held = threading.Event()
    exited = child.EngineChild.exited_by_itself

    def exited_by_itself(self: child.EngineChild) -> bool:
        answer = exited(self)
        held.set()
        return answer

    monkeypatch.setattr(child.EngineChild, "exited_by_itself", exited_by_itself)
    monkeypatch.setattr(remote, "_bind", bind_late)
    monkeypatch.setattr(remote, "LAST_WORDS_MILLISECONDS", 60_000)
    with pytest.raises(UnsupportedModelError, match="NewForCausalLM"):
        RemoteClient(EngineConfig(), builder="tests.runtime.engine.builders:unsupported", start_timeout=60)


def test_an_id_in_use_is_refused_before_it_is_sent(client: RemoteClient) -> None:
    sink = ThreadSink()
    client.submit([request("a", 10**9)], sink)
    with pytest.raises(InvalidRequestError, match="belongs to a running request"):
        client.submit([request("b"), request("a")], ThreadSink())
    client.abort(["a", "unknown"])
    assert outputs_until_end(sink)[-1].finish_reason is FinishReason.ABORT
    client.submit([request("a", 1)], sink)


def test_a_sink_that_nobody_reads_aborts_its_requests(client: RemoteClient) -> None:
    sink = ThreadSink()
    client.submit([request("a", 10**9), request("b", 10**9)], sink)
    sink.close()
    end = time.monotonic() + 60
    while client.stats().running_requests:
        assert time.monotonic() < end, "nobody told the engine"
    assert client.flush_cache() == 7
    client.check_integrity()


def test_a_call_that_waits_when_the_process_dies_gets_the_error(client: RemoteClient) -> None:
    os.kill(client.pid, signal.SIGSTOP)
    sink = ThreadSink()
    client.submit([request("a")], sink)
    os.kill(client.pid, signal.SIGKILL)
    failure = sink.get()
    assert isinstance(failure, Failure)
    assert "exit code -9" in str(failure.error)
    with pytest.raises(EngineDeadError, match="exit code -9"):
        client.stats()
    client.abort(["a"])
