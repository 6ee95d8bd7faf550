"""One program gives the same on every kind of backend: on a script, and on servers of each API with a model of
the same rule behind them."""

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet.lang.backends.base import Backend
from ramet.lang.backends.recording import RecordingBackend, ReplayBackend
from ramet.lang.backends.scripted import ScriptedBackend
from tests.lang.backends.chat_server import Body, Says, chat_handler
from tests.lang.backends.claude_server import Speaks, claude_handler
from tests.lang.backends.loopback import serving

Turns = list[tuple[str, str]]
NAMES = ("to_one", "to_two", "x", "sum", "person", "colour", "then", "a", "b")
CONNECTION = ramet.Connection(timeout=60.0)


def model(turns: Turns) -> str:
    """The model: what it says to these turns, the assistant's open one included where it has begun."""
    users = [text for role, text in turns if role == "user"]
    if users[-1].startswith("JSON"):
        return '{"name": "Ada", "age": 36}'
    if users[-1].startswith("Which"):
        return "blue"
    said = sum(role == "assistant" for role, _ in turns)
    begun = turns[-1][1] if turns[-1][0] == "assistant" else ""
    return f"{begun and 'on '}answer {said} to {users[-1]} END and more"


def constrained(turns: Turns, schema: dict[str, Any] | None) -> str:
    """As servers say it that know JSON schemas only."""
    answer = model(turns)
    wraps = schema is not None and list(schema["properties"]) == ["answer"]
    return json.dumps({"answer": answer}) if wraps else answer


def cut(text: str, stops: list[str] | None) -> str:
    """What a server does about stops."""
    return min((text.split(stop)[0] for stop in stops or ()), key=len, default=text)


def scripted(prompt: str) -> str:
    turns = re.findall(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>\n|$)", prompt, re.DOTALL)
    return model([turn for turn in turns if turn[1]])


def chat_model(body: Body) -> Says | list[Says]:
    turns = [(message["role"], message["content"]) for message in body["messages"]]
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
    says = Says(cut(constrained(turns, schema), body.get("stop")))
    return [says] * body.get("n", 1)


def claude_model(body: Body) -> Speaks:
    turns = [(turn["role"], "".join(block["text"] for block in turn["content"])) for turn in body["messages"]]
    schema = body.get("output_config", {}).get("format", {}).get("schema")
    return Speaks(cut(constrained(turns, schema), body.get("stop_sequences")))


@contextmanager
def opened(kind: str) -> Iterator[Backend]:
    if kind == "script":
        yield ScriptedBackend(scripted)
    elif kind == "anthropic":
        with (
            serving(claude_handler(claude_model)) as server,
            ramet.Anthropic("m", base_url=server.url, connection=CONNECTION) as claude,
        ):
            yield claude
    else:
        with (
            serving(chat_handler(chat_model)) as server,
            ramet.OpenAI(
                "m", base_url=server.url, flavour=kind or None, api_key="k", connection=CONNECTION
            ) as backend,
        ):
            yield backend


@ramet.function
def conversation(s: Any) -> str:
    s += ramet.system("You are brief.")
    for question in ("one", "two"):
        s += ramet.user(question)
        s += ramet.assistant(ramet.gen(f"to_{question}", stop=" END", max_tokens=50))
    return str(s["to_two"]).upper()


@ramet.function
def branches(s: Any) -> None:
    s += ramet.system("You are brief.") + ramet.user("start") + ramet.assistant("begun")
    forks = s.fork(5)
    for number, fork in enumerate(forks):
        fork += ramet.user(f"branch {number}") + ramet.assistant(ramet.gen("x", stop=" END"))
    forks.join()
    s += ramet.user("sum up " + " / ".join(s["x"])) + ramet.assistant(ramet.gen("sum", stop=" END"))


@ramet.function
def structured(s: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    s += ramet.user("JSON please") + ramet.assistant(ramet.gen("person", json_schema=schema))
    s += ramet.user("Which colour?") + ramet.assistant(ramet.select("colour", choices=["red", "blue"]))
    if s["colour"] == "blue":
        s += ramet.user("And then?") + ramet.assistant(ramet.gen("then", stop=" END"))


@ramet.function
async def awaited(s: Any) -> None:
    s += ramet.user("first") + ramet.assistant(ramet.gen("a", stop=" END"))
    s += ramet.user("after " + str(await s.aio.get("a"))) + ramet.assistant(ramet.gen("b", stop=" END"))


@ramet.function
def streamed(s: Any) -> None:
    s += ramet.user("stream") + ramet.assistant(ramet.gen("x", stop=" END"))


def outcome(program: Any, backend: Backend) -> dict[str, object]:
    state = program.run(backend=backend)
    return {
        "variables": {name: state[name] for name in NAMES if name in state},
        "messages": state.messages(),
        "returned": state.ret_value,
    }


@pytest.mark.parametrize("kind", ["", "openai", "vllm", "sglang", "ramet", "anthropic"])
@pytest.mark.parametrize("program", [conversation, branches, structured, awaited], ids=lambda it: it.name)
def test_the_same_everywhere(program: Any, kind: str) -> None:
    expected = outcome(program, ScriptedBackend(scripted))
    with opened(kind) as backend:
        assert outcome(program, backend) == expected
    assert expected["variables"]


@pytest.mark.parametrize("kind", ["script", "", "vllm", "anthropic"])
def test_streams_are_the_same_text(kind: str) -> None:
    with opened(kind) as backend:
        state = streamed.stream(backend=backend)
        assert "".join(state.text_iter("x")) == state["x"] == "answer 0 to stream"


@pytest.mark.parametrize("kind", ["script", "", "anthropic"])
def test_batches_are_in_order(kind: str) -> None:
    @ramet.function
    def ask(s: Any, question: str) -> None:
        s += ramet.user(question) + ramet.assistant(ramet.gen("x", stop=" END"))

    with opened(kind) as backend:
        states = ask.run_batch([{"question": f"q{n}"} for n in range(8)], backend=backend, progress_bar=False)
    assert [state["x"] for state in states] == [f"answer 0 to q{n}" for n in range(8)]


@pytest.mark.parametrize("kind", ["", "vllm", "anthropic"])
@pytest.mark.parametrize("program", [conversation, branches, structured], ids=lambda it: it.name)
def test_a_recording_says_the_same_without_the_server(program: Any, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    with opened(kind) as backend:
        recording = RecordingBackend(backend, path)
        expected = outcome(program, recording)
        asyncio.run(recording.aclose())
    assert outcome(program, ReplayBackend(path)) == expected
