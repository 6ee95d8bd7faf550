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

_Open = Fixed | Answer | Argument | Variable
"""A part while the graph is built: variables are looked up once all calls are known."""


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """The last part of what a branch has said by some point. Prompts that begin alike share their links, so
    that a graph is not larger than its program."""

    before: "Link | None" = field(repr=False)
    open: _Open

    def back_to(self, end: "Link | None") -> "list[Link]":
        """The links behind ``end`` up to this one, in order."""
        links: list[Link] = []
        link: Link | None = self
        while link is not None and link is not end:
            links.append(link)
            link = link.before
        return links[::-1]


class Made:
    """What variables are made of. ``add`` while the graph is built, all else afterwards."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[_Open, ...]] = {}
        self._known: dict[int, tuple[Part, ...]] = {}

    def add(self, variable: Variable, parts: tuple[_Open, ...]) -> None:
        self._open[id(variable)] = parts

    def parts(self, part: _Open) -> tuple[Part, ...]:
        """What stands for the part in a prompt."""
        if not isinstance(part, Variable):
            return (part,)
        if id(part) not in self._known:
            self._known[id(part)] = self.resolved(self._open.get(id(part), ()))
        return self._known[id(part)]

    def resolved(self, parts: Sequence[_Open]) -> tuple[Part, ...]:
        found: list[Part] = []
        stack: list[_Open] = list(reversed(parts))
        while stack:
            part = stack.pop()
            if isinstance(part, Variable):
                # Of an earlier piece: its value was said, and is part of the text.
                stack.extend(reversed(self._open.get(id(part), ())))
            else:
                found.append(part)
        return tuple(found)

    def calls(self) -> dict[int, frozenset[int]]:
        """Of each variable, by its identity: the calls whose answers are in it."""
        return {
            variable: frozenset(part.call for part in self.resolved(parts) if isinstance(part, Answer))
            for variable, parts in self._open.items()
        }


@dataclass(frozen=True, slots=True)
class CallNode:
    """A call of the program."""

    index: int
    """Calls are numbered depth first."""
    operation: Call
    last: Link | None = field(repr=False)
    """The end of its prompt; None: there is none."""
    made: Made = field(repr=False)

    @property
    def prompt(self) -> tuple[Part, ...]:
        links = () if self.last is None else self.last.back_to(None)
        return tuple(part for link in links for part in self.made.parts(link.open))

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
    made: Made = field(repr=False, default_factory=Made)

    @property
    def made_of(self) -> Mapping[int, frozenset[int]]:
        """Of each variable, by its identity: the calls whose answers are in it."""
        return self.made.calls()

    def steps(self) -> Iterator[Link | CallNode]:
        """All links of prompts and all calls. A call comes behind its prompt, a link behind the one before it
        and behind the calls whose answers it has: so what is to be known of prompts is computed along them."""
        done: set[int] = set()
        for first in self.calls:
            stack: list[Link | CallNode] = [first]
            while stack:
                step = stack[-1]
                missing = [] if id(step) in done else [one for one in self._before(step) if id(one) not in done]
                if missing:
                    stack += missing
                    continue
                stack.pop()
                if id(step) not in done:
                    done.add(id(step))
                    yield step

    def in_order(self) -> Iterator[int]:
        """The calls, each after those that it needs."""
        return (step.index for step in self.steps() if isinstance(step, CallNode))

    def answers(self, link: Link) -> Iterator[Answer]:
        """Those that the link adds to the prompt."""
        return (part for part in self.made.parts(link.open) if isinstance(part, Answer))

    def levels(self) -> tuple[int, ...]:
        """Of each call how many calls have to be made before it, one after the other."""
        levels = [0] * len(self.calls)
        along: dict[Link | None, int] = {None: 0}
        for step in self.steps():
            if isinstance(step, CallNode):
                levels[step.index] = along[step.last]
            else:
                behind = [levels[answer.call] + 1 for answer in self.answers(step)]
                along[step] = max(along[step.before], *behind, 0)
        return tuple(levels)

    def goes_on_from(self) -> tuple[int | None, ...]:
        """Of each call the last one before it on its branch: its prompt begins with that one's and answer."""
        found: list[int | None] = [None] * len(self.calls)
        along: dict[Link | None, int | None] = {None: None}
        for step in self.steps():
            if isinstance(step, CallNode):
                found[step.index] = along[step.last]
            elif isinstance(step.open, Answer) and step.open.carried:
                along[step] = step.open.call
            else:
                along[step] = along[step.before]
        return tuple(found)

    def newly_said(self, call: CallNode) -> tuple[int | None, tuple[Part, ...]]:
        """The call that this one goes on from, and what its prompt has behind that one's and its answer."""
        links: list[Link] = []
        link = call.last
        before: int | None = None
        while link is not None and before is None:
            if isinstance(link.open, Answer) and link.open.carried:
                before = link.open.call
            else:
                links.append(link)
                link = link.before
        return before, tuple(part for link in reversed(links) for part in self.made.parts(link.open))

    def _before(self, step: Link | CallNode) -> list[Link | CallNode]:
        if isinstance(step, CallNode):
            return [] if step.last is None else [step.last]
        calls: list[Link | CallNode] = [self.calls[answer.call] for answer in self.answers(step)]
        return calls if step.before is None else [step.before, *calls]


