"""RemoteClient: an EngineClient whose engine is another process, over ZeroMQ. Imports no torch."""

import contextlib
import itertools
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

import msgspec
import zmq

from ramet.runtime.cache import CacheOutline
from ramet.runtime.engine.child import EngineChild
from ramet.runtime.engine.client import EngineInfo, EngineStats, HomeProcess, OutputSink
from ramet.runtime.engine.config import EngineConfig
from ramet.runtime.engine.heartbeat import Heartbeat
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
    revive_error,
    revive_ramet_error,
)
from ramet.runtime.engine.sinks import SinkTable
from ramet.runtime.protocol import EngineDeadError, GenerateInput, InvalidRequestError

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_SECONDS = 20.0
"""More than EngineChild.end takes at most."""
RECEIVED_AT_ONCE = 64
"""Replies that are read before the thread looks again at what there is to send: an engine that says more than
can be read must still hear an abort."""
LAST_WORDS_MILLISECONDS = 500
"""How long after the end of a process that exited by itself its last message may come: the sign of its end
travels by another way."""


class RemoteClient:
    """Starts the process and talks to it through one thread, which alone touches the socket.

    When the process ends, for whatever reason, everyone who waits gets an EngineDeadError with the exit code at
    once, and so does everyone who comes later. ``close`` ends the process in bounded time; the process ends by
    itself if this one dies.

    Raises:
        Exception: what the engine's start raised, of the same type and message.
        EngineDeadError: the process ended or did not answer within ``start_timeout`` seconds.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        builder: str,
        start_timeout: float,
        hang_timeout: float | None = None,
        on_death: Callable[[EngineDeadError], None] | None = None,
    ) -> None:
        """``hang_timeout``: seconds that a step may take; a process that takes longer is ended (see Heartbeat).

        ``on_death``: called once, by this client's own thread and as its last work, when the process has
        ended after it was ready, unless this client was closed."""
        self._on_death = on_death
        self._hang_timeout = hang_timeout
        self._is_closed = False
        self._child = EngineChild(config, builder)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._unsent: deque[bytes] = deque()  # the thread's alone
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        # Held for a write to the pipe, or its end, and nothing else: aborts take no other lock.
        self._wake_lock = threading.RLock()
        self._can_wake = True
        self._home = HomeProcess()
        # Reentrant: the garbage collector may abort an abandoned stream's request while this thread is in here.
        self._lock = threading.RLock()
        self._waiting = SinkTable()
        self._calls: dict[int, Future[bytes]] = {}
        self._call_ids = itertools.count()
        self._death: EngineDeadError | None = None
        self._ready: Future[Ready] = Future()
        self._is_ready = False
        self._thread = threading.Thread(target=self._run, name="ramet-engine-client", daemon=True)
        self._thread.start()
        try:
            self._started = self._ready.result(start_timeout)
        except FutureTimeoutError:
            self.close()
            raise EngineDeadError(
                f"the engine's process was not ready after {start_timeout:g} s; raise start_timeout if the "
                "model takes longer to load"
            ) from None
        except BaseException:
            self.close()
            raise

    @property
    def ready(self) -> Ready:
        """What the engine said when it was ready."""
        return self._started

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def info(self) -> EngineInfo:
        return self._started.info

    def submit(self, inputs: Sequence[GenerateInput], sink: OutputSink) -> None:
        self._home.check()
        message = self._encoder.encode(Submit(list(inputs)))
        with self._lock:
            self._check_alive()
            used = next((item.request_id for item in inputs if item.request_id in self._waiting), None)
            if used is not None:
                raise InvalidRequestError(
                    f"request_id {used!r} belongs to a running request; choose another one", field="request_id"
                )
            for item in inputs:
                self._waiting.add(item.request_id, sink)
            self._post(message)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Takes no lock that anyone holds while calling others: the garbage collector may call it, for a stream
        that was abandoned, in a thread that holds any."""
        if self._home.is_here and request_ids and self._death is None:
            self._post(self._encoder.encode(Abort(list(request_ids))))

    def check_alive(self) -> None:
        self._home.check()
        with self._lock:
            self._check_alive()

    def stats(self) -> EngineStats:
        return self._call("stats", EngineStats)

    def cache_outline(self, salt_prefix: str) -> CacheOutline:
        return self._call("cache_outline", CacheOutline, salt_prefix)

    def release_session(self, session: str) -> int:
        return self._call("release_session", int, session)

    def flush_cache(self) -> int:
        return self._call("flush_cache", int)

    def check_integrity(self) -> None:
        self._call("check_integrity", type(None))

    def close(self) -> None:
        if not self._home.is_here:
            return
        with self._lock:
            self._is_closed = True
            if self._death is None:
                self._die(EngineDeadError("the engine was closed; create a new one"))
                self._post(None)
        # The garbage collector may close an engine from the client's own thread.
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    def _call(self, name: CallName, kind: type[T], argument: str = "") -> T:
        self._home.check()
        future: Future[bytes] = Future()
        with self._lock:
            self._check_alive()
            call_id = next(self._call_ids)
            self._calls[call_id] = future
            self._post(self._encoder.encode(Call(call_id, name, argument)))
        return msgspec.msgpack.decode(future.result(), type=kind)

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(str(self._death))

    def _post(self, message: bytes | None) -> None:
        self._outbox.put(message)
        # A full pipe means that the thread is about to wake up anyway.
        with self._wake_lock, contextlib.suppress(BlockingIOError):
            if self._can_wake:
                os.write(self._wake_write, b"\0")

    def _die(self, death: EngineDeadError) -> None:
        """Tell everyone who waits; the first cause stays."""
        with self._lock:
            if self._death is not None:
                return
            self._death = death
            self._waiting.fail_all(death)
            for future in self._calls.values():
                future.set_exception(death)
            self._calls.clear()
            if not self._ready.done():
                self._ready.set_exception(death)

    def _run(self) -> None:
        """The thread: talks until the engine or this client ends, then ends the process and cleans up."""
        told = False
        context = zmq.Context()
        requests, replies = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        try:
            _bind(requests, self._child.requests_address)
            _bind(replies, self._child.replies_address)
            told = self._talk(requests, replies)
        except Exception as error:
            logger.exception("the connection to the engine's process failed")
            self._die(EngineDeadError(f"the connection to the engine's process failed: {error}"))
        self._child.end(told=told)
        self._die(self._child.death())
        requests.close(linger=0)
        replies.close(linger=0)
        context.term()
        with self._wake_lock:
            self._can_wake = False
            os.close(self._wake_read)
            os.close(self._wake_write)
        death = self._death
        if self._on_death is not None and self._is_ready and not self._is_closed and death is not None:
            self._on_death(death)

    def _talk(self, requests: "zmq.Socket[bytes]", replies: "zmq.Socket[bytes]") -> bool:
        """Returns whether the process ends by itself: it has ended, or it was told to."""
        poller = zmq.Poller()
        poller.register(replies, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        poller.register(self._child.life_fd, zmq.POLLIN | zmq.POLLERR)
        # A process that is still loading has its own time.
        heart = Heartbeat(None)
        while True:
            # Without flags the socket is not polled: one with nothing to send is always writable.
            poller.register(requests, zmq.POLLOUT if self._unsent else 0)
            events = dict(poller.poll(heart.wait_milliseconds(time.monotonic())))
            if self._wake_read in events:
                os.read(self._wake_read, 1 << 16)
            if not self._send_all(requests):
                # A process that is still loading reads nothing.
                return self._is_ready and _send(requests, self._encoder.encode(Close()))
            if self._child.life_fd in events:
                self._hear_last(replies)
                return True
            if replies in events:
                heart.heard()
            was_ready = self._is_ready
            self._receive(replies, RECEIVED_AT_ONCE)
            if self._is_ready and not was_ready:
                heart = Heartbeat(self._hang_timeout)
            if heart.is_due(time.monotonic()):
                self._ask_for_life(requests, heart)
            if self._death is not None:
                return False

    def _ask_for_life(self, requests: "zmq.Socket[bytes]", heart: Heartbeat) -> None:
        if heart.is_lost:
            self._die(EngineDeadError(f"the engine hangs: no step ended within {self._hang_timeout:g} s"))
        else:
            # Its result belongs to no call: that it comes is all there is to it.
            _send(requests, self._encoder.encode(Call(next(self._call_ids), "heartbeat")))

    def _send_all(self, requests: "zmq.Socket[bytes]") -> bool:
        """False: this client was closed.

        What cannot be sent is kept: each socket connects by itself, so the process may have said over the one
        that it is ready before the other is there. Where the process is gone, its end is the next event.
        """
        while not self._outbox.empty():
            message = self._outbox.get()
            if message is None:
                return False
            self._unsent.append(message)
        while self._unsent and _send(requests, self._unsent[0]):
            self._unsent.popleft()
        return True

    def _receive(self, replies: "zmq.Socket[bytes]", limit: int | None) -> None:
        """What has come, ``limit`` messages at most."""
        with contextlib.suppress(zmq.Again):
            for _ in itertools.count() if limit is None else range(limit):
                self._handle(self._decoder.decode(replies.recv(zmq.NOBLOCK)))

    def _hear_last(self, replies: "zmq.Socket[bytes]") -> None:
        """Everything that the process, which has ended, said before: why, where it ended by itself."""
        self._receive(replies, None)
        if self._child.exited_by_itself():
            while self._death is None and replies.poll(LAST_WORDS_MILLISECONDS):
                self._receive(replies, None)

    def _handle(self, message: FromEngine) -> None:
        with self._lock:
            match message:
                case Outputs(outputs):
                    if orphans := self._waiting.deliver(outputs):
                        self._post(self._encoder.encode(Abort(orphans)))
                case Refused(request_id, error):
                    self._waiting.refuse(revive_ramet_error(error), request_id)
                case Result(call_id, value, error):
                    future = self._calls.pop(call_id, None)
                    if future is not None and error is not None:
                        future.set_exception(revive_error(error))
                    elif future is not None:
                        future.set_result(bytes(value))
                case Ready():
                    self._is_ready = True
                    if not self._ready.done():
                        self._ready.set_result(message)
                case StartFailed(error):
                    if not self._ready.done():
                        self._ready.set_exception(revive_error(error))
                    self._die(EngineDeadError(f"the engine did not start: {error.message}"))
                case Died(error):
                    self._die(EngineDeadError(error.message))


def _bind(socket: "zmq.Socket[bytes]", address: str) -> None:
    # Unbounded queues: the other end is always read, and a bound would make a sender block.
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.bind(address)


def _send(socket: "zmq.Socket[bytes]", message: bytes) -> bool:
    """False: nobody is connected."""
    try:
        socket.send(message, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True
