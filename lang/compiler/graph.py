"""The graph of a piece: its calls, what each one's prompt consists of, and which answers it needs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ramet.lang.compiler.piece import Call, Fixed, Piece, Track
from ramet.lang.compiler.placeholders import Marks
from ramet.lang.compiler.tags import tag_of
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

if TYPE_CHECKING:
    from ramet.lang.interpreter import Branch


@dataclass(frozen=True, slots=True)
class Answer:
    """Stands in a prompt where the answer of a call will be."""

    call: int
    carried: bool = True
    """It was generated there. Else it was read, and said as text."""


@dataclass(frozen=True, slots=True)
class Argument:
    """Stands in a prompt where the value of an argument will be."""

    name: str


Part = Fixed | Answer | Argument


@dataclass(frozen=True, slots=True)
class CallNode:
    """A call of the program."""

    index: int
    """Calls are numbered depth first."""
    operation: Call
    prompt: tuple[Part, ...]

    @property
    def branch(self) -> str:
        return tag_of(self.operation).branch

    @property
    def name(self) -> str:
        """As the program calls its answer, else its place."""
        tag = tag_of(self.operation)
        return tag.variable or f"{tag.branch}#{tag.step}"

    @property
    def needs(self) -> tuple[int, ...]:
        """The calls whose answers are in the prompt, in their order there, each once."""
        return tuple(dict.fromkeys(part.call for part in self.prompt if isinstance(part, Answer)))


@dataclass(frozen=True, slots=True)
class Graph:
    calls: tuple[CallNode, ...]
    start: tuple[Part, ...]
    """What the program says before its first call, fork or join."""
    made_of: Mapping[int, frozenset[int]] = field(default_factory=dict, repr=False)
    """Of each variable, by its identity: the calls whose answers are in it."""

    def ancestors(self) -> tuple[frozenset[int], ...]:
        """Of each call all that have to be made before it."""
        found: list[frozenset[int]] = [frozenset()] * len(self.calls)
        for index in self.in_order():
            needs = self.calls[index].needs
            found[index] = frozenset(needs).union(*(found[other] for other in needs))
        return tuple(found)

    def levels(self) -> tuple[int, ...]:
        """Of each call how many calls have to be made before it, one after the other."""
        levels: list[int] = [-1] * len(self.calls)
        for index in self.in_order():
            levels[index] = max((levels[other] + 1 for other in self.calls[index].needs), default=0)
        return tuple(levels)

    def in_order(self) -> Iterator[int]:
        """The calls, each after those that it needs."""
        done: set[int] = set()
        for first in range(len(self.calls)):
            stack = [first]
            while stack:
                missing = [other for other in self.calls[stack[-1]].needs if other not in done]
                if stack[-1] in done or missing:
                    stack = stack[:-1] if stack[-1] in done else stack + missing
                    continue
                done.add(stack[-1])
                yield stack.pop()


def graph_of(piece: Piece, marks: Marks) -> Graph:
    """``marks``: what stands in the piece's texts for values that are not known."""
    builder = _Builder(piece.by_branch(), marks)
    for track in piece.tracks:
        if track.branch not in builder.parts:
            builder.walk(track)
    if piece.tracks:
        builder.end_start(piece.tracks[0].branch)
    calls = tuple(
        CallNode(index, operation, builder.resolved(prompt))
        for index, (operation, prompt) in enumerate(builder.calls)
    )
    made_of = {
        variable: frozenset(part.call for part in builder.resolved(parts) if isinstance(part, Answer))
        for variable, parts in builder.made.items()
    }
    return Graph(calls, builder.resolved(builder.start), made_of)


_Open = Fixed | Answer | Argument | Variable
"""A part while the graph is built: variables are looked up once all calls are known."""


@dataclass(slots=True)
class _Builder:
    tracks: "dict[Branch, Track]"
    marks: Marks
    calls: list[tuple[Call, tuple[_Open, ...]]] = field(default_factory=list)
    parts: "dict[Branch, list[_Open]]" = field(default_factory=dict)
    """Of each branch that was walked, or is being walked."""
    begins: "dict[Branch, int]" = field(default_factory=dict)
    """How many of the parts are the parent's."""
    scopes: "dict[Branch, list[int]]" = field(default_factory=dict)
    made: dict[int, tuple[_Open, ...]] = field(default_factory=dict)
    """Variables, by identity."""
    start: tuple[_Open, ...] = ()
    _started: bool = False

    def walk(self, root: Track) -> None:
        """The branch and those below it, each as far as it goes before its parent goes on."""
        self._begin(root.branch, [])
        stack = [(root.branch, iter(root.operations))]
        while stack:
            branch, operations = stack[-1]
            operation = next(operations, None)
            if operation is None:
                stack.pop()
            elif isinstance(operation, Spawn):
                self.end_start(branch)
                for child in reversed(operation.children):
                    self._begin(child, list(self.parts[branch]))
                    if child in self.tracks:
                        stack.append((child, iter(self.tracks[child].operations)))
            else:
                self._add(branch, operation)

    def end_start(self, branch: "Branch") -> None:
        """What the branch has said by now is what the program begins with, unless that was known before."""
        if not self._started:
            self.start, self._started = tuple(self.parts[branch]), True

    def resolved(self, parts: Sequence[_Open]) -> tuple[Part, ...]:
        found: list[Part] = []
        stack: list[_Open] = list(reversed(parts))
        while stack:
            part = stack.pop()
            if isinstance(part, Variable):
                # Of an earlier piece: its value was said, and is part of the text.
                stack.extend(reversed(self.made.get(id(part), ())))
            else:
                found.append(part)
        return tuple(found)

    def _begin(self, branch: "Branch", parts: list[_Open]) -> None:
        self.parts[branch] = parts
        self.begins[branch] = len(parts)
        self.scopes[branch] = []

    def _add(self, branch: "Branch", operation: Operation) -> None:
        parts = self.parts[branch]
        match operation:
            case AppendText(text):
                parts += [_part(part) for part in self.marks.split(text)]
            case AppendValue(variable):
                parts.append(variable)
            case AppendImage() | BeginRole() | EndRole():
                parts.append(operation)
            case Generate() | Choose():
                self.end_start(branch)
                self._call(parts, operation)
            case OpenScope():
                self.scopes[branch].append(len(parts))
            case CloseScope(variable):
                inside = parts[self.scopes[branch].pop() :]
                # The template around roles is no part of the value.
                self.made[id(variable)] = tuple(
                    _as_read(part) for part in inside if not isinstance(part, BeginRole | EndRole | AppendImage)
                )
            case Concatenate(children):
                self.end_start(branch)
                for child in children:
                    parts += [_as_read(part) for part in self.parts.get(child, [])[self.begins.get(child, 0) :]]
            case _:
                pass

    def _call(self, parts: list[_Open], operation: Call) -> None:
        index = len(self.calls)
        self.calls.append((operation, tuple(parts)))
        read = (Answer(index, carried=False),)
        self.made[id(operation.variable)] = read
        if isinstance(operation, Generate) and operation.reasoning is not None:
            self.made[id(operation.reasoning[1])] = read
        if isinstance(operation, Choose) or operation.params.n == 1:
            parts.append(Answer(index))


def _part(thing: object) -> _Open:
    match thing:
        case str():
            return AppendText(thing)
        case Variable() | Argument():
            return thing
        case _:
            raise AssertionError(f"a mark stands for {thing!r}")


def _as_read(part: _Open) -> _Open:
    return Answer(part.call, carried=False) if isinstance(part, Answer) else part
