"""Programs that came as data (``protocol.programs``), run where the model is: what servers are handed for it.

They are carried out as those of this process are: the same branches, the same prompts, the same calls.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

import msgspec

from ramet.lang.backends.base import ToolCall
from ramet.lang.backends.local import LocalBackend
from ramet.lang.backends.token_engine import TokenEngine
from ramet.lang.compiler.pieces import Compilation, Pace
from ramet.lang.compiler.shared_calls import SharedCalls
from ramet.lang.errors import BranchError, ProgramCancelledError, ProgramError
from ramet.lang.interpreter import Branch, Common, Execution, ForkGroup
from ramet.lang.ir import (
    Gen,
    Later,
    Node,
    ReasoningFormat,
    RoleBegin,
    RoleEnd,
    Select,
    SeparateReasoning,
    Text,
    ToolUse,
    VarScopeBegin,
    VarScopeEnd,
)
from ramet.lang.loop_thread import RunningLoop
from ramet.lang.options import Sampling
from ramet.lang.outline import Outline, Terms
from ramet.lang.signals import finish_async
from ramet.lang.telling import TellingEngine
from ramet.lang.tool import Tool
from ramet.lang.variables import Variable
from ramet.runtime.protocol import (
    InvalidRequestError,
    RametError,
    SamplingParams,
    programs,
    wire,
)

Tell = Callable[[programs.ProgramEvent], None]
ALL_FIELDS = frozenset(SamplingParams.__struct_fields__)


class ProgramRunner:
    """Runs programs on one model. Its engine only says what model that is; each program has its own."""

    def __init__(self, engine: TokenEngine) -> None:
        self._backend = LocalBackend(engine, name=f"the model {engine.info.model!r}")

    def start(
        self,
        program: programs.WireProgram,
        engine: TokenEngine,
        tell: Tell,
        *,
        program_id: str,
        cache_salt: str = "",
        tells_calls: bool = False,
    ) -> "ServedProgram":
        """Checks it whole; nothing of it runs before its ``run``. On the event loop that it is to run on.

        ``tell`` is called there with each event but the first and the last. ``tells_calls``: of what the engine
        gives instead of variables.

        Raises:
            InvalidRequestError: the model cannot do it, or its roles do not follow one another.
        """
        return ServedProgram(self._backend, program, engine, tell, (program_id, cache_salt, tells_calls))


class ServedProgram:
    """One run. On one event loop only."""

    def __init__(
        self,
        backend: LocalBackend,
        program: programs.WireProgram,
        engine: TokenEngine,
        tell: Tell,
        options: tuple[str, str, bool],
    ) -> None:
        program_id, cache_salt, tells_calls = options
        self._tell = tell
        self._tools_asked: dict[str, tuple[tuple[str, ...], asyncio.Future[list[str]]]] = {}
        self._cancelled: str | None = None
        calls: dict[tuple[str, int], str] = {}
        shared = SharedCalls(backend.capabilities)
        if tells_calls:
            # Whoever is told of calls looks for each by itself, also for those that another one answers.
            engine = telling = TellingEngine(engine, tell, calls)
            shared = SharedCalls(backend.capabilities, telling.share)
        self._execution = Execution(
            program.name,
            program_id,
            backend.on(engine),
            RunningLoop(),
            Compilation(Pace.PATIENT),
            Common(shared, None),
            cache_salt=cache_salt,
        )
        root = Outline(self._execution.root, Terms(backend.capabilities, Sampling()))
        self._said = _Said(root, program, self._ask_tools)
        calls.update(self._said.calls)
        self._tells_variables = not tells_calls

    async def run(self) -> programs.ProgramDone:
        """To its end. Cancelling it ends everything that runs."""
        variables = self._said.variables
        self._execution.pieces.release(whole=True)
        watchers = []
        if self._tells_variables:
            watchers = [asyncio.create_task(self._watch(name, one)) for name, one in variables.items()]
        try:
            await finish_async(self._execution.becoming_quiet())
            await asyncio.gather(*watchers)
        except asyncio.CancelledError:
            if self._cancelled is None:
                self._execution.cancel("its time was over")
            await finish_async(self._execution.becoming_quiet())
            raise
        finally:
            for watcher in watchers:
                watcher.cancel()
        return self._end()

    def cancel(self, reason: str) -> None:
        """Ends what runs; ``run`` then returns."""
        self._cancelled = reason
        self._execution.cancel(reason)

    def answer_tools(self, results: programs.ToolResults) -> None:
        """What the calls gave that a gen waits for.

        Raises:
            InvalidRequestError: it waits for none, or for others.
        """
        waiting = self._tools_asked.get(results.variable)
        if waiting is None:
            raise InvalidRequestError(
                f"variable {results.variable[:80]!r} waits for no tool results", field="variable"
            )
        ids, answered = waiting
        given = {result.id: result.content for result in results.results}
        if len(given) < len(results.results) or set(given) != set(ids):
            of_calls = f"for the calls {', '.join(sorted(given))[:200]}" if given else "for no call"
            raise InvalidRequestError(
                f"results are {of_calls}; give one for each of {', '.join(ids)}",
                field="results",
            )
        del self._tools_asked[results.variable]
        if not answered.done():
            answered.set_result([given[one] for one in ids])

    async def _ask_tools(self, variable: str, calls: Collection[ToolCall]) -> Collection[str]:
        ids = tuple(call.id for call in calls)
        answered: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._tools_asked[variable] = ids, answered
        called = [programs.ToolCalled(id=call.id, name=call.name, arguments=call.arguments) for call in calls]
        self._tell(programs.ToolCallsMade(variable=variable, calls=called))
        try:
            return await answered
        finally:
            self._tools_asked.pop(variable, None)

    async def _watch(self, name: str, variable: Variable) -> None:
        if variable.feed is not None:
            try:
                async for chunk in variable.feed:
                    if chunk.text:
                        self._tell(programs.VariableDelta(variable=name, text=chunk.text))
            except ProgramError:
                pass  # The variable has it as well, and is told of next.
        await finish_async(variable.settling())
        if (failure := variable.failure) is not None:
            self._tell(programs.VariableFailed(variable=name, error=error_of(failure.error)))
        else:
            self._tell(_done(name, variable))

    def _end(self) -> programs.ProgramDone:
        program_id = self._execution.program_id
        if self._cancelled is not None:
            return programs.ProgramDone(id=program_id, status="cancelled")
        errors: list[ProgramError] = self._execution.undelivered()
        errors += [
            variable.failure.error
            for name, variable in self._said.variables.items()
            if variable.failure is not None and not self._said.excused(name)
        ]
        if not errors:
            return programs.ProgramDone(id=program_id, status="completed")
        causes = [one for one in errors if not isinstance(one, BranchError | ProgramCancelledError)]
        return programs.ProgramDone(id=program_id, status="failed", error=error_of((causes or errors)[0]))


AskTools = Callable[[str, Collection[ToolCall]], Awaitable[Collection[str]]]
"""The variable of a gen, and its calls -> what the model is told of each."""


class _Said:
    """A program's outlines, with everything said that the data say.

    Raises:
        InvalidRequestError: it cannot be said; nothing of it was done.
    """

    def __init__(self, root: Outline, program: programs.WireProgram, ask_tools: AskTools) -> None:
        self.variables: dict[str, Variable] = {}
        self.calls: dict[tuple[str, int], str] = {}
        """A call's branch and step -> the variable that it makes."""
        self._ask_tools = ask_tools
        self._outlines = {program.branches[0].name: root}
        self._groups: dict[str, ForkGroup] = {}
        self._makers: dict[str, str] = {}
        self._steps: dict[str, int] = {program.branches[0].name: 0}
        scopes = {branch.name: _scope_names(branch.operations) for branch in program.branches}
        indices = {branch.name: index for index, branch in enumerate(program.branches)}
        for branch, position in programs.in_causal_order(program):
            try:
                self._say(branch.name, branch.operations[position], scopes[branch.name].get(position, ""))
            except ProgramError as error:
                where = f"program.branches[{indices[branch.name]}].operations[{position}]"
                raise InvalidRequestError(f"{where}: {error.message}", field=where) from error

    def excused(self, variable: str) -> bool:
        """Its failure is one that the program keeps."""
        group = self._groups.get(self._makers[variable])
        return group is not None and group.keep_errors

    def _say(self, branch: str, operation: programs.Operation, scope: str) -> None:
        outline = self._outlines[branch]
        match operation:
            case programs.Fork():
                self._fork(branch, operation)
            case programs.Join(branches=joined, keep_errors=keep_errors):
                children = [self._outlines[name] for name in joined]
                outline.concatenate(children, keep_errors=keep_errors)
            case _:
                outline.say(self._node(operation, scope))
        if isinstance(operation, programs.Gen | programs.Select):
            self.calls[outline.branch.path, self._steps[branch]] = operation.variable
            self._steps[branch] += 1
        for name in programs.variables_of(operation):
            variable = outline.find(name)
            assert variable is not None
            self.variables[name] = variable
            self._makers[name] = branch

    def _node(self, operation: programs.Operation, scope: str) -> Node:
        match operation:
            case programs.SayText(text=text):
                return Text(text)
            case programs.SayValue(variable=name):
                return Later(self.variables[name])
            case programs.BeginRole(role=role):
                return RoleBegin(role)
            case programs.EndRole(role=role):
                return RoleEnd(role)
            case programs.BeginScope():
                return VarScopeBegin(scope)
            case programs.EndScope(variable=name):
                return VarScopeEnd(name)
            case programs.Select():
                return Select(
                    operation.variable,
                    tuple(operation.options),
                    operation.normalization,
                    operation.temperature,
                    operation.seed,
                    operation.priority,
                )
            case programs.Gen():
                return self._gen(operation)
            case _:
                raise AssertionError("forks and joins say nothing")

    def _gen(self, operation: programs.Gen) -> Node:
        tools = None if operation.tools is None else self._tool_use(operation.variable, operation.tools)
        gen = Gen(operation.variable, operation.params, ALL_FIELDS, priority=operation.priority, tools=tools)
        if operation.reasoning is None:
            return gen
        marks = operation.reasoning
        return SeparateReasoning(gen, ReasoningFormat(marks.begin, marks.end, marks.begins_inside))

    def _tool_use(self, variable: str, offered: programs.OfferedTools) -> ToolUse:
        tools = tuple(
            Tool(tool.name, tool.description, tool.parameters, _not_here, _Arguments) for tool in offered.tools
        )

        async def ask(calls: Collection[ToolCall]) -> Collection[str]:
            return await self._ask_tools(variable, calls)

        return ToolUse(
            tools,
            contextvars.copy_context(),
            choice=offered.choice,
            max_rounds=offered.max_rounds,
            elsewhere=ask,
        )

    def _fork(self, branch: str, fork: programs.Fork) -> None:
        outline = self._outlines[branch]
        group = ForkGroup(keep_errors=fork.keep_errors)
        group.excused = fork.keep_errors

        def begin(paths: Iterator[str]) -> Sequence[Branch]:
            group.branches = tuple(
                Branch(outline.branch.execution, path, group)
                for _, path in zip(fork.branches, paths, strict=False)
            )
            return group.branches

        for name, child in zip(fork.branches, outline.spawn(begin), strict=True):
            self._outlines[name] = child
            self._groups[name] = group
            self._steps[name] = self._steps[branch]


