"""What the events of a program's run have said so far: for clients that come later, or come again."""

import asyncio
import time

from ramet.runtime.protocol import programs
from ramet.runtime.protocol.programs import ProgramEvent, ProgramState, ProgramStatus, ProgramSummary
from ramet.runtime.protocol.wire import ErrorDetail
from ramet.runtime.server.errors import HttpError

Reader = asyncio.Queue[ProgramEvent | HttpError]
"""What one client has not read yet."""


class ProgramRecord:
    """One run's. It grows with the texts of the variables, not with the number of events."""

    def __init__(self, program_id: str, name: str, model: str, *, background: bool, created: int) -> None:
        """``created``: Unix time, seconds."""
        self._id = program_id
        self._name = name
        self._model = model
        self._background = background
        self._created = created
        self._ended: int | None = None
        self._settled: dict[str, programs.VariableDone | programs.VariableFailed] = {}
        """In the order in which they came."""
        self._growing: dict[str, list[str]] = {}
        self._waiting: dict[str, programs.ToolCallsMade] = {}
        self._end: programs.ProgramDone | HttpError | None = None
        self.num_chars = 0
        """About what it holds of texts."""

    @property
    def status(self) -> ProgramStatus:
        match self._end:
            case programs.ProgramDone(status=status):
                return status
            case HttpError():
                return "failed"
            case _:
                return "waiting" if self._waiting else "running"

    def take(self, event: ProgramEvent) -> None:
        match event:
            case programs.VariableDelta(variable=name, text=text):
                self._growing.setdefault(name, []).append(text)
                self.num_chars += len(text)
            case programs.VariableDone(variable=name, value=value):
                self._settle(name, event)
                self.num_chars += len(value) if isinstance(value, str) else sum(map(len, value))
            case programs.VariableFailed(variable=name):
                self._settle(name, event)
            case programs.ToolCallsMade(variable=name):
                self._waiting[name] = event
            case _:
                pass  # Calls are told to the client alone that asked for them.

    def answered(self, variable: str) -> None:
        """It does not wait for these tools any more."""
        self._waiting.pop(variable, None)

    def end(self, end: programs.ProgramDone | HttpError, at: int) -> None:
        """``at``: Unix time, seconds."""
        self._end, self._ended = end, at
        self._waiting.clear()

    def replay(self) -> list[ProgramEvent | HttpError]:
        """Events that say the same as those so far, less those of calls and of what has passed."""
        growing = [
            programs.VariableDelta(variable=name, text="".join(texts)) for name, texts in self._growing.items()
        ]
        end = [] if self._end is None else [self._end]
        return [*self._settled.values(), *growing, *self._waiting.values(), *end]

    def summary(self) -> ProgramSummary:
        return ProgramSummary(
            id=self._id,
            name=self._name,
            model=self._model,
            status=self.status,
            background=self._background,
            created_at=self._created,
            ended_at=self._ended,
        )

    def state(self) -> ProgramState:
        settled = self._settled.items()
        return ProgramState(
            id=self._id,
            name=self._name,
            model=self._model,
            status=self.status,
            background=self._background,
            created_at=self._created,
            ended_at=self._ended,
            variables={name: one for name, one in settled if isinstance(one, programs.VariableDone)},
            partial={name: "".join(texts) for name, texts in self._growing.items()},
            failures={name: one.error for name, one in settled if isinstance(one, programs.VariableFailed)},
            tool_calls=list(self._waiting.values()),
            error=self._error(),
        )

    def _settle(self, name: str, event: programs.VariableDone | programs.VariableFailed) -> None:
        self._settled[name] = event
        self.num_chars -= sum(map(len, self._growing.pop(name, ())))
        self._waiting.pop(name, None)

    def _error(self) -> ErrorDetail | None:
        match self._end:
            case HttpError(detail=detail):
                return detail
            case programs.ProgramDone(error=error):
                return error
            case _:
                return None


class ProgramFeed:
    """A run's record, and those who read on."""

    def __init__(self, record: ProgramRecord) -> None:
        self.record = record
        self._readers: list[Reader] = []

    @property
    def is_read(self) -> bool:
        return bool(self._readers)

    def tell(self, event: ProgramEvent) -> None:
        self.record.take(event)
        for reader in self._readers:
            reader.put_nowait(event)

    def end(self, end: programs.ProgramDone | HttpError) -> None:
        self.record.end(end, int(time.time()))
        for reader in self._readers:
            reader.put_nowait(end)

    def follow(self) -> Reader:
        """A new reader, who is told what was told so far and all that is told from now on."""
        reader = replayed(self.record)
        self._readers.append(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        """This one reads no more. Leaving twice is allowed."""
        self._readers = [one for one in self._readers if one is not reader]


def replayed(record: ProgramRecord) -> Reader:
    reader: Reader = asyncio.Queue()
    for event in record.replay():
        reader.put_nowait(event)
    return reader
