"""Pass: a program that has said everything before its first call is sent whole, where the backend takes that.

Its branches are carried out here all the same; their calls are answered by what the backend's own run of the
program gives, so that nothing waits for a way there and back. What cannot be sent is called one by one.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ramet.lang.backends.base import Backend
from ramet.lang.compiler.piece import Piece
from ramet.lang.ir import ToolUse
from ramet.lang.operations import (
    AppendImage,
    AppendText,
    AppendValue,
    BeginRole,
    Choose,
    CloseScope,
    Concatenate,
    EndRole,
    Generate,
    OpenScope,
    Operation,
    Spawn,
)
from ramet.lang.variables import Variable
from ramet.runtime.protocol import InvalidRequestError, programs

if TYPE_CHECKING:
    from ramet.lang.interpreter import Branch, Execution

logger = logging.getLogger(__name__)

CallKey = tuple[str, int]
"""A call's branch and step."""


class SentProgram(Protocol):
    """A program on its way. ``begin`` and ``close`` are called on the branches' event loop."""

    @property
    def backend(self) -> Backend:
        """Answers the program's calls."""
        ...

    def begin(self) -> None: ...

    def close(self) -> None:
        """The run here has ended: what still runs there is ended too. Closing twice is allowed."""
        ...


@runtime_checkable
class TakesWhole(Protocol):
    """A backend that runs whole programs."""

    @property
    def takes_whole(self) -> bool: ...

    def send_whole(
        self, program: programs.WireProgram, calls: Mapping[CallKey, str], *, cache_salt: str
    ) -> SentProgram:
        """``calls``: which variable each call makes."""
        ...


class CannotBeSent(Exception):
    """The program has to be run call by call; the text says why."""


class SendWhole:
    """The pass for one run: it looks at the first piece, and leaves it as it is."""

    def __init__(self, execution: "Execution") -> None:
        self._execution = execution
        self._is_first = True
        self._sent: SentProgram | None = None

    def __call__(self, piece: Piece) -> Piece:
        is_first, self._is_first = self._is_first, False
        execution = self._execution
        backend = execution.backend
        if not is_first or not isinstance(backend, TakesWhole) or not backend.takes_whole:
            return piece
        try:
            program, calls = whole_program(piece, execution.root, execution.program)
        except CannotBeSent as reason:
            logger.debug("program %s is run call by call: %s", execution.program_id, reason)
            return piece
        self._sent = backend.send_whole(program, calls, cache_salt=execution.cache_salt)
        execution.thread.call(self._sent.begin)
        # No branch has a prompt yet: this is the first that any of them is told.
        execution.backend = self._sent.backend
        return piece

    def close(self) -> None:
        if self._sent is not None:
            self._execution.thread.call(self._sent.close)


def whole_program(piece: Piece, root: "Branch", name: str) -> tuple[programs.WireProgram, dict[CallKey, str]]:
    """The piece as data, and which variable each of its calls makes.

    Raises:
        CannotBeSent: it is not all of the program, or says what has no form as data.
    """
    if not piece.whole:
        raise CannotBeSent("it reads a value before it has said everything")
    encoder = _Encoder()
    tracks = piece.by_branch()
    branches: list[programs.ProgramBranch] = []
    pending = [root]
    # A value may be said on a branch that comes before the one that makes it.
    found: list[tuple[Branch, tuple[Operation, ...]]] = []
    while pending:
        branch = pending.pop()
        track = tracks.get(branch)
        operations = () if track is None else track.operations
        found.append((branch, operations))
        for operation in operations:
            encoder.name(operation, branch)
            if isinstance(operation, Spawn):
                pending += reversed(operation.children)
    for branch, operations in found:
        encoded = [one for operation in operations if (one := encoder.encode(operation)) is not None]
        branches.append(programs.ProgramBranch(name=branch.path, operations=encoded))
    if len(encoder.calls) < 2:
        raise CannotBeSent("it makes one call at most, and would gain nothing")
    try:
        shown = name if name.isprintable() else ""
        program = programs.WireProgram(
            version=programs.PROGRAM_VERSION,
            name=shown[: programs.MAX_NAME_CHARS] or "program",
            branches=branches,
        )
    except InvalidRequestError as error:
        raise CannotBeSent(str(error)) from None
    return program, encoder.calls


