"""What a program says, as frozen nodes: what ``gen``, ``select``, ``user``, ... return, joined by ``+``."""

from collections.abc import Awaitable, Callable, Collection, Iterator
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramet.lang.errors import ProgramStructureError
from ramet.runtime.protocol import SamplingParams
from ramet.runtime.protocol.reasoning import ReasoningFormat as ReasoningFormat

if TYPE_CHECKING:
    from ramet.lang.backends.base import ToolCall
    from ramet.lang.tool import Tool
    from ramet.lang.variables import Variable

Parse = Callable[[str], object]
"""Generated text -> the variable's value; raises ValueError where the text is no such value."""


class Node:
    """Base of all nodes: ``node + node``, ``"text" + node`` and ``node + "text"`` are sequences."""

    __slots__ = ()

    def __add__(self, other: "Expression") -> "Sequence":
        return Sequence((self, as_node(other)))

    def __radd__(self, other: "Expression") -> "Sequence":
        return Sequence((as_node(other), self))

    def __format__(self, spec: str) -> str:
        """Refused: an f-string would have it as text, and nothing of it would be done."""
        raise ProgramStructureError(
            f"{type(self).__name__.lower()} stands in an f-string, where it would only be shown; say it beside "
            'the text, as in "The answer is " + gen("answer")'
        )


Expression = str | Node
ToolsElsewhere = Callable[[Collection["ToolCall"]], Awaitable[Collection[str]]]
"""The calls of one round -> what the model is told of each."""


@dataclass(frozen=True, slots=True)
class Text(Node):
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Later(Node):
    """Says a variable's value as text once it is there."""

    variable: "Variable"


@dataclass(frozen=True, slots=True)
class Image(Node):
    url: str
    """A data: URL, or an http one where the backend fetches it."""


@dataclass(frozen=True, slots=True, eq=False)
class ToolUse:
    """Tools that one call may use on its way to its answer. Two are never equal: tools may do anything."""

    tools: "tuple[Tool, ...]"
    context: Context
    """Of the program's thread where the call was said: tools see its context variables."""
    choice: str = "auto"
    """As ToolOffer.choice, for the first round; afterwards the model is free."""
    on_error: str = "report"
    """report: the model is told what a tool raised. raise: the call fails with it."""
    max_rounds: int = 8
    """Rounds of tool calls; after them the model must answer."""
    elsewhere: "ToolsElsewhere | None" = None
    """Who is asked what calls give, where the tools themselves are not here."""


@dataclass(frozen=True, slots=True)
class Gen(Node):
    """One call that generates. Without a name its answer is only appended."""

    name: str | None
    params: SamplingParams
    given: frozenset[str] = frozenset()
    """The fields of ``params`` that the program gave; the others come from the run."""
    parse: Parse = str
    priority: int = 0
    tools: ToolUse | None = None
    lora: str | None = None
    """The adapter that the model answers with."""


@dataclass(frozen=True, slots=True)
class Select(Node):
    """One call that chooses among options. See SelectRequest for the fields."""

    name: str | None
    options: tuple[str, ...]
    normalization: str
    temperature: float = 0.0
    seed: int | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class RoleBegin(Node):
    role: str


@dataclass(frozen=True, slots=True)
class RoleEnd(Node):
    role: str


@dataclass(frozen=True, slots=True)
class VarScopeBegin(Node):
    """From here to its end, what is said becomes the variable ``name``."""

    name: str


@dataclass(frozen=True, slots=True)
class VarScopeEnd(Node):
    name: str


@dataclass(frozen=True, slots=True)
class SeparateReasoning(Node):
    """The answers inside ``body`` are split: ``name`` and ``name_reasoning_content``."""

    body: Node
    format: ReasoningFormat


@dataclass(frozen=True, slots=True)
class Sequence(Node):
    parts: tuple[Node, ...]


Leaf = Text | Later | Image | Gen | Select | RoleBegin | RoleEnd | VarScopeBegin | VarScopeEnd


def as_node(expression: object) -> Node:
    """Raises ProgramStructureError for what is neither text nor a node."""
    match expression:
        case str():
            # Of a subclass its plain text.
            return Text(str(expression))
        case Node():
            return expression
        case _:
            raise ProgramStructureError(
                f"a program is made of text and of what gen, select, user, ... return, not of "
                f"{type(expression).__name__}; convert it with str()"
            )


def leaves(node: Node) -> Iterator[tuple[Leaf, ReasoningFormat | None]]:
    """The nodes without children in the order they are said, and how their reasoning is to be separated."""
    # By hand instead of by recursion: a program that adds node to node in a loop nests as deep as it is long.
    stack: list[tuple[Node, ReasoningFormat | None]] = [(node, None)]
    while stack:
        top, reasoning = stack.pop()
        match top:
            case Sequence(parts):
                stack.extend((part, reasoning) for part in reversed(parts))
            case SeparateReasoning(body, format):
                stack.append((body, format))
            case (
                Text()
                | Later()
                | Image()
                | Gen()
                | Select()
                | RoleBegin()
                | RoleEnd()
                | VarScopeBegin()
                | VarScopeEnd()
            ):
                yield top, reasoning
            case _:
                raise ProgramStructureError(f"{type(top).__name__} is not a node that programs are made of")
