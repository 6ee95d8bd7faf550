"""The loop in which a model calls tools until it answers, written into the program round by round."""

import inspect
import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from ramet.lang.api import PlainGenOptions, assistant, gen
from ramet.lang.backends.tool_json import calls_schema
from ramet.lang.errors import GenerationError, ProgramStructureError, ToolError, UnsupportedError
from ramet.lang.ir import RoleBegin, RoleEnd
from ramet.lang.state import ProgramState
from ramet.lang.tool import Tool, check_on_error, error_text, result_text, tools_by_name
from ramet.runtime.protocol import InvalidRequestError


def use_tools(
    s: ProgramState,
    name: str,
    tools: Sequence[Callable[..., Any] | Tool],
    *,
    max_rounds: int = 8,
    on_error: str = "report",
    **options: Unpack[PlainGenOptions],
) -> str:
    """Lets the model call tools until it answers; the answer becomes the variable ``name`` and is returned.

    Each call is an assistant message, constrained to the tools' schema, and its result a tool message. The
    model has to know of the tools: say ``system(describe_tools(tools))`` before. In the last round it must
    answer.

    Args:
        on_error: "report": the model is told what a tool raised; "raise": it is raised, as ToolError.
        options: as for ``gen``.

    Raises:
        UnsupportedError: the backend has no tools.
        ToolError: a tool failed and errors are to be raised.
    """
    rounds = _rounds(s, name, tools_by_name(tools), max_rounds, on_error, dict(options))
    try:
        step = next(rounds)
        while True:
            step = rounds.send(step.run() if isinstance(step, _Invocation) else s[step])
    except StopIteration as end:
        return str(end.value)


async def ause_tools(
    s: ProgramState,
    name: str,
    tools: Sequence[Callable[..., Any] | Tool],
    *,
    max_rounds: int = 8,
    on_error: str = "report",
    **options: Unpack[PlainGenOptions],
) -> str:
    """As ``use_tools``, for async programs; tools may be ``async def`` too."""
    rounds = _rounds(s, name, tools_by_name(tools), max_rounds, on_error, dict(options))
    try:
        step = next(rounds)
        while True:
            if isinstance(step, _Invocation):
                step = rounds.send(await step.arun())
            else:
                step = rounds.send(await s.aio.get(step))
    except StopIteration as end:
        return str(end.value)


@dataclass(frozen=True, slots=True)
class _Invocation:
    """A tool to be run with arguments. Running it returns the result, or the Exception that it raised."""

    tool: Tool
    arguments: object

    def run(self) -> object:
        try:
            result = self.tool.run(self.arguments)
        except Exception as error:
            # Told to the model, or raised: the loop decides.
            return error
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise ProgramStructureError(f"tool {self.tool.name} is async; use `await ause_tools(...)`")
        return result

    async def arun(self) -> object:
        try:
            result = self.tool.run(self.arguments)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:
            # Told to the model, or raised: the loop decides.
            return error


def _rounds(
    s: ProgramState, name: str, tools: dict[str, Tool], max_rounds: int, on_error: str, options: dict[str, Any]
) -> Generator[str | _Invocation, Any, str]:
    """Yields a variable whose value it needs, or a tool that is to be run; returns the answer."""
    check_on_error(on_error, "on_error")
    specs = [tool.spec() for tool in tools.values()]
    if not isinstance(max_rounds, int) or max_rounds < 1:
        raise InvalidRequestError(f"max_rounds is {max_rounds!r}; it must be at least 1", field="max_rounds")
    capabilities = s.capabilities
    if not capabilities.tools:
        raise UnsupportedError(
            f"{capabilities.name} has no tools; call them in the program and say their results"
        )
    for left in reversed(range(max_rounds)):
        schema = calls_schema(specs if left else [])
        call = f"{name}_call"
        s += assistant(gen(call, json_schema=schema, **options))
        document = _document((yield call), call)
        if "answer" in document:
            s.set_var(name, document["answer"])
            return str(document["answer"])
        tool = tools[document["name"]]
        result = yield _Invocation(tool, document["arguments"])
        if isinstance(result, Exception) and on_error == "raise":
            message = f"tool {tool.name} failed: {type(result).__name__}: {result}"
            raise ToolError(message, variable=tool.name) from result
        told = error_text(result) if isinstance(result, Exception) else result_text(result)
        s += RoleBegin("tool") + told + RoleEnd("tool")
    raise AssertionError("the last round ends with an answer")


def _document(text: str, variable: str) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise GenerationError(
            f"the call {text[:80]!r} is not whole; raise max_tokens", variable=variable
        ) from error
    return document
