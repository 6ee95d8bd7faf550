"""What is traced of a server: its HTTP requests, and the answers inside of them. Nothing, unless it is told to.

The real thing is ``open_telemetry``; what is here knows no library.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from ramet.runtime.protocol import FinishReason, ProgramTag, RequestStats, SamplingParams


@dataclass(frozen=True, slots=True)
class AnswerStart:
    """What a trace tells of an answer when it begins. No prompt, no answer and no key is ever part of it."""

    operation: str
    """chat, text_completion or score."""
    params: SamplingParams | None
    """None: nothing is generated."""
    tag: ProgramTag
    num_answers: int


class RequestSpan(Protocol):
    """Of one HTTP request."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits; empty: it is not traced."""
        ...

    def answered(self, route: str, status: int) -> None:
        """Once, at its end. ``route``: the pattern, not what was sent."""
        ...


class AnswerSpan(Protocol):
    """Of what one request has the engine compute: one answer, or several."""

    def started(self, request_id: str) -> None: ...

    def first_token(self, seconds: float) -> None:
        """``seconds``: since the request came."""
        ...

    def finished(self, reason: FinishReason, stats: RequestStats) -> None:
        """One of the answers ended."""
        ...

    def scored(self) -> None:
        """The scores are there."""
        ...

    def failed(self, error: BaseException) -> None: ...

    def end(self) -> None:
        """Once. What has not finished by then was aborted."""
        ...


class ProgramSpan(Protocol):
    """Of one program that the server runs."""

    def inside(self) -> AbstractContextManager[None]:
        """What begins there is part of it, with all that it begins in its turn."""
        ...

    def end(self, status: str) -> None:
        """Once. ``status``: completed, failed or cancelled."""
        ...


class Tracing(Protocol):
    def request(self, method: str, headers: Mapping[str, str]) -> AbstractContextManager[RequestSpan]:
        """Around a request; what begins inside is part of it."""
        ...

    def answer(self, start: AnswerStart) -> AnswerSpan: ...

    def program(self, program_id: str, name: str) -> ProgramSpan: ...

    def close(self) -> None:
        """Sends what is left, within bounds. Closing twice is allowed."""
        ...


class _NoRequest:
    trace_id = ""

    def answered(self, route: str, status: int) -> None: ...


class _NoAnswer:
    def started(self, request_id: str) -> None: ...

    def first_token(self, seconds: float) -> None: ...

    def finished(self, reason: FinishReason, stats: RequestStats) -> None: ...

    def scored(self) -> None: ...

    def failed(self, error: BaseException) -> None: ...

    def end(self) -> None: ...


class _NoProgram:
    def inside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def end(self, status: str) -> None: ...


class NoTracing:
    """Nothing is traced, and nothing is paid for it."""

    def __init__(self) -> None:
        self._request = _NoRequest()
        self._answer = _NoAnswer()
        self._program = _NoProgram()

    def request(self, method: str, headers: Mapping[str, str]) -> AbstractContextManager[RequestSpan]:
        return nullcontext(self._request)

    def answer(self, start: AnswerStart) -> AnswerSpan:
        return self._answer

    def program(self, program_id: str, name: str) -> ProgramSpan:
        return self._program

    def close(self) -> None: ...
