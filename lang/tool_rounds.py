"""A call with tools: rounds in which the model calls and is told the results, until it answers."""

import asyncio
import inspect
import json
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from ramet.lang.backends.base import GenerateDelta, Prompt, ToolCall, ToolOffer, ToolPrompt
from ramet.lang.calls import Answer, prepare, settle, stream_out
from ramet.lang.errors import ToolError, UnsupportedError
from ramet.lang.ir import ToolUse
from ramet.lang.loop_thread import bodies_loop
from ramet.lang.operations import AppendText, Generate, ToolRound
from ramet.lang.reasoning import ReasoningSplitter
from ramet.lang.tool import Tool, described, error_text, result_text
from ramet.lang.variables import Meta


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool call gave: its result, or the Exception that it raised."""

    call: ToolCall
    result: object
    told: str
    """What the model is told."""

    def meta(self) -> Meta:
        failed = isinstance(self.result, Exception)
        return {
            "id": self.call.id,
            "name": self.call.name,
            "arguments": self.call.arguments,
            "result": None if failed else self.result,
            "error": self.result if failed else None,
        }


class Watcher(Protocol):
    """Whoever reads all that the branch says, as it is said."""

    def show(self) -> None:
        """The prompt is as the model will read it, or has read it."""
        ...

    def show_delta(self, delta: GenerateDelta) -> None:
        """An increment of an answer, which the prompt has once it has ended."""
        ...


async def run_with_tools(
    prompt: Prompt, operation: Generate, use: ToolUse, watcher: Watcher
) -> list[AppendText | ToolRound]:
    """Settles the operation's variables; returns what the prompt has got.

    Only the last round's text is the variable's. It is streamed from where it is known that no call can come
    any more, which for some backends is only the round's end. Raises ToolError where a tool fails and errors
    are to be raised.
    """
    if not isinstance(prompt, ToolPrompt):
        raise UnsupportedError(
            f"{type(prompt).__name__} says that it has tools, and takes none; call them in the program"
        )
    specs = tuple(tool.spec() for tool in use.tools)
    said: list[AppendText | ToolRound] = []
    metas: list[Meta] = []
    outcomes: list[Outcome] = []
    choice = use.choice
    for left in reversed(range(use.max_rounds + 1)):
        offer = ToolOffer(tools=specs, choice=choice if left else "none")
        prompt.offer_tools(offer)
        prepare(prompt, operation)
        watcher.show()
        shown = _Shown(operation, is_last=offer.choice == "none")
        answer, calls = await _answer(prompt, operation, shown, watcher)
        if answer.text:
            said.append(AppendText(answer.text))
        if not calls:
            answer.more["tool_calls"] = tuple(outcome.meta() for outcome in outcomes)
            answer.more["rounds"] = tuple(metas)
            shown.finish(answer)
            break
        metas.append(answer.meta(operation.tag))
        round_outcomes = await _run_all(use, calls)
        outcomes += round_outcomes
        results = tuple((outcome.call, outcome.told) for outcome in round_outcomes)
        prompt.append_tool_results(results)
        said.append(ToolRound(results))
        choice = "auto"
    else:
        raise UnsupportedError("the model was offered no tools, and called one; the backend does not hold it")
    return said


class _Shown:
    """What whoever reads the variable sees of a round's answer: nothing before it is certain to be the last."""

    def __init__(self, operation: Generate, *, is_last: bool) -> None:
        self._operation = operation
        self._splitter = None if operation.reasoning is None else ReasoningSplitter(operation.reasoning[0])
        self._is_last = is_last
        self._held: list[GenerateDelta] = []

    def push(self, delta: GenerateDelta) -> None:
        self._held.append(delta)
        self._is_last = self._is_last or delta.is_answer
        if self._is_last:
            self._release()

    def finish(self, answer: Answer) -> None:
        """It was the last one."""
        self._release()
        settle(self._operation, self._splitter, [answer])

    def _release(self) -> None:
        for delta in self._held:
            stream_out(self._operation, self._splitter, delta)
        self._held.clear()


async def _answer(
    prompt: ToolPrompt, operation: Generate, shown: _Shown, watcher: Watcher
) -> tuple[Answer, tuple[ToolCall, ...]]:
    answer = Answer()
    stream = prompt.generate(operation.params, tag=operation.tag, priority=operation.priority)
    try:
        async for delta in stream:
            answer.add(delta)
            shown.push(delta)
            watcher.show_delta(delta)
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
    answer.finish_reason()
    watcher.show()
    return answer, () if answer.last is None else answer.last.tool_calls


async def _run_all(use: ToolUse, calls: tuple[ToolCall, ...]) -> list[Outcome]:
    """All at once, in their order. Raises the first ToolError; what still runs is then cancelled."""
    if use.elsewhere is not None:
        told = await use.elsewhere(calls)
        return [Outcome(call, text, text) for call, text in zip(calls, told, strict=True)]
    tasks = [asyncio.create_task(_run(use, call)) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def _run(use: ToolUse, call: ToolCall) -> Outcome:
    try:
        tool = next((tool for tool in use.tools if tool.name == call.name), None)
        if tool is None:
            names = ", ".join(tool.name for tool in use.tools)
            raise ValueError(f"there is no tool {call.name!r}; there are {names}")
        arguments = json.loads(call.arguments)
        result = await _result(use, tool, arguments)
        told = error_text(result) if isinstance(result, Exception) else result_text(result)
        return Outcome(call, result, told)
    except Exception as error:
        # The boundary to the user's function: what it raises is told to the model, or is the call's failure.
        if use.on_error == "raise":
            raise ToolError(f"tool {call.name} failed: {described(error)}", variable=call.name) from error
        return Outcome(call, error, error_text(error))


async def _result(use: ToolUse, tool: Tool, arguments: object) -> object:
    """An async tool runs on the loop of async programs, another one on a thread: neither holds up a branch."""
    context = use.context.copy()
    if inspect.iscoroutinefunction(tool.function):
        result: object = tool.run(arguments)
    else:
        result = await _in_thread(lambda: context.run(tool.run, arguments))
    if not inspect.isawaitable(result):
        return result
    running = context.run(asyncio.run_coroutine_threadsafe, _awaited(result), bodies_loop().loop)
    return await asyncio.wrap_future(running)


async def _awaited(result: Awaitable[object]) -> object:
    try:
        return await result
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Nobody has cancelled the call: something within the tool was.
        raise _as_exception(error) from None


async def _in_thread(call: Callable[[], object]) -> object:
    """On a thread of its own, a daemon: a tool that never ends, or waits for tools of a program that it runs
    itself, holds up no other, nor the interpreter's exit."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[object] = loop.create_future()

    def settle_outcome(result: object, error: Exception | None) -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)

    def body() -> None:
        result: object = None
        error: Exception | None = None
        try:
            result = call()
        except BaseException as raised:
            error = _as_exception(raised)
        try:
            loop.call_soon_threadsafe(settle_outcome, result, error)
        except RuntimeError:
            # The loop was closed meanwhile: nobody waits any more.
            if not loop.is_closed():
                raise

    threading.Thread(target=body, name="ramet tool", daemon=True).start()
    return await outcome


def _as_exception(error: BaseException) -> Exception:
    """What a future can carry, and what ends no event loop: a tool's sys.exit() is the tool's failure."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(described(error))
    wrapped.__cause__ = error
    return wrapped
