"""EngineLoop: one thread owns an engine's core; everyone else talks to it through an inbox."""

import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from ramet.runtime.cache import CacheOutline
from ramet.runtime.engine.client import EngineInfo, EngineStats, HomeProcess, OutputSink
from ramet.runtime.engine.sinks import SinkTable
from ramet.runtime.engine.threads import EngineThread
from ramet.runtime.protocol import (
    EngineDeadError,
    GenerateInput,
    InvalidRequestError,
    RametError,
    RequestFailedError,
    TextOutput,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

IDLE_SECONDS = 0.5
"""After so long without work the core's accounting is checked, once: late enough not to cost a caller
anything.
"""
CLOSE_SECONDS = 30.0
"""A step may be running when the loop is closed; it is waited for, but not for ever."""


class Core(Protocol):
    """What the loop drives; EngineCore is one. Used from the loop's thread only."""

    def add(self, request: GenerateInput) -> None: ...

    def abort(self, request_id: str) -> list[TextOutput]: ...

    def step(self) -> list[TextOutput]: ...

    def has_work(self) -> bool: ...

    def stats(self) -> EngineStats: ...

    def cache_outline(self, salt_prefix: str) -> CacheOutline: ...

    def release_session(self, session: str) -> int: ...

    def flush_cache(self) -> int: ...

    def check_integrity(self) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class HearableCore(Core, Protocol):
    """A core that has texts to give away while its step runs on a device."""

    def hear(self, listener: Callable[[list[TextOutput]], None]) -> None:
        """``listener`` may be called within ``step``, and must not call the core."""
        ...


@dataclass(frozen=True, slots=True)
class _Submit:
    inputs: Sequence[GenerateInput]
    sink: OutputSink


@dataclass(frozen=True, slots=True)
class _Abort:
    request_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[Core], Any]
    future: "Future[Any]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class _Close:
    pass


_Message = _Submit | _Abort | _Call | _Close


class EngineLoop:
    """An EngineClient over a core in this process.

    The thread runs steps while there is work and sleeps on its inbox otherwise. Messages are taken between two
    steps, so a submission is added whole before any of it runs. If the core raises, which it must not, the loop
    is dead: everyone who waits gets an EngineDeadError that names the cause at once, and so does everyone who
    comes later.
    """

    def __init__(self, core: Core, info: EngineInfo, thread: EngineThread | None = None) -> None:
        """``thread``: the one that built the core; None: a new one."""
        self._info = info
        self._home = HomeProcess()
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        # Reentrant: the garbage collector may abort an abandoned stream's request while this thread is in here.
        self._lock = threading.RLock()
        self._death: EngineDeadError | None = None
        # The core belongs to the thread alone, so that its memory is freed when the thread ends.
        self._thread = thread or EngineThread()
        self._thread.end_with(partial(self._run, core))

    @property
    def info(self) -> EngineInfo:
        return self._info

    def submit(self, inputs: Sequence[GenerateInput], sink: OutputSink) -> None:
        self._send(_Submit(inputs, sink))

    def abort(self, request_ids: Sequence[str]) -> None:
        # A dead engine has ended everything already.
        with contextlib.suppress(EngineDeadError):
            self._send(_Abort(request_ids))

    def post(self, function: Callable[[Core], T]) -> "Future[T]":
        """Run ``function`` on the core between two steps; the future has what it returned or raised."""
        message = _Call(function)
        self._send(message)
        return message.future

    def call(self, function: Callable[[Core], T]) -> T:
        """As ``post``, and waits."""
        return self.post(function).result()

    def check_alive(self) -> None:
        self._home.check()
        if self._death is not None:
            raise EngineDeadError(str(self._death)) from self._death.__cause__

    def stats(self) -> EngineStats:
        return self.call(lambda core: core.stats())

    def cache_outline(self, salt_prefix: str) -> CacheOutline:
        return self.call(lambda core: core.cache_outline(salt_prefix))

    def release_session(self, session: str) -> int:
        return self.call(lambda core: core.release_session(session))

    def flush_cache(self) -> int:
        return self.call(lambda core: core.flush_cache())

    def check_integrity(self) -> None:
        self.call(lambda core: core.check_integrity())

    def close(self) -> None:
        if not self._home.is_here:
            return
        with contextlib.suppress(EngineDeadError):
            self._send(_Close())
        # The garbage collector may close an engine from the engine's own thread.
        self._thread.join(CLOSE_SECONDS)

    def _send(self, message: _Message) -> None:
        self._home.check()
        # Under the lock a message is either put before the loop's last look at its inbox, or refused.
        with self._lock:
            if self._death is not None:
                raise EngineDeadError(str(self._death)) from self._death.__cause__
            self._inbox.put(message)

    def _run(self, core: Core) -> None:
        desk = _Desk(core)
        # A message stays here until it has been dealt with, so that none is lost when the loop ends.
        taken: deque[_Message] = deque()
        death = EngineDeadError("the engine was closed; create a new one")
        try:
            if isinstance(core, HearableCore):
                core.hear(desk.deliver_early)
            self._serve(core, desk, taken)
        except BaseException as cause:
            logger.exception("the engine failed")
            death = EngineDeadError(f"the engine failed: {type(cause).__name__}: {cause}")
            death.__cause__ = cause
        try:
            core.close()
        except Exception:
            # Whoever waits is told all the same.
            logger.exception("the engine could not be closed whole")
        with self._lock:
            self._death = death
        desk.end(death, [*taken, *self._take_all()])

    def _serve(self, core: Core, desk: "_Desk", taken: deque[_Message]) -> None:
        unchecked = False
        while True:
            taken.extend(self._take(core.has_work(), unchecked))
            while taken:
                if isinstance(taken[0], _Close):
                    return
                desk.handle(taken[0])
                taken.popleft()
            if core.has_work():
                desk.deliver(core.step())
                unchecked = True
            elif unchecked and self._inbox.empty():
                core.check_integrity()
                unchecked = False

    def _take(self, has_work: bool, unchecked: bool) -> list[_Message]:
        """What is in the inbox; without work, waits for it (if the core is unchecked, IDLE_SECONDS at most)."""
        if has_work:
            return self._take_all()
        try:
            first = self._inbox.get(timeout=IDLE_SECONDS if unchecked else None)
        except queue.Empty:
            return []
        return [first, *self._take_all()]

    def _take_all(self) -> list[_Message]:
        # This thread alone takes, so an inbox that is not empty has a message.
        messages = []
        while not self._inbox.empty():
            messages.append(self._inbox.get())
        return messages


