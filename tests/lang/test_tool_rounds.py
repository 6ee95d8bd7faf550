"""gen(tools=...): the model calls, is told, and answers."""

import asyncio
import contextvars
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from ramet.lang import (
    Program,
    ProgramState,
    ProgramStructureError,
    ToolError,
    UnsupportedError,
    assistant,
    function,
    gen,
    separate_reasoning,
    user,
)
from ramet.lang.backends.base import Capabilities, GenerateDelta, Prompt, ToolCall, ToolOffer
from ramet.lang.backends.recording import RecordingBackend, ReplayBackend
from ramet.lang.backends.scripted import Reply, Script, ScriptedAnswers, ScriptedBackend
from ramet.lang.backends.transcript import Transcript, TranscriptPrompt
from ramet.lang.loop_thread import bodies_loop
from ramet.runtime.protocol import FinishReason, InvalidRequestError, ProgramTag, SamplingParams


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def divide(a: int, b: int) -> float:
    """Divides."""
    return a / b


def calls(*made: tuple[str, dict[str, Any]], text: str = "") -> Reply:
    return Reply(text, calls=made)


@function
def agent(s: ProgramState, tools: list[Any], options: dict[str, Any] | None = None) -> None:
    s += user("What is it?")
    s += assistant(gen("answer", tools=tools, **(options or {})))


def contents(state: ProgramState) -> list[tuple[object, object]]:
    return [(message["role"], message["content"]) for message in state.messages()]


def test_calls_are_run_and_their_results_fed_back() -> None:
    script: list[Script] = [
        calls(("add", {"a": 1, "b": 2}), ("divide", {"a": 6, "b": 2}), text="Let me see."),
        calls(("add", {"a": 3, "b": 4})),
        "It is 7.",
    ]
    backend = ScriptedBackend(script)
    state = agent.run([add, divide], backend=backend)
    assert state["answer"] == "It is 7."
    assert contents(state) == [
        ("user", "What is it?"),
        ("assistant", "Let me see."),
        ("tool", "3"),
        ("tool", "3.0"),
        ("assistant", ""),
        ("tool", "7"),
        ("assistant", "It is 7."),
    ]
    first = state.messages()[1]["tool_calls"]
    assert isinstance(first, list)
    assert [item["function"]["name"] for item in first] == ["add", "divide"]
    assert [item["id"] for item in first] == [message["tool_call_id"] for message in state.messages()[2:4]]
    offers = [call.offer for call in backend.calls]
    assert [offer.choice for offer in offers if offer] == ["auto", "auto", "auto"]
    assert offers[0] is not None
    assert [tool.name for tool in offers[0].tools] == ["add", "divide"]
    meta = state.get_meta_info("answer")
    assert [(call["name"], call["result"], call["error"]) for call in meta["tool_calls"]] == [
        ("add", 3, None),
        ("divide", 3.0, None),
        ("add", 7, None),
    ]
    assert len(meta["rounds"]) == 2


def test_whatever_a_tool_gives_the_model_is_told_something() -> None:
    class Mute:
        def __str__(self) -> str:
            raise OSError("no words")

    def cyclic() -> list[Any]:
        found: list[Any] = []
        found.append(found)
        return found

    def half() -> str:
        return "half \ud800"

    def mute() -> object:
        return Mute()

    async def cancels() -> None:
        raise asyncio.CancelledError

    tools = [cyclic, half, mute, cancels]
    script: list[Script] = [calls(*[(tool.__name__, {}) for tool in tools]), "Well."]
    state = agent.run(tools, backend=ScriptedBackend(script))
    told = [content for role, content in contents(state) if role == "tool"]
    assert told == [
        "a list that is nested too deeply to be written",
        "half ?",
        '{"error":"OSError: no words"}',
        '{"error":"RuntimeError: CancelledError: "}',
    ]
    assert state["answer"] == "Well."


def test_a_failing_tool_is_reported_or_raised() -> None:
    script: list[Script] = [calls(("divide", {"a": 1, "b": 0}), ("divide", {"a": "one"})), "Nothing."]
    state = agent.run([divide], backend=ScriptedBackend(script))
    told = [content for role, content in contents(state) if role == "tool"]
    assert told == [
        '{"error":"ZeroDivisionError: division by zero"}',
        '{"error":"ValidationError: Expected `int`, got `str` - at `$.a`"}',
    ]
    failed = state.get_meta_info("answer")["tool_calls"][0]
    assert isinstance(failed["error"], ZeroDivisionError)
    with pytest.raises(ToolError, match="tool divide failed: ZeroDivisionError") as raised:
        agent.run(
            [divide], {"on_tool_error": "raise"}, backend=ScriptedBackend([calls(("divide", {"a": 1, "b": 0}))])
        )
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert (raised.value.program, raised.value.branch) == ("agent", "0")


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_that_cannot_say_what_it_is_is_a_tools_failure_too() -> None:
    def fail() -> None:
        """Fails."""
        raise SpeechlessError

    state = agent.run([fail], backend=ScriptedBackend([calls(("fail", {})), "I see."]))
    assert state["answer"] == "I see."
    assert "SpeechlessError, whose text could not be made: RuntimeError" in str(contents(state))
    with pytest.raises(ToolError, match="tool fail failed: SpeechlessError") as raised:
        agent.run([fail], {"on_tool_error": "raise"}, backend=ScriptedBackend([calls(("fail", {}))]))
    assert isinstance(raised.value.__cause__, SpeechlessError)