def graph_of(piece: Piece, marks: Marks) -> Graph:
    """``marks``: what stands in the piece's texts for values that are not known."""
    builder = _Builder(piece.by_branch(), marks)
    for track in piece.tracks:
        if track.branch not in builder.ends:
            builder.walk(track)
    if piece.tracks:
        builder.end_start(piece.tracks[0].branch)
    made = builder.made
    calls = tuple(CallNode(index, call, last, made) for index, (call, last) in enumerate(builder.calls))
    start = () if builder.start is None else builder.start.back_to(None)
    return Graph(calls, made.resolved([link.open for link in start]), made)


@dataclass(slots=True)
class _Builder:
    tracks: "dict[Branch, Track]"
    marks: Marks
    calls: list[tuple[Call, Link | None]] = field(default_factory=list)
    ends: "dict[Branch, Link | None]" = field(default_factory=dict)
    """What each branch that was walked, or is being walked, has said."""
    begins: "dict[Branch, Link | None]" = field(default_factory=dict)
    """What its parent had said."""
    scopes: "dict[Branch, list[Link | None]]" = field(default_factory=dict)
    made: Made = field(default_factory=Made)
    start: Link | None = None
    _started: bool = False

    def walk(self, root: Track) -> None:
        """The branch and those below it, each as far as it goes before its parent goes on."""
        self._begin(root.branch, None)
        stack = [(root.branch, iter(root.operations))]
        while stack:
            branch, operations = stack[-1]
            operation = next(operations, None)
            if operation is None:
                stack.pop()
            elif isinstance(operation, Spawn):
                self.end_start(branch)
                for child in reversed(operation.children):
                    self._begin(child, self.ends[branch])
                    if child in self.tracks:
                        stack.append((child, iter(self.tracks[child].operations)))
            else:
                self._add(branch, operation)

    def end_start(self, branch: "Branch") -> None:
        """What the branch has said by now is what the program begins with, unless that was known before."""
        if not self._started:
            self.start, self._started = self.ends[branch], True

    def _begin(self, branch: "Branch", link: Link | None) -> None:
        self.ends[branch] = self.begins[branch] = link
        self.scopes[branch] = []

    def _say(self, branch: "Branch", parts: Sequence[_Open]) -> None:
        for part in parts:
            self.ends[branch] = Link(self.ends[branch], part)

    def _said(self, branch: "Branch", since: Link | None) -> list[_Open]:
        last = self.ends.get(branch)
        return [] if last is None else [link.open for link in last.back_to(since)]

    def _add(self, branch: "Branch", operation: Operation) -> None:
        match operation:
            case AppendText(text):
                self._say(branch, [_part(part) for part in self.marks.split(text)])
            case AppendValue(variable):
                self._say(branch, [variable])
            case AppendImage() | BeginRole() | EndRole():
                self._say(branch, [operation])
            case Generate() | Choose():
                self.end_start(branch)
                self._call(branch, operation)
            case OpenScope():
                self.scopes[branch].append(self.ends[branch])
            case CloseScope(variable):
                inside = self._said(branch, self.scopes[branch].pop())
                # The template around roles is no part of the value.
                parts = [part for part in inside if not isinstance(part, BeginRole | EndRole | AppendImage)]
                self.made.add(variable, tuple(map(_as_read, parts)))
            case Concatenate(children):
                self.end_start(branch)
                for child in children:
                    self._say(branch, [_as_read(part) for part in self._said(child, self.begins.get(child))])
            case _:
                pass

    def _call(self, branch: "Branch", operation: Call) -> None:
        index = len(self.calls)
        self.calls.append((operation, self.ends[branch]))
        read = (Answer(index, carried=False),)
        self.made.add(operation.variable, read)
        if isinstance(operation, Generate) and operation.reasoning is not None:
            self.made.add(operation.reasoning[1], read)
        if isinstance(operation, Choose) or operation.params.n == 1:
            self._say(branch, [Answer(index)])


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