class _Desk:
    """Takes messages to the core and outputs to whoever waits for them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting = SinkTable()
        self._gone: list[str] = []
        """Requests to be aborted behind the step."""

    def handle(self, message: _Submit | _Abort | _Call) -> None:
        match message:
            case _Submit(inputs, sink):
                self._submit(inputs, sink)
            case _Abort(request_ids):
                self.deliver([output for key in request_ids for output in self._core.abort(key)])
            case _Call(function, future):
                if future.set_running_or_notify_cancel():
                    try:
                        future.set_result(function(self._core))
                    except Exception as error:
                        future.set_exception(error)

    def _submit(self, inputs: Sequence[GenerateInput], sink: OutputSink) -> None:
        for position, request in enumerate(inputs):
            try:
                if request.request_id in self._waiting:
                    raise InvalidRequestError(
                        f"request_id {request.request_id!r} belongs to a running request; choose another one",
                        field="request_id",
                    )
                self._core.add(request)
            except Exception as error:
                # Whatever a grammar or a pattern makes of what it was given, it is this submission's failure.
                # No step has run in between: the earlier ones of the batch leave without a trace.
                for earlier in inputs[:position]:
                    self._waiting.forget(earlier.request_id)
                    self._core.abort(earlier.request_id)
                sink.fail(_refusal(error), request.request_id)
                return
            self._waiting.add(request.request_id, sink)

    def deliver(self, outputs: list[TextOutput]) -> None:
        gone, self._gone = [*self._gone, *self._waiting.deliver(outputs)], []
        for request_id in gone:
            self._core.abort(request_id)

    def deliver_early(self, outputs: list[TextOutput]) -> None:
        """Within a step: requests whose reader has gone are aborted behind it."""
        self._gone += self._waiting.deliver(outputs)

    def end(self, death: EngineDeadError, unread: Sequence[_Message]) -> None:
        """Tell everyone who waits, and everyone whose message was not read any more."""
        self._waiting.fail_all(death)
        for message in unread:
            match message:
                case _Submit(_, sink):
                    sink.fail(death)
                case _Call(_, future):
                    if future.set_running_or_notify_cancel():
                        future.set_exception(death)


def _refusal(error: Exception) -> RametError:
    """Why a request was not taken in, in ramet's terms."""
    if isinstance(error, RametError):
        return error
    logger.error("a request could not be taken in", exc_info=error)
    return RequestFailedError(f"the request could not be taken in: {type(error).__name__}: {error}")
