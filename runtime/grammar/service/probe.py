"""GrammarProbe: specs are tried in a child process, which may hang or die for it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass

import msgspec

from ramet.runtime import protocol
from ramet.runtime.grammar.service.frames import (
    Begun,
    FrameReader,
    FromProbe,
    Passed,
    Ready,
    Refused,
    Setup,
    ToProbe,
    Trial,
    framed,
)
from ramet.runtime.grammar.service.vocabulary import PlainVocabulary
from ramet.runtime.protocol import (
    GrammarSpec,
    InvalidRequestError,
    RametError,
    RequestFailedError,
    UnsupportedConstraintError,
)

START_SECONDS = 60.0
"""For the child's imports and its backend, and for those of an engine, on a busy machine."""

# Not `python -m`: the child finds ramet, and a builder, wherever the parent's sys.path finds them, and does not
# import the parent's main module.
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from ramet.runtime.grammar.service.probe_worker import main; main(0, int(sys.argv[2]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLimits:
    """What one trial may take."""

    seconds: float = 10.0
    memory_bytes: int = 1 << 30
    num_steps: int = 24
    """Masks that are filled along one walk through the grammar: some engines compile what they cannot mask."""


class _Child:
    """A running child and the two pipes to it."""

    def __init__(self) -> None:
        replies, child_fd = os.pipe()
        path = json.dumps([entry or os.getcwd() for entry in sys.path])
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, path, str(child_fd)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(child_fd,),
                # Not a session of its own: some kernels weigh priorities only within a session.
                process_group=0,
                bufsize=0,
            )
        except BaseException:
            os.close(replies)
            raise
        finally:
            os.close(child_fd)
        self._replies = replies
        self._reader = FrameReader(replies)

    def ask(self, record: ToProbe, seconds: float) -> FromProbe | None:
        """The answer; None: the process has ended. Raises TimeoutError."""
        assert self.process.stdin is not None
        data = memoryview(framed(record))
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[self.process.stdin.write(data) or 0 :]
        return self.hear(seconds)

    def hear(self, seconds: float) -> FromProbe | None:
        """As ``ask``, of an answer that is still to come."""
        body = self._reader.read(seconds)
        return None if body is None else msgspec.msgpack.decode(body, type=FromProbe)

    def end(self) -> int:
        """Kill it, if it lives, and free everything; its exit code."""
        self.process.kill()
        code = self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        os.close(self._replies)
        return code


class _Holder:
    """The child, if there is one: known to the finalizer, which must not know the probe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held for a trial."""
        self.child: _Child | None = None
        self.is_over = False
        """The probe was closed or is gone, or the program ends: there is no child any more."""

    def close(self) -> None:
        """End the child, whose end ends a trial that runs. Does not wait for that one."""
        self.is_over = True
        child = self.child
        if child is not None:
            child.process.kill()
        if self.lock.acquire(blocking=False):
            try:
                self.end()
            finally:
                self.lock.release()

    def end(self) -> int:
        """Free everything, under the lock; the child's exit code."""
        child, self.child = self.child, None
        return 0 if child is None else child.end()


class GrammarProbe:
    """One child, started for the first trial, reused, and started anew when it has ended or was killed.

    Thread-safe; trials come one after the other. When this object goes, or the program ends, so does the child;
    when this process dies, the child ends by itself.
    """

    def __init__(self, builder: str, vocabulary: PlainVocabulary, limits: ProbeLimits | None = None) -> None:
        """``builder``: see RiskyBackend."""
        self._limits = limits or ProbeLimits()
        self._setup = Setup(
            builder=builder,
            vocabulary=vocabulary,
            max_bytes=self._limits.memory_bytes,
            max_seconds=self._limits.seconds,
            num_steps=self._limits.num_steps,
        )
        self._holder = _Holder()
        self.num_started = 0
        """Child processes so far."""
        self._finalizer = weakref.finalize(self, self._holder.close)

    def try_out(self, spec: GrammarSpec) -> None:
        """Returns where the spec compiles, and its masks fill, within the limits.

        Raises:
            UnsupportedConstraintError: it does not: it takes too long, too much memory, or kills its process.
            RametError: the backend refused it.
            RequestFailedError: the child cannot be started, or this probe was closed; the spec may be right.
        """
        with self._holder.lock:
            reply, code = self._answer(spec)
            if reply is None and code == 0:
                # It had left by itself after the trial before this one, to give its memory back.
                reply, code = self._answer(spec)
        if isinstance(reply, Refused):
            raise _revived(reply)
        if not isinstance(reply, Passed):
            self._check_open()
            raise UnsupportedConstraintError(
                f"compiling the grammar ended its process ({_end_of(code)}), with "
                f"{self._limits.memory_bytes >> 20} MiB to use; make it smaller",
                field="grammar",
            )

    def close(self) -> None:
        """End the child; a trial that runs ends with RequestFailedError. Does not wait for it."""
        self._finalizer()

    def _answer(self, spec: GrammarSpec) -> tuple[FromProbe | None, int]:
        """The child's answer, or None and how it ended instead."""
        child = self._running()
        try:
            reply = child.ask(Trial(spec), START_SECONDS)
        except TimeoutError:
            self._holder.end()
            self._check_open()
            raise RequestFailedError(
                f"the grammar engine was not loaded after {START_SECONDS:g} s; try again later"
            ) from None
        try:
            if isinstance(reply, Begun):
                reply = child.hear(self._limits.seconds)
        except TimeoutError:
            self._holder.end()
            self._check_open()
            raise UnsupportedConstraintError(
                f"compiling the grammar was not done after {self._limits.seconds:g} s, and was ended; "
                "make it smaller",
                field="grammar",
            ) from None
        return reply, 0 if reply is not None else self._holder.end()

    def _running(self) -> _Child:
        self._check_open()
        child = self._holder.child
        if child is not None and child.process.poll() is None:
            return child
        if child is not None:
            self._holder.end()
        child = self._holder.child = _Child()
        self.num_started += 1
        if self._holder.is_over:
            # Whoever closed this did not see the child.
            child.process.kill()
        try:
            reply = child.ask(self._setup, START_SECONDS)
        except TimeoutError:
            reply = None
        if not isinstance(reply, Ready):
            code = self._holder.end()
            self._check_open()
            raise RequestFailedError(f"the process that compiles grammars did not start ({_end_of(code)})")
        return child

    def _check_open(self) -> None:
        if self._holder.is_over:
            raise RequestFailedError("the engine was closed while the grammar was compiled")


def _end_of(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def _revived(refused: Refused) -> RametError:
    kind: object = getattr(protocol, refused.kind, None)
    if isinstance(kind, type) and issubclass(kind, InvalidRequestError):
        return kind(refused.message, field=refused.field)
    return RequestFailedError(refused.message)