@dataclass
class _Encoder:
    """Operations as data. Variables get names that are each other's only."""

    calls: dict[CallKey, str] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=count)

    def name(self, operation: Operation, branch: "Branch") -> None:
        """Gives names to what the operation makes."""
        match operation:
            case Generate(variable=variable, tag=tag, reasoning=reasoning):
                name = self._new_name(variable, branch)
                self.calls[tag.branch, tag.step] = name
                if reasoning is not None:
                    self._names[id(reasoning[1])] = name + programs.REASONING_SUFFIX
            case Choose(variable=variable, request=request):
                self.calls[request.tag.branch, request.tag.step] = self._new_name(variable, branch)
            case CloseScope(variable=variable):
                self._new_name(variable, branch)

    def encode(self, operation: Operation) -> programs.Operation | None:
        """None: it says nothing, and makes nothing."""
        match operation:
            case AppendText(text):
                return programs.SayText(text=text)
            case AppendValue(variable):
                return self._value(variable)
            case AppendImage():
                raise CannotBeSent("it says an image")
            case BeginRole(role):
                return programs.BeginRole(role=role)  # type: ignore[arg-type]
            case EndRole(role):
                return programs.EndRole(role=role)  # type: ignore[arg-type]
            case Generate():
                return self._gen(operation)
            case Choose(variable=variable, request=request):
                return programs.Select(
                    variable=self._names[id(variable)],
                    options=list(request.options),
                    normalization=request.normalization,  # type: ignore[arg-type]
                    temperature=request.temperature,
                    seed=request.seed,
                    priority=request.priority,
                )
            case OpenScope():
                return programs.BeginScope()
            case CloseScope(variable=variable):
                return programs.EndScope(variable=self._names[id(variable)])
            case Spawn(children):
                keeps = bool(children) and children[0].group.keep_errors
                return programs.Fork(branches=[child.path for child in children], keep_errors=keeps)
            case Concatenate(children, keep_errors):
                return programs.Join(branches=[child.path for child in children], keep_errors=keep_errors)
            case _:
                return None

    def _new_name(self, variable: Variable, branch: "Branch") -> str:
        shown = variable.name if variable.name and variable.name.isprintable() else "call"
        name = f"{shown[:80]}@{branch.path[-80:]}#{next(self._numbers)}"
        self._names[id(variable)] = name
        return name

    def _value(self, variable: Variable) -> programs.Operation:
        if (name := self._names.get(id(variable))) is not None:
            if not variable.is_text:
                raise CannotBeSent(f"it says {variable.name!r}, which its own code makes of the answer")
            return programs.SayValue(variable=name)
        if variable.settled and variable.failure is None:
            return programs.SayText(text=format(variable.value(), ""))
        raise CannotBeSent(f"it says {variable.name!r}, which is a list of what branches make")

    def _gen(self, operation: Generate) -> programs.Gen:
        if operation.lora is not None:
            raise CannotBeSent("it asks for a LoRA adapter")
        marks = None
        if operation.reasoning is not None:
            format = operation.reasoning[0]
            marks = programs.ReasoningMarks(
                begin=format.begin, end=format.end, begins_inside=format.begins_inside
            )
        return programs.Gen(
            variable=self._names[id(operation.variable)],
            params=operation.params,
            reasoning=marks,
            tools=None if operation.tools is None else _offered(operation.tools),
            priority=operation.priority,
        )


def _offered(use: ToolUse) -> programs.OfferedTools:
    specs = [tool.spec() for tool in use.tools]
    return programs.OfferedTools(
        tools=[
            programs.ToolDescription(name=spec.name, description=spec.description, parameters=spec.parameters)
            for spec in specs
        ],
        choice=use.choice,
        max_rounds=use.max_rounds,
    )