class _Arguments(msgspec.Struct):
    """Of a tool that is elsewhere: not looked at here."""


def _not_here(**_: object) -> object:
    raise AssertionError("the client runs its tools")


def _scope_names(operations: Sequence[programs.Operation]) -> dict[int, str]:
    """Position of each scope's begin -> the variable that its end makes."""
    names: dict[int, str] = {}
    begun: list[int] = []
    for position, operation in enumerate(operations):
        match operation:
            case programs.BeginScope():
                begun.append(position)
            case programs.EndScope(variable=variable):
                names[begun.pop()] = variable
    return names


def error_of(error: BaseException) -> wire.ErrorDetail:
    """How a program's error is told: what the engine said where it was the engine's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, RametError) and not isinstance(cause, ProgramError):
            return wire.error_detail(cause)
        cause = cause.__cause__
    message = error.message if isinstance(error, ProgramError) else str(error)
    return wire.ErrorDetail(message=message, code="program_failed")


def _done(name: str, variable: Variable) -> programs.VariableDone:
    value, meta = variable.value(), variable.meta()
    if isinstance(value, list):
        reasons = [one["finish_reason"] for one in meta] if isinstance(meta, list) else None
        return programs.VariableDone(variable=name, value=[str(one) for one in value], finish_reason=reasons)
    known = meta if isinstance(meta, dict) else {}
    scores = known.get("scores")
    return programs.VariableDone(
        variable=name,
        value=str(value),
        finish_reason=known.get("finish_reason"),
        index=known.get("index"),
        scores=None if scores is None else [wire.to_finite(score) for score in scores],
        prompt_tokens=known.get("prompt_tokens"),
        cached_tokens=known.get("cached_tokens"),
        completion_tokens=known.get("completion_tokens"),
    )