def test_what_would_end_a_loop_is_the_tools_failure() -> None:
    def leave() -> None:
        raise SystemExit(3)

    def stop() -> None:
        raise StopIteration

    state = agent.run(
        [leave, stop], backend=ScriptedBackend([calls(("leave", {}), ("stop", {})), "Still here."])
    )
    assert state["answer"] == "Still here."
    assert [content for role, content in contents(state) if role == "tool"] == [
        '{"error":"RuntimeError: SystemExit: 3"}',
        '{"error":"RuntimeError: StopIteration: "}',
    ]


def test_after_the_last_round_the_model_must_answer() -> None:
    backend = ScriptedBackend([calls(("add", {"a": 1, "b": 1})), "2"])
    assert agent.run([add], {"max_tool_rounds": 1}, backend=backend)["answer"] == "2"
    assert [call.offer.choice for call in backend.calls if call.offer] == ["auto", "none"]


def test_choices() -> None:
    for choice, first in (("required", "required"), ("add", "add")):
        backend = ScriptedBackend([calls(("add", {"a": 1, "b": 1})), "2"])
        agent.run([add, divide], {"tool_choice": choice}, backend=backend)
        assert [call.offer.choice for call in backend.calls if call.offer] == [first, "auto"]
    with pytest.raises(ProgramStructureError, match="must call add"):
        agent.run([add, divide], {"tool_choice": "add"}, backend=ScriptedBackend("no"))
    backend = ScriptedBackend(calls(("add", {"a": 1, "b": 1})))
    with pytest.raises(ProgramStructureError, match="offers no tools"):
        agent.run([add], {"tool_choice": "none"}, backend=backend)


def test_async_tools_and_programs_run_by_tools() -> None:
    @function
    def expert(s: ProgramState) -> None:
        s += "Expert: " + gen("opinion")

    backend = ScriptedBackend({"answer": [calls(("slow", {"x": 4}), ("ask", {})), "done"], "opinion": "yes"})

    async def slow(x: int) -> int:
        await asyncio.sleep(0)
        return x * 2

    def ask() -> str:
        return str(expert.run(backend=backend)["opinion"])

    state = agent.run([slow, ask], backend=backend)
    assert [content for role, content in contents(state) if role == "tool"] == ["8", "yes"]


def test_tools_see_the_programs_context_and_not_the_loop() -> None:
    who = contextvars.ContextVar("who", default="nobody")
    threads: list[str] = []

    def ask() -> str:
        threads.append(threading.current_thread().name)
        return who.get()

    @function
    def program(s: ProgramState) -> None:
        who.set("Ada")
        s += assistant(gen("answer", tools=[ask]))

    state = program.run(backend=ScriptedBackend([calls(("ask", {})), "ok"]))
    assert [content for role, content in contents(state) if role == "tool"] == ["Ada"]
    assert threads == ["ramet tool"]


def test_a_stream_has_the_answers_text_and_nothing_of_the_calls() -> None:
    script: list[Script] = [calls(("add", {"a": 1, "b": 2}), text="Hm."), "<think>so</think> three"]

    @function
    def program(s: ProgramState) -> None:
        s += assistant(separate_reasoning(gen("answer", tools=[add]), model_type="qwen3"))

    state = program.stream(backend=ScriptedBackend(script))
    assert "".join(state.text_iter("answer")) == state["answer"] == "three"
    assert state["answer_reasoning_content"] == "so"
    assert "".join(state.text_iter()) == state.text()


def test_a_branch_that_called_tools_can_be_appended() -> None:
    @function
    def program(s: ProgramState) -> None:
        branches = s.fork(2)
        branches += assistant(gen("x", tools=[add]))
        branches.join("concate_and_append")

    def script(prompt: str) -> Reply:
        return Reply("done") if "tool\n" in prompt else calls(("add", {"a": 1, "b": 1}))

    state = program.run(backend=ScriptedBackend(script))
    half = [("assistant", ""), ("tool", "2"), ("assistant", "done")]
    assert contents(state) == half * 2


def test_cancelling_leaves_a_tool_behind_and_ends_the_program() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        may_end.wait(60)

    state = agent.stream([wait], backend=ScriptedBackend([calls(("wait", {})), "never"]))
    assert begun.wait(60)
    with state:
        pass
    may_end.set()
    assert state.error() is not None


