"""A compiled program as data, and what a server tells of its run.

    POST   /v1/programs                      ProgramRequest -> server-sent events, a ProgramEvent each, and
                                             at the end ``data: [DONE]``; with ``stream`` false a ProgramResult
    POST   /v1/programs/{id}/tool_results    ToolResults -> ToolResultsTaken
    GET    /v1/programs/{id}                 ProgramState; with ``?stream=true`` the events so far and those to
                                             come
    GET    /v1/programs                      ProgramList: those that run, and those that ran in the background
    DELETE /v1/programs/{id}                 ProgramCancelled: what still runs of it is ended, and what is kept
                                             of one that has ended is dropped

A program is branches, each a list of operations that are carried out in order. The first branch is the root;
``fork`` begins others where it stands. Nothing in it is code: what a tool does happens at the client, which is
told of the calls by an event and posts what they gave.
"""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from ramet.runtime.protocol.errors import InvalidRequestError
from ramet.runtime.protocol.generation import FinishReason
from ramet.runtime.protocol.sampling_params import SamplingParams
from ramet.runtime.protocol.wire import ContinuationScore, ErrorDetail, GenerateEvent

PROGRAMS_ROUTE = "/v1/programs"
PROGRAM_VERSION = 1
"""Of the form below. A server takes its own version alone."""
MAX_BRANCHES = 1024
MAX_OPERATIONS = 16384
"""Of all branches together."""
MAX_NAME_CHARS = 256
MAX_OPTIONS = 1024
MAX_TOOLS = 128
MAX_TOOL_ROUNDS = 64
REASONING_SUFFIX = "_reasoning_content"
"""A gen with ``reasoning`` makes two variables: its own, and the one with this behind its name."""


class _Operation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    pass


class SayText(_Operation, frozen=True, tag="text"):
    text: str


class SayValue(_Operation, frozen=True, tag="value"):
    """Says a variable as text, once it is there."""

    variable: str


class BeginRole(_Operation, frozen=True, tag="begin_role"):
    role: Literal["system", "user", "assistant", "tool", "developer"]


class EndRole(_Operation, frozen=True, tag="end_role"):
    role: Literal["system", "user", "assistant", "tool", "developer"]


class ReasoningMarks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model marks its reasoning inside an answer; see ``protocol.reasoning``."""

    begin: str
    end: str
    begins_inside: bool = False


class ToolDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    description: str = ""
    parameters: dict[str, Any]
    """JSON Schema of the arguments, an object."""


class OfferedTools(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tools that a gen may use on its way to its answer."""

    tools: list[ToolDescription]
    choice: str = "auto"
    """For the first round: auto, required, none, or a tool's name."""
    max_rounds: int = 8


class Gen(_Operation, frozen=True, tag="gen"):
    """Generates; the answer follows in the prompt, unless there are several (``params.n``)."""

    variable: str
    params: SamplingParams = SamplingParams()
    reasoning: ReasoningMarks | None = None
    tools: OfferedTools | None = None
    priority: int = 0


class Select(_Operation, frozen=True, tag="select"):
    """Chooses one of the options by their log probabilities; it follows in the prompt."""

    variable: str
    options: list[str]
    normalization: Literal["token_length", "greedy", "unconditional", "sum"] = "token_length"
    temperature: float = 0.0
    """0: the best one; above, one is drawn."""
    seed: int | None = None
    priority: int = 0


class BeginScope(_Operation, frozen=True, tag="begin_scope"):
    """From here to the end_scope that belongs to it, what is said becomes a variable. Scopes nest."""


class EndScope(_Operation, frozen=True, tag="end_scope"):
    variable: str


class Fork(_Operation, frozen=True, tag="fork"):
    """These branches go on from here, all at once."""

    branches: list[str]
    keep_errors: bool = False
    """One that fails leaves the others alone."""


class Join(_Operation, frozen=True, tag="join"):
    """What these branches said since they were forked follows here, in this order."""

    branches: list[str]
    keep_errors: bool = False
    """One that failed contributes nothing, instead of failing this branch."""


Operation = SayText | SayValue | BeginRole | EndRole | Gen | Select | BeginScope | EndScope | Fork | Join


class ProgramBranch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    operations: list[Operation]


