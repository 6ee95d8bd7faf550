"""What a probe and its parent say to each other: MessagePack records behind a length of four bytes."""

import os
import select
import time

import msgspec

from ramet.runtime.grammar.service.vocabulary import PlainVocabulary
from ramet.runtime.protocol import GrammarSpec

_LENGTH_BYTES = 4
_READ_BYTES = 1 << 16


class Setup(msgspec.Struct, frozen=True, tag=True):
    """The first record to the probe."""

    builder: str
    vocabulary: PlainVocabulary
    max_bytes: int
    """Address space that the probe may take beyond what it has when its backend is built."""
    max_seconds: float
    num_steps: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The backend is built."""


class Trial(msgspec.Struct, frozen=True, tag=True):
    """Compile this, and fill masks along one walk through it."""

    spec: GrammarSpec


class Begun(msgspec.Struct, frozen=True, tag=True):
    """What the trial needs of an engine is loaded: from here on, time counts."""


class Passed(msgspec.Struct, frozen=True, tag=True):
    """It compiled within the limits."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The backend raised."""

    kind: str
    message: str
    field: str | None = None


ToProbe = Setup | Trial
FromProbe = Ready | Begun | Passed | Refused


def framed(record: ToProbe | FromProbe) -> bytes:
    """A record as it travels."""
    body = msgspec.msgpack.encode(record)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class FrameReader:
    """Records' bytes from a file descriptor that may end at any place. ``seconds`` None: waits for ever."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()

    def read(self, seconds: float | None = None) -> bytes | None:
        """The next record's bytes; None: the other end has closed.

        Raises:
            TimeoutError: it has not come whole in time; what came of it is kept for the next call.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while (body := self._take()) is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select([self._fd], [], [], left)
            if not readable:
                raise TimeoutError
            chunk = os.read(self._fd, _READ_BYTES)
            if not chunk:
                return None
            self._buffer += chunk
        return body

    def _take(self) -> bytes | None:
        if len(self._buffer) < _LENGTH_BYTES:
            return None
        end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH_BYTES:end])
        del self._buffer[:end]
        return body