def test_recordings_have_the_tools(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    recording = RecordingBackend(ScriptedBackend([calls(("add", {"a": 1, "b": 2})), "3"]), path)
    first = agent.run([add], backend=recording)
    asyncio.run(recording.aclose())
    second = agent.run([add], backend=ReplayBackend(path))
    assert first["answer"] == second["answer"] == "3"
    with pytest.raises(UnsupportedError, match="has no generate"):
        agent.run([divide], backend=ReplayBackend(path))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tools": [add], "regex": "a"}, "tools and regex"),
        ({"tools": [add], "n": 2}, "tools and n"),
        (
            {"tools": [add], "tool_choice": "sub"},
            "tool_choice is 'sub'; it must be one of auto, none, required, add",
        ),
        ({"tools": [add], "max_tool_rounds": 0}, "max_tool_rounds is 0"),
        ({"tools": [add], "on_tool_error": "hide"}, "on_tool_error is 'hide'"),
        ({"tools": []}, "at least one function"),
        ({"tool_choice": "auto"}, "tool_choice but no tools"),
        ({"tools": [add], "choices": ["a"]}, "gen with choices takes no tools"),
    ],
)
def test_wrong_use(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        gen("x", **options)


def run_outside() -> Program:
    @function
    def program(s: ProgramState) -> None:
        s += gen("x", tools=[add])

    return program


def test_where_tools_cannot_be() -> None:
    with pytest.raises(ProgramStructureError, match="outside of the assistant role"):
        run_outside().run(backend=ScriptedBackend())
    with pytest.raises(ProgramStructureError, match="n=2"):
        agent.run([add], backend=ScriptedBackend(), n=2)
    plain = ScriptedBackend(capabilities=Capabilities(name="plain"))
    with pytest.raises(UnsupportedError, match="plain has no tools"):
        agent.run([add], backend=plain)


class Stubborn(ScriptedAnswers):
    """A model that calls whatever it is offered, and more."""

    async def generate(
        self,
        transcript: Transcript,
        params: SamplingParams,
        *,
        tag: ProgramTag,
        priority: int,
        offer: ToolOffer | None,
    ) -> AsyncGenerator[GenerateDelta, None]:
        made = (
            ToolCall(id="1", name="sub", arguments="{}"),
            ToolCall(id="2", name="add", arguments="{"),
        )
        yield GenerateDelta(finish_reason=FinishReason.STOP, tool_calls=made)


class StubbornBackend(ScriptedBackend):
    def prompt(self, *, cache_salt: str = "") -> Prompt:
        return TranscriptPrompt(Stubborn(self), Transcript())


def test_a_backend_that_does_not_hold_the_model_is_noticed() -> None:
    with pytest.raises(UnsupportedError, match="was offered no tools, and called one"):
        agent.run([add], {"max_tool_rounds": 1}, backend=StubbornBackend())
    with pytest.raises(ToolError, match="there is no tool 'sub'; there are add"):
        agent.run([add], {"on_tool_error": "raise"}, backend=StubbornBackend())


class PlainPrompt:
    """A prompt that takes no tools."""

    def __init__(self, inner: Prompt) -> None:
        for name in ("append_text", "begin_role", "end_role", "text", "messages", "generate", "fork"):
            setattr(self, name, getattr(inner, name))


class BoastingBackend(ScriptedBackend):
    def prompt(self, *, cache_salt: str = "") -> Prompt:
        return PlainPrompt(super().prompt())  # type: ignore[return-value]


def test_a_backend_that_boasts_of_tools_is_noticed() -> None:
    with pytest.raises(UnsupportedError, match="PlainPrompt says that it has tools, and takes none"):
        agent.run([add], backend=BoastingBackend())


def test_all_that_was_said_on_the_way_is_in_a_scope() -> None:
    @function
    def program(s: ProgramState) -> None:
        with s.assistant(), s.var_scope("whole"):
            s += "Well. " + gen("answer", tools=[add])

    script: list[Script] = [calls(("add", {"a": 1, "b": 1}), text="Let me see."), "Two."]
    state = program.run(backend=ScriptedBackend(script))
    assert state["whole"] == "Well. Let me see.Two."
    assert state["answer"] == "Two."


def test_parallel_calls_run_at_once() -> None:
    first, second = threading.Event(), threading.Event()

    def one() -> bool:
        first.set()
        return second.wait(60)

    def two() -> bool:
        second.set()
        return first.wait(60)

    state = agent.run([one, two], backend=ScriptedBackend([calls(("one", {}), ("two", {})), "done"]))
    assert [call["result"] for call in state.get_meta_info("answer")["tool_calls"]] == [True, True]


def test_the_first_failure_of_parallel_calls_ends_the_round() -> None:
    ended: list[bool] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append(True)
            raise

    script = ScriptedBackend([calls(("slow", {}), ("divide", {"a": 1, "b": 0}))])
    with pytest.raises(ToolError, match="tool divide failed"):
        agent.run([slow, divide], {"on_tool_error": "raise"}, backend=script)
    bodies_loop().run(asyncio.sleep(0))
    assert ended == [True]
