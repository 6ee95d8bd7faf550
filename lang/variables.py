"""Variables: values that threads and coroutines wait for, and whose text can be watched as it grows."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramet.lang.errors import BranchError, ProgramCancelledError, ProgramError, ProgramStructureError
from ramet.lang.signals import Signal, Steps

Meta = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a program something is."""

    program: str
    branch: str

    def error(self, kind: type[ProgramError], message: str, variable: str | None = "") -> ProgramError:
        return kind(message, program=self.program, branch=self.branch, variable=variable or "")


class Failure:
    """An error of a branch, and whether anybody was told. ``delivered`` only ever becomes true."""

    def __init__(self, error: ProgramError, origin: "Failure | None" = None) -> None:
        self.error = error
        self.origin = origin
        """The failure that this one follows from, which is told with it."""
        self.delivered = False

    def deliver(self) -> ProgramError:
        """The error, for whoever is about to see it."""
        failure: Failure | None = self
        while failure is not None:
            failure.delivered = True
            failure = failure.origin
        return self.error

    def seen_from_outside(self) -> "Failure":
        """As the branch's parent and siblings see it."""
        if isinstance(self.error, BranchError | ProgramCancelledError):
            return self
        cause = self.error
        error = BranchError(
            f"a branch failed: {cause.message}",
            program=cause.program,
            branch=cause.branch,
            variable=cause.variable,
        )
        error.__cause__ = cause
        return Failure(error, self)


@dataclass(frozen=True, slots=True)
class Chunk:
    """An increment of a text and what the backend said with it."""

    text: str
    meta: Meta = field(default_factory=dict)


class TextFeed:
    """A text that grows by chunks to its end, for any number of readers."""

    def __init__(self) -> None:
        self._signal = Signal()
        self._chunks: list[Chunk] = []
        self._ended = False
        self._failure: Failure | None = None

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self._chunks)

    def add(self, chunk: Chunk) -> None:
        """Only before the end."""
        self._chunks.append(chunk)
        self._signal.notify()

    def end(self, failure: Failure | None = None) -> None:
        """With a failure, readers get its error after the chunks. Ending twice changes nothing."""
        if not self._ended:
            self._failure = failure
            self._ended = True
            self._signal.notify()

    def __iter__(self) -> Iterator[Chunk]:
        position = 0
        while True:
            ended = self._ended
            while position < len(self._chunks):
                yield self._chunks[position]
                position += 1
            if ended:
                self._raise_failure()
                return
            self._signal.wait(self._more_than(position))

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        position = 0
        while True:
            ended = self._ended
            while position < len(self._chunks):
                yield self._chunks[position]
                position += 1
            if ended:
                self._raise_failure()
                return
            await self._signal.wait_async(self._more_than(position))

    def _more_than(self, position: int) -> Callable[[], bool]:
        return lambda: self._ended or len(self._chunks) > position

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure.deliver()


class Variable:
    """A value that is there, or will be, or has failed. It is settled once.

    ``feed`` is its text as it is generated; None where its value has no one text (a list).
    ``parts``: the variables whose values a list gathers. ``num_answers``: of the call that makes it.
    ``is_text``: the value, or each in the list of several answers, is a text.
    """

    def __init__(
        self,
        name: str | None,
        place: Place,
        *,
        streams: bool = True,
        parts: "tuple[Variable | None, ...] | None" = None,
        num_answers: int = 1,
        is_text: bool = True,
    ) -> None:
        self.name = name
        self.place = place
        self.parts = parts
        self.num_answers = num_answers
        self.is_text = is_text
        self.feed = TextFeed() if streams else None
        self._signal = Signal()
        self._lock = threading.Lock()
        self._followers: list[Callable[[], None]] = []
        self._settled = False
        self._value: object = None
        self._meta: object = None
        self._failure: Failure | None = None

    @property
    def settled(self) -> bool:
        return self._settled

    @property
    def failure(self) -> Failure | None:
        return self._failure

    def add_text(self, text: str, meta: Meta | None = None) -> None:
        if self.feed is not None and (text or meta):
            self.feed.add(Chunk(text, meta or {}))

    def finish(self, value: object, meta: object = None) -> None:
        self._value, self._meta = value, meta
        self._settle(None)

    def fail(self, failure: Failure) -> None:
        self._settle(failure)

    def then(self, follow: Callable[[], None]) -> None:
        """Calls ``follow`` when the variable is settled, which may be now."""
        with self._lock:
            if not self._settled:
                self._followers.append(follow)
                return
        follow()

    def settling(self) -> Steps[None]:
        """Waits until the variable is settled."""
        yield self._signal, lambda: self._settled

    def value(self) -> object:
        """Of a settled variable; raises its error."""
        if self._failure is not None:
            raise self._failure.deliver()
        return self._value

    def meta(self) -> object:
        """Of a settled variable; raises its error."""
        if self._failure is not None:
            raise self._failure.deliver()
        return self._meta

    def stream(self) -> TextFeed:
        if self.feed is None:
            raise self.place.error(
                ProgramStructureError, "this variable is a list, which has no one text to stream", self.name
            )
        return self.feed

    def _settle(self, failure: Failure | None) -> None:
        with self._lock:
            if self._settled:
                return
            self._failure = failure
            self._settled = True
            followers, self._followers = self._followers, []
        if self.feed is not None:
            self.feed.end(failure)
        self._signal.notify()
        for follow in followers:
            follow()


def known_variable(name: str, place: Place, value: object) -> Variable:
    """One whose value is known already."""
    variable = Variable(name, place, streams=isinstance(value, str))
    if isinstance(value, str):
        variable.add_text(str(value))
    variable.finish(value)
    return variable


def gathered(name: str, place: Place, parts: Sequence[Variable | None], *, keep_errors: bool) -> Variable:
    """The list of the parts' values, in their order; None in the place of a part that there is not.

    With ``keep_errors`` the error of a part that failed stands in its place; else it is the list's error.
    """
    whole = Variable(name, place, streams=False, parts=tuple(parts))
    waited_for = [part for part in parts if part is not None]
    lock = threading.Lock()
    missing = len(waited_for) + 1

    def settle_one() -> None:
        nonlocal missing
        with lock:
            missing -= 1
            last = missing == 0
        if last:
            _settle_list(whole, parts, keep_errors=keep_errors)

    for part in waited_for:
        part.then(settle_one)
    settle_one()
    return whole


def _settle_list(whole: Variable, parts: Sequence[Variable | None], *, keep_errors: bool) -> None:
    failures = [None if part is None else part.failure for part in parts]
    first = next((failure for failure in failures if failure is not None), None)
    if first is not None and not keep_errors:
        whole.fail(first.seen_from_outside())
        return
    values: list[object] = []
    metas: list[object] = []
    for part, failure in zip(parts, failures, strict=True):
        if part is None or failure is not None:
            values.append(None if failure is None else failure.deliver())
            metas.append(None)
        else:
            values.append(part.value())
            metas.append(part.meta())
    whole.finish(values, metas)
