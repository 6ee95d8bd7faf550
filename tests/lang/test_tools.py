"""The loop of calls that a program writes: use_tools."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from ramet.lang import (
    GenerationError,
    ProgramState,
    ProgramStructureError,
    ToolError,
    UnsupportedError,
    ause_tools,
    describe_tools,
    function,
    system,
    use_tools,
    user,
)
from ramet.lang.backends.base import Capabilities
from ramet.lang.backends.scripted import ScriptedBackend
from ramet.runtime.protocol import InvalidRequestError, JsonSchema


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def divide(a: int, b: int) -> float:
    return a / b


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


@function
def agent(s: ProgramState, tools: list[Callable[..., Any]], options: dict[str, Any] | None = None) -> str:
    s += system(describe_tools(tools)) + user("What is it?")
    return use_tools(s, "result", tools, **(options or {}))


@function
async def async_agent(s: ProgramState, tools: list[Callable[..., Any]]) -> str:
    s += user("What is it?")
    return await ause_tools(s, "result", tools)


def test_the_loop_runs_calls_and_feeds_their_results_back() -> None:
    backend = ScriptedBackend([call("add", a=1, b=2), call("add", a=3, b=4), '{"answer": "7"}'])
    state = agent.run([add, divide], backend=backend, temperature=0)
    assert state.ret_value == state["result"] == "7"
    roles = [(message["role"], message["content"]) for message in state.messages()[2:]]
    assert roles == [
        ("assistant", call("add", a=1, b=2)),
        ("tool", "3"),
        ("assistant", call("add", a=3, b=4)),
        ("tool", "7"),
        ("assistant", '{"answer": "7"}'),
    ]
    assert backend.calls[0].params is not None
    assert isinstance(backend.calls[0].params.grammar, JsonSchema)


def test_a_failing_tool_is_reported_or_raised() -> None:
    wrong = call("divide", a=1, b=0)
    backend = ScriptedBackend([wrong, call("divide", a=1), '{"answer": "none"}'])
    state = agent.run([divide], backend=backend)
    told = [message["content"] for message in state.messages() if message["role"] == "tool"]
    assert told == [
        '{"error":"ZeroDivisionError: division by zero"}',
        '{"error":"ValidationError: Object missing required field `b`"}',
    ]
    with pytest.raises(ToolError, match="tool divide failed: ZeroDivisionError") as raised:
        agent.run([divide], {"on_error": "raise"}, backend=ScriptedBackend(wrong))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_in_the_last_round_the_model_must_answer() -> None:
    backend = ScriptedBackend([call("add", a=1, b=2), '{"answer": "3"}'])
    assert agent.run([add], {"max_rounds": 2}, backend=backend)["result"] == "3"
    last = backend.calls[1].params
    assert last is not None
    assert isinstance(last.grammar, JsonSchema)
    assert [list(option["properties"]) for option in json.loads(last.grammar.schema)["anyOf"]] == [["answer"]]


def test_async_tools() -> None:
    async def slow(x: int) -> int:
        await asyncio.sleep(0)
        return x * 2

    script = [call("slow", x=4), call("add", a=1, b=2), '{"answer": "8"}']
    state = async_agent.run([slow, add], backend=ScriptedBackend(script))
    assert [message["content"] for message in state.messages() if message["role"] == "tool"] == ["8", "3"]
    with pytest.raises(ProgramStructureError, match="ause_tools"):
        agent.run([slow], backend=ScriptedBackend(script))


@pytest.mark.parametrize(
    ("tools", "options", "words"),
    [
        ([add, add], {}, "two of the name 'add'"),
        ([add], {"on_error": "ignore"}, "on_error is 'ignore'"),
        ([add], {"max_rounds": 0}, "max_rounds is 0"),
        ([add], {"temprature": 0}, "temperature"),
    ],
)
def test_wrong_use(tools: list[Callable[..., Any]], options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        agent.run(tools, options, backend=ScriptedBackend())


def test_a_backend_without_tools_is_refused_and_a_cut_call_named() -> None:
    backend = ScriptedBackend(capabilities=Capabilities(name="plain", grammars=frozenset({"json_schema"})))
    with pytest.raises(UnsupportedError, match="plain has no tools"):
        agent.run([add], backend=backend)
    with pytest.raises(GenerationError, match="raise max_tokens"):
        agent.run([add], {"max_tokens": 1}, backend=ScriptedBackend('{"answer": "1 2 3"}'))


def test_results_become_text() -> None:
    def plain() -> str:
        return "as it is"

    def strange() -> object:
        return complex(1, 2)

    script = [call("plain"), call("strange"), '{"answer": ""}']
    state = agent.run([plain, strange], backend=ScriptedBackend(script))
    told = [message["content"] for message in state.messages() if message["role"] == "tool"]
    assert told == ["as it is", "(1+2j)"]
