"""The engine's process: builds an engine and serves it to the parent over ZeroMQ."""

import gc
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import Any, Protocol

import msgspec
import zmq

from ramet.runtime.engine.child import WorkerOptions
from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.engine.config import EngineConfig
from ramet.runtime.engine.loop import Core, EngineLoop
from ramet.runtime.engine.messages import (
    Abort,
    Call,
    CallName,
    Close,
    Died,
    FromEngine,
    Outputs,
    Ready,
    Refused,
    Result,
    StartFailed,
    Submit,
    ToEngine,
    describe_error,
)
from ramet.runtime.engine.threads import EngineThread
from ramet.runtime.env import bound_openmp_spinning, environment
from ramet.runtime.logs import configure_logging
from ramet.runtime.protocol import EngineDeadError, InvalidRequestError, RametError, TextOutput
from ramet.runtime.tokenizer import TokenizerSpec

PARENT_CHECK_SECONDS = 1.0
SWITCH_SECONDS = 0.0001
GC_THRESHOLDS = (10_000, 10, 10)
"""New objects before the young ones are gone through, and how often that is before older ones are. Planning a
schema makes a million; with the usual (700, 10, 10) it takes twice as long, and all threads stop for 0.2 s."""
FLUSH_MILLISECONDS = 2000
"""How long a last message may take to leave."""


class Built(Protocol):
    """What a builder returns."""

    @property
    def core(self) -> Core: ...

    @property
    def info(self) -> EngineInfo: ...

    @property
    def tokenizer_spec(self) -> TokenizerSpec: ...


def main(options_text: str) -> None:
    """Runs until the parent says Close, or ends. A failed start is reported with its exception's type and
    message.
    """
    bound_openmp_spinning()
    # As SIGTERM: an exception would end the interpreter while the engine's thread is in the middle of a step.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    options = msgspec.json.decode(options_text, type=WorkerOptions)
    # The parent's sign of our life: no process that we start may hold it open after us.
    os.set_inheritable(options.life_fd, False)
    threading.Thread(target=_end_with_parent, args=(options,), name="ramet-parent-watch", daemon=True).start()
    configure_logging("engine", environment().log_level, environment().log_format)
    context = zmq.Context()
    with (
        context,
        _connect(context, zmq.PULL, options.requests_address) as requests,
        _connect(context, zmq.PUSH, options.replies_address) as replies,
    ):
        succeeded = run(options, requests, Replies(replies))
    sys.exit(0 if succeeded else 1)


def run(options: WorkerOptions, requests: "zmq.Socket[bytes]", replies: "Replies") -> bool:
    """Builds the engine and serves it; False: it could not be built."""
    thread = EngineThread()
    try:
        built = thread.call(lambda: load_builder(options.builder)(options.config))
        ready = Ready(built.info, built.tokenizer_spec)
    except Exception as error:
        thread.end()
        replies.send(StartFailed(describe_error(error)))
        return False
    loop = EngineLoop(built.core, built.info, thread)
    del built
    share_interpreter()
    replies.send(ready)
    serve(loop, requests, replies)
    loop.close()
    return True


def share_interpreter() -> None:
    """Keeps what other threads do in Python, such as planning a schema, from holding up the engine's thread.

    Collecting garbage stops all threads, and goes through all that was ever made: with what was loaded, half
    a second. So that is left out from now on, and new objects are gone through less often. A thread that wants
    to go on gets its turn after SWITCH_SECONDS; a step wants it many times.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)


def load_builder(name: str) -> Callable[[EngineConfig], Built]:
    """The function that ``module:function`` names."""
    module, _, function = name.partition(":")
    builder: Callable[[EngineConfig], Built] = getattr(import_module(module), function)
    return builder


class Replies:
    """The way back to the parent, and the one OutputSink of all requests, so that a step's outputs travel
    together.
    """

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._encoder = msgspec.msgpack.Encoder()
        # Used by the engine's thread and by the one that reads; ZeroMQ wants them one after the other.
        self._lock = threading.Lock()

    def send(self, message: FromEngine) -> None:
        frame = self._encoder.encode(message)
        with self._lock:
            self._socket.send(frame)

    def put(self, outputs: list[TextOutput]) -> bool:
        self.send(Outputs(outputs))
        return True

    def fail(self, error: RametError, request_id: str | None = None) -> None:
        record = describe_error(error)
        self.send(Died(record) if request_id is None else Refused(request_id, record))


def serve(loop: EngineLoop, requests: "zmq.Socket[bytes]", replies: Replies) -> None:
    """Hands the parent's messages to the loop until Close; returns too when the loop is dead."""
    decoder = msgspec.msgpack.Decoder(ToEngine)
    while True:
        frame = requests.recv()
        try:
            message: ToEngine = decoder.decode(frame)
        except msgspec.ValidationError as error:
            _refuse_unread(frame, error, replies)
            continue
        try:
            match message:
                case Submit(inputs):
                    loop.submit(inputs, replies)
                case Abort(request_ids):
                    loop.abort(request_ids)
                case Call():
                    _call(loop, message, replies)
                case Close():
                    return
        except EngineDeadError as death:
            replies.fail(death)
            return


class _Named(msgspec.Struct, frozen=True):
    request_id: str


class _UnreadSubmit(msgspec.Struct, frozen=True, tag="Submit"):
    inputs: list[_Named]


def _refuse_unread(frame: bytes, error: msgspec.ValidationError, replies: Replies) -> None:
    """A submission that the parent took and this process does not: its requests are refused, the others go on.

    Raises:
        msgspec.ValidationError: it is no submission at all.
    """
    unread = msgspec.msgpack.decode(frame, type=_UnreadSubmit)
    replies.fail(InvalidRequestError(f"the engine refused the request: {error}"), unread.inputs[0].request_id)


def _call(loop: EngineLoop, call: Call, replies: Replies) -> None:
    def answer(future: "Future[Any]") -> None:
        error = future.exception()
        if error is not None:
            replies.send(Result(call.call_id, error=describe_error(error)))
        else:
            replies.send(Result(call.call_id, msgspec.Raw(msgspec.msgpack.encode(future.result()))))

    functions: dict[CallName, Callable[[Core], Any]] = {
        "stats": lambda core: core.stats(),
        "cache_outline": lambda core: core.cache_outline(call.argument),
        "release_session": lambda core: core.release_session(call.argument),
        "flush_cache": lambda core: core.flush_cache(),
        "check_integrity": lambda core: core.check_integrity(),
        # Whoever asks wants to know that a step has ended.
        "heartbeat": lambda core: None,
    }
    loop.post(functions[call.name]).add_done_callback(answer)


def _end_with_parent(options: WorkerOptions) -> None:
    """Waits for the end of stdin, a pipe that the parent holds and never writes to. A copy of the pipe may have
    leaked into another process, so the parent's process id is looked at too."""
    while os.getppid() == options.parent_pid:
        readable, _, _ = select.select([0], [], [], PARENT_CHECK_SECONDS)
        if readable and os.read(0, 1) == b"":
            break
    shutil.rmtree(options.directory, ignore_errors=True)
    os._exit(1)


def _connect(context: "zmq.Context[zmq.Socket[bytes]]", kind: int, address: str) -> "zmq.Socket[bytes]":
    socket = context.socket(kind)
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.LINGER, FLUSH_MILLISECONDS)
    socket.connect(address)
    return socket