class WireProgram(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen, validated on construction.

    Raises:
        InvalidRequestError: it is too large, of another version, or can never end: a branch that nobody forks,
            a variable that two operations make, or that is said where it can never have come.
    """

    version: int
    branches: list[ProgramBranch]
    """The first one is the root."""
    name: str = "program"

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_tree(self)
        _check_order(self)


class ProgramRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    program: WireProgram
    stream: bool = True
    events: Literal["variables", "calls"] = "variables"
    """variables: how each variable grows, and what it comes to be. calls: the increments of every call of the
    engine instead, as /generate and /score give them, for a client that has the language itself."""
    background: bool = False
    """It goes on whether or not its client stays, and its state is kept for a while after its end. With
    ``stream`` false the answer is that it has begun, a ProgramState."""
    cache_salt: str = ""
    timeout: float | None = None
    """Seconds for the whole program; None: the server's limit."""
    model: str | None = None


class ToolCalled(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    """Of the call."""
    content: str
    """What the model is told: the result, or what went wrong."""


class ToolResults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the calls of one ``tool_calls`` event gave, all of them."""

    variable: str
    """Of the gen that calls."""
    results: list[ToolResult]


class ToolResultsTaken(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    variable: str


class ProgramCancelled(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    cancelled: bool = True
    """It still ran."""
    deleted: bool = False
    """It had ended, and nothing is kept of it any more."""


class ProgramStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="program.started"):
    """The first event."""

    id: str
    model: str
    version: int = PROGRAM_VERSION


class VariableDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="variable.delta"):
    """How a variable's text goes on. That of a gen with several answers comes with its end alone."""

    variable: str
    text: str


class VariableDone(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="variable.done"
):
    """A variable is there. A list has one of everything for each answer."""

    variable: str
    value: str | list[str]
    finish_reason: FinishReason | list[FinishReason] | None = None
    """Of a gen."""
    index: int | None = None
    """Of a select: which option."""
    scores: list[float] | None = None
    """Of a select, in the options' order."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


class VariableFailed(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="variable.failed"):
    """A variable will not come."""

    variable: str
    error: ErrorDetail


class ToolCallsMade(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_calls"):
    """The program waits for what these give: post it as ToolResults."""

    variable: str
    calls: list[ToolCalled]


class CallDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="call.delta"):
    """An increment of the engine. ``number``: which of the variable's calls, from 0 on: a gen with tools makes
    several, as does a select that scores its options without the prompt as well."""

    variable: str
    number: int
    event: GenerateEvent


class CallScores(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="call.scores"):
    variable: str
    number: int
    scores: list[ContinuationScore]


class CallFailed(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="call.failed"):
    variable: str
    number: int
    error: ErrorDetail


class ProgramDone(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="program.done"
):
    """The last event. ``failed``: some variable did not come, and ``error`` is the first reason."""

    id: str
    status: Literal["completed", "failed", "cancelled"]
    error: ErrorDetail | None = None


ProgramEvent = (
    ProgramStarted
    | VariableDelta
    | VariableDone
    | VariableFailed
    | ToolCallsMade
    | CallDelta
    | CallScores
    | CallFailed
    | ProgramDone
)


ProgramStatus = Literal["running", "waiting", "completed", "failed", "cancelled"]
"""waiting: for what its tools give, which its client has to post; other branches of it may go on meanwhile."""


class ProgramSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One of a client's programs."""

    id: str
    name: str
    model: str
    status: ProgramStatus
    background: bool
    created_at: int
    """Unix time, seconds."""
    ended_at: int | None


class ProgramList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[ProgramSummary]
    """The oldest first."""
    object: Literal["list"] = "list"


class ProgramState(ProgramSummary, frozen=True, kw_only=True):
    """What a program's events have said so far, folded."""

    variables: dict[str, VariableDone]
    partial: dict[str, str]
    """Of the variables that grow: their text so far."""
    failures: dict[str, ErrorDetail]
    tool_calls: list[ToolCallsMade]
    """Those that it waits for."""
    error: ErrorDetail | None = None
    """Why it failed."""


class ProgramResult(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run at its end: its events, folded."""

    id: str
    model: str
    status: Literal["completed", "failed", "cancelled"]
    variables: dict[str, VariableDone]
    failures: dict[str, ErrorDetail]
    error: ErrorDetail | None = None


def in_causal_order(program: WireProgram) -> Iterator[tuple[ProgramBranch, int]]:
    """Each operation as (branch, position), in an order in which everything comes after what it waits for.

    Ends early where what is left waits for something that never comes.
    """
    by_name = {branch.name: branch for branch in program.branches}
    done = dict.fromkeys(by_name, 0)
    made: set[str] = set()
    waiting: dict[str, list[str]] = {}
    """What branches wait for (a variable, or the end of a branch) -> the branches."""
    ready = [program.branches[0].name]
    while ready:
        name = ready.pop()
        branch = by_name[name]
        while done[name] < len(branch.operations):
            operation = branch.operations[done[name]]
            if (lacking := _lacking(operation, made, done, by_name)) is not None:
                waiting.setdefault(lacking, []).append(name)
                break
            yield branch, done[name]
            done[name] += 1
            if isinstance(operation, Fork):
                ready += reversed(operation.branches)
            for variable in variables_of(operation):
                made.add(variable)
                ready += waiting.pop(f"variable {variable}", ())
        else:
            ready += waiting.pop(f"branch {name}", ())


def variables_of(operation: Operation) -> tuple[str, ...]:
    """Those that the operation makes."""
    match operation:
        case Gen(variable=variable, reasoning=reasoning):
            return (variable,) if reasoning is None else (variable, variable + REASONING_SUFFIX)
        case Select(variable=variable) | EndScope(variable=variable):
            return (variable,)
        case _:
            return ()


def _lacking(
    operation: Operation, made: set[str], done: dict[str, int], by_name: dict[str, ProgramBranch]
) -> str | None:
    match operation:
        case SayValue(variable=variable) if variable not in made:
            return f"variable {variable}"
        case Join(branches=branches):
            for name in branches:
                if done[name] < len(by_name[name].operations):
                    return f"branch {name}"
    return None


def _refused(where: str, why: str) -> InvalidRequestError:
    field = f"program.{where}" if where else "program"
    return InvalidRequestError(f"{field} {why}", field=field)


def _check_sizes(program: WireProgram) -> None:
    if program.version != PROGRAM_VERSION:
        raise _refused("version", f"is {program.version}; this server takes version {PROGRAM_VERSION}")
    if not 1 <= len(program.branches) <= MAX_BRANCHES:
        raise _refused("branches", f"has {len(program.branches)} entries; it must have 1 to {MAX_BRANCHES}")
    total = sum(len(branch.operations) for branch in program.branches)
    if total > MAX_OPERATIONS:
        raise _refused("branches", f"have {total} operations; at most {MAX_OPERATIONS} are taken")
    names = [program.name, *(branch.name for branch in program.branches)]
    for index, branch in enumerate(program.branches):
        num_open = 0
        for position, operation in enumerate(branch.operations):
            where = f"branches[{index}].operations[{position}]"
            names += variables_of(operation)
            num_open += isinstance(operation, BeginScope) - isinstance(operation, EndScope)
            if num_open < 0:
                raise _refused(where, "ends a scope, and none is open")
            _check_operation(operation, where)
        if num_open:
            raise _refused(f"branches[{index}]", f"has {num_open} scopes that it does not end")
    for name in names:
        if not 1 <= len(name) <= MAX_NAME_CHARS + len(REASONING_SUFFIX) or not name.isprintable():
            raise _refused(
                "", f"has the name {name[:80]!r}; names are 1 to {MAX_NAME_CHARS} printable characters"
            )


def _check_operation(operation: Operation, where: str) -> None:
    match operation:
        case Select(options=options) if not 1 <= len(options) <= MAX_OPTIONS:
            raise _refused(where, f"has {len(options)} options; it must have 1 to {MAX_OPTIONS}")
        case Gen(tools=OfferedTools(tools=tools, choice=choice, max_rounds=max_rounds)):
            names = [tool.name for tool in tools]
            if not 1 <= len(tools) <= MAX_TOOLS or len(set(names)) < len(names):
                raise _refused(
                    f"{where}.tools",
                    f"has {len(tools)} tools; it must have 1 to {MAX_TOOLS} of different names",
                )
            if choice not in ("auto", "required", "none", *names):
                raise _refused(
                    f"{where}.tools.choice",
                    f"is {choice[:80]!r}; it must be auto, required, none or a tool's name",
                )
            if not 1 <= max_rounds <= MAX_TOOL_ROUNDS:
                raise _refused(
                    f"{where}.tools.max_rounds", f"is {max_rounds}; it must be from 1 to {MAX_TOOL_ROUNDS}"
                )


def _check_tree(program: WireProgram) -> None:
    """Every branch but the root is forked once, and joined only by the branch that forked it."""
    names = [branch.name for branch in program.branches]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise _refused("branches", f"has two of the name {twice[:80]!r}; rename one")
    parents: dict[str, str] = {names[0]: ""}
    for index, branch in enumerate(program.branches):
        for position, operation in enumerate(branch.operations):
            where = f"branches[{index}].operations[{position}]"
            if isinstance(operation, Fork):
                _adopt(operation.branches, branch.name, parents, frozenset(names), where)
            elif isinstance(operation, Join):
                for name in operation.branches:
                    if parents.get(name) != branch.name:
                        raise _refused(where, f"joins {name[:80]!r}, which this branch has not forked before")
    for index, name in enumerate(names):
        if name not in parents:
            raise _refused(f"branches[{index}]", f"({name[:80]!r}) is forked by no branch")


def _adopt(forked: list[str], parent: str, parents: dict[str, str], names: frozenset[str], where: str) -> None:
    for name in forked:
        if name not in names:
            raise _refused(where, f"forks {name[:80]!r}, which there is not")
        if name in parents:
            raise _refused(where, f"forks {name[:80]!r}, which is the root or forked elsewhere")
        parents[name] = parent


def _check_order(program: WireProgram) -> None:
    made = [
        variable
        for branch in program.branches
        for operation in branch.operations
        for variable in variables_of(operation)
    ]
    if len(set(made)) < len(made):
        seen: set[str] = set()
        twice = next(name for name in made if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _refused("", f"makes the variable {twice[:80]!r} twice; give each operation its own name")
    reached = sum(1 for _ in in_causal_order(program))
    if reached < sum(len(branch.operations) for branch in program.branches):
        raise _refused("", "waits for a variable, or for a branch, that never comes")
