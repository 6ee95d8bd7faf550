"""Tracing: a program's body is run without a backend, and what it says is written down instead of carried out.

The body's own side effects take place. Nothing that a trace says is used as a result of a run: a run follows
its own body, whatever was traced.
"""

import inspect
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from ramet.lang.backends.base import Backend
from ramet.lang.compiler.graph import Argument, Graph, Part, graph_of
from ramet.lang.compiler.piece import Piece, Track, in_depth_first_order
from ramet.lang.compiler.pieces import Compilation, Pace
from ramet.lang.compiler.placeholders import Marks, TraceEnd
from ramet.lang.interpreter import Branch, Execution
from ramet.lang.loop_thread import branches_loop
from ramet.lang.operations import Operation
from ramet.lang.options import Sampling
from ramet.lang.outline import Outline, Terms
from ramet.lang.reading import Reader
from ramet.lang.signals import Steps
from ramet.lang.state import ProgramState
from ramet.lang.variables import TextFeed, Variable

LANGUAGE = Path(__file__).resolve().parents[1]
LIBRARIES = tuple(
    Path(folder).resolve()
    for name, folder in sysconfig.get_paths().items()
    if name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_tracing: ContextVar[bool] = ContextVar("tracing", default=False)


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a trace ended before the program did."""

    reason: str
    where: str
    """file:line, or "" where it is not known."""

    def __str__(self) -> str:
        return f"{self.reason} ({self.where})" if self.where else self.reason


@dataclass(frozen=True, slots=True)
class Read:
    """The program read a value that is not known."""

    variable: Variable
    num_told: int
    """How many operations it had said by then."""
    where: str


@dataclass(frozen=True)
class Trace:
    """What a program says, as far as it does not depend on what is generated."""

    program: str
    graph: Graph
    piece: Piece
    reads: tuple[Read, ...]
    stop: Stop | None
    """None: the whole program was followed."""
    outputs: tuple[Variable, ...] | None
    """What the program was compiled for, as far as it was followed."""
    log: "tuple[Branch, ...]" = field(repr=False)
    """The branches in the order in which they were told something."""

    def pieces(self) -> list[Piece]:
        """The pieces in which a run says all this: it waits at each value that it reads."""
        ends = sorted({read.num_told for read in self.reads} - {0, len(self.log)})
        operations = {track.branch: iter(track.operations) for track in self.piece.tracks}
        pieces: list[Piece] = []
        for begin, end in pairwise((0, *ends, len(self.log))):
            told: dict[Branch, list[Operation]] = {}
            for branch in self.log[begin:end]:
                told.setdefault(branch, []).append(next(operations[branch]))
            tracks = in_depth_first_order([Track(branch, tuple(own)) for branch, own in told.items()])
            last = end == len(self.log)
            pieces.append(Piece(tracks, not last, last and self.stop is None, self.outputs if last else None))
        return pieces

    @property
    def order(self) -> dict[int, int]:
        """When each call was said, by its number: how many operations came before it."""
        numbers = {id(call.operation): call.index for call in self.graph.calls}
        operations = {track.branch: iter(track.operations) for track in self.piece.tracks}
        order: dict[int, int] = {}
        for told, branch in enumerate(self.log):
            if (index := numbers.get(id(next(operations[branch])))) is not None:
                order[index] = told
        return order

    @property
    def prefix(self) -> tuple[Part, ...]:
        """What every run with these arguments begins with."""
        known: list[Part] = []
        for part in self.graph.start:
            if isinstance(part, Argument):
                break
            known.append(part)
        return tuple(known)

    def __str__(self) -> str:
        lines = [f"program {self.program}: {len(self.graph.calls)} calls"]
        for call in self.graph.calls:
            needs = ", ".join(self.graph.calls[other].name for other in call.needs)
            lines.append(f"  {call.branch}: {call.name}" + (f" after {needs}" if needs else ""))
        if self.stop is not None:
            lines.append(f"  followed up to here: {self.stop}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Subject:
    """A program to be traced. ``missing``: arguments of the program that are not given."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    missing: tuple[str, ...]
    backend: Backend
    defaults: Sampling
    compilation: Compilation


def trace_program(subject: Subject) -> Trace:
    """Runs the body once. Raises what it raises before it has met anything that is not known."""
    marks = Marks()
    execution = Execution(
        subject.name, f"{subject.name}-trace", subject.backend, branches_loop(), Compilation(Pace.NEVER)
    )
    outline = Outline(execution.root, Terms(subject.backend.capabilities, subject.defaults))
    log = _Log(marks, execution)
    kwargs = dict(subject.kwargs)
    for name in subject.missing:
        kwargs[name] = marks.text(Argument(name), f"the argument {name}")
    state = ProgramState(outline, TracingReader(outline, log))
    stop = _run_body(subject, state, kwargs, log)
    piece = execution.pieces.written_down()
    outputs = None
    if subject.compilation.outputs is not None and stop is None:
        outputs = tuple(
            variable for name in subject.compilation.outputs if (variable := outline.find(name)) is not None
        )
    told = tuple(execution.pieces.log)
    return Trace(subject.name, graph_of(piece, marks), piece, tuple(log.reads), stop, outputs, told)


def is_tracing() -> bool:
    return _tracing.get()


@dataclass(slots=True)
class _Log:
    marks: Marks
    execution: Execution
    reads: list[Read] = field(default_factory=list)

    def read(self, variable: Variable, description: str) -> object:
        told = len(self.execution.pieces.log)
        self.reads.append(Read(variable, told, _place_of(inspect.currentframe())))
        make = self.marks.text if variable.is_text else self.marks.value
        return make(variable, description)


class TracingReader(Reader):
    """Gives placeholders for what is not known."""

    def __init__(self, outline: Outline, log: _Log) -> None:
        super().__init__(outline)
        self._log = log

    def of(self, outline: Outline) -> Reader:
        return TracingReader(outline, self._log)

    def variable(self, name: str) -> Steps[Variable]:
        variable = yield from self._found(name)
        if not variable.settled:
            raise TraceEnd(f"it follows the text of {name!r} while it is generated")
        return variable

    def value(self, name: str) -> Steps[object]:
        variable = yield from self._found(name)
        return self._value(variable, name)

    def meta(self, name: str) -> Steps[object]:
        yield from self._found(name)
        raise TraceEnd(f"it asks how the call of {name!r} went")

    def report(self, what: str) -> Steps[Any]:
        yield from ()
        if what == "nothing":
            return None
        raise TraceEnd(f"it reads its own {what}")

    def error(self) -> Steps[BaseException | None]:
        yield from ()
        raise TraceEnd("it asks whether a call has failed")

    def feed(self) -> TextFeed:
        raise TraceEnd("it follows its own text while it is generated")

    def _found(self, name: str) -> Steps[Variable]:
        return Reader.variable(self, name)

    def _value(self, variable: Variable, name: str) -> object:
        if variable.settled:
            return variable.value()
        if variable.parts is not None:
            return [None if part is None else self._value(part, name) for part in variable.parts]
        values = [self._log.read(variable, f"what {name!r} is") for _ in range(variable.num_answers)]
        return values if variable.num_answers > 1 else values[0]


def _run_body(subject: Subject, state: ProgramState, kwargs: Mapping[str, Any], log: _Log) -> Stop | None:
    with _traced():
        try:
            value = subject.function(state, *subject.args, **kwargs)
            if inspect.iscoroutine(value):
                _run_coroutine(value)
        except TraceEnd as end:
            return Stop(end.reason, _where(end))
        except Exception as error:
            if log.reads or subject.missing:
                # What it made of a placeholder, it could not go on with.
                shown = _unmarked(str(error), log.marks)
                told = f"{type(error).__name__}: {shown}" if shown else type(error).__name__
                return Stop(f"it raises {told}, as it looks at what is not known yet", _where(error))
            raise
    return None


def _run_coroutine(coroutine: Any) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return
    finally:
        coroutine.close()
    raise TraceEnd("it awaits something outside of the program")


@contextmanager
def _traced() -> Any:
    token = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(token)


def _where(error: BaseException) -> str:
    """The last line of the user's own: of no library, where there is such a line."""
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if not _is_of_language(frame.filename)]
    own = [frame for frame in frames if not _is_of_library(frame.filename)] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _place_of(frame: Any) -> str:
    while frame is not None and _is_of_language(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


@cache
def _is_of_language(filename: str) -> bool:
    return Path(filename).resolve().is_relative_to(LANGUAGE)


@cache
def _is_of_library(filename: str) -> bool:
    return any(Path(filename).resolve().is_relative_to(folder) for folder in LIBRARIES)


def _unmarked(text: str, marks: Marks) -> str:
    return "".join(part if isinstance(part, str) else "..." for part in marks.split(text))


def refuse_while_tracing(program: str) -> None:
    """Raises TraceEnd where a program would be run inside of one that is only traced."""
    if is_tracing():
        raise TraceEnd(f"it runs the program {program}")
