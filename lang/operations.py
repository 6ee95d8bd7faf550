"""What a branch does, one operation after the other, as its outline has put it: data only.

Every operation that somebody may wait for has a variable, which is settled whatever happens.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramet.lang.backends.base import SelectRequest, ToolCall, ToolSpec
from ramet.lang.ir import Parse, ReasoningFormat, ToolUse
from ramet.lang.variables import TextFeed, Variable
from ramet.runtime.protocol import ProgramTag, SamplingParams

if TYPE_CHECKING:
    from ramet.lang.compiler.hoist import PrefixGate
    from ramet.lang.interpreter import Branch


@dataclass(frozen=True, slots=True)
class AppendText:
    text: str


@dataclass(frozen=True, slots=True)
class AppendValue:
    """The variable's value as text, once it is there."""

    variable: Variable


@dataclass(frozen=True, slots=True)
class AppendImage:
    url: str


@dataclass(frozen=True, slots=True)
class BeginRole:
    role: str


@dataclass(frozen=True, slots=True)
class EndRole:
    role: str


@dataclass(frozen=True, slots=True)
class ToolRound:
    """An assistant's turn that calls tools, from the calls on, and what they gave; its next turn is open."""

    results: tuple[tuple[ToolCall, str], ...]


@dataclass(frozen=True, slots=True)
class Generate:
    variable: Variable
    params: SamplingParams
    tag: ProgramTag
    parse: Parse
    priority: int = 0
    reasoning: tuple[ReasoningFormat, Variable] | None = None
    """How to split the answer, and where its reasoning goes."""
    tools: ToolUse | None = None
    lora: str | None = None
    """The adapter that the model answers with."""


@dataclass(frozen=True, slots=True)
class Choose:
    variable: Variable
    request: SelectRequest


@dataclass(frozen=True, slots=True)
class OpenScope:
    """From here on what is said is remembered, until CloseScope."""


@dataclass(frozen=True, slots=True)
class CloseScope:
    variable: Variable


@dataclass(frozen=True, slots=True)
class Spawn:
    """The children go on from here."""

    children: "tuple[Branch, ...]"


@dataclass(frozen=True, slots=True)
class Concatenate:
    """What the children said since they were spawned follows here, in their order."""

    children: "tuple[Branch, ...]"
    keep_errors: bool = False
    """A child that failed contributes nothing, instead of failing this branch."""


@dataclass(frozen=True, slots=True)
class Report:
    """Tells what the branch has said up to here: its text, or its messages."""

    variable: Variable
    what: str
    """text, messages or nothing."""


@dataclass(frozen=True, slots=True)
class EndFeed:
    """Whoever watches the branch's text through this feed has seen enough."""

    feed: TextFeed


@dataclass(frozen=True, slots=True)
class AwaitPrefix:
    """The programs of a batch wait here while what they share is computed once."""

    gate: "PrefixGate"
    start: "tuple[AppendText | AppendImage | BeginRole | EndRole, ...]" = ()
    """What this program begins with, as far as it is known."""
    tools: tuple[ToolSpec, ...] = ()
    """What its first call offers: a prompt may tell of them before all else."""


@dataclass(frozen=True, slots=True)
class Prewarm:
    """What was said up to here is computed in the background, since a call is expected to follow."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Not carried out, since nobody reads what comes of it."""

    operations: "tuple[Operation, ...]"


Operation = (
    AppendText
    | AppendValue
    | AppendImage
    | BeginRole
    | EndRole
    | Generate
    | Choose
    | OpenScope
    | CloseScope
    | Spawn
    | Concatenate
    | Report
    | EndFeed
    | AwaitPrefix
    | Prewarm
    | Drop
)
