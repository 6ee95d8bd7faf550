"""Programs on Anthropic's Messages API: what it is asked, and what becomes of its answers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import ramet
from ramet.lang.backends.anthropic_api import Anthropic
from ramet.lang.backends.base import Backend
from ramet.lang.backends.http_client import Connection, RetryPolicy
from ramet.lang.errors import GenerationError, UnsupportedError
from ramet.runtime.protocol import InvalidRequestError
from tests.lang.backends.chat_server import Body, Recorder
from tests.lang.backends.claude_server import Speaks, claude_handler
from tests.lang.backends.loopback import Answer, of_json, serving

CONNECTION = Connection(timeout=60.0, retries=RetryPolicy(max_retries=1, first_delay=0.001))
Script = Callable[[Body], Speaks | Answer]


@contextmanager
def opened(script: Script, **options: Any) -> Iterator[tuple[Anthropic, list[Body]]]:
    recorder = Recorder()
    with (
        serving(claude_handler(script, recorder)) as server,
        Anthropic("m", base_url=server.url, api_key="k", connection=CONNECTION, **options) as backend,
    ):
        yield backend, recorder.bodies


@ramet.function
def ask(s: Any, **options: Any) -> None:
    s += ramet.user("Where?") + ramet.assistant(ramet.gen("x", **options))


@ramet.function
def begun(s: Any, beginning: str, **options: Any) -> None:
    s += ramet.user("Where?")
    s += ramet.assistant(beginning + ramet.gen("x", **options))


def texts(body: Body) -> list[tuple[str, str]]:
    return [
        (turn["role"], "".join(block.get("text", "") for block in turn["content"])) for turn in body["messages"]
    ]


def test_a_conversation() -> None:
    @ramet.function
    def chat(s: Any) -> None:
        s += ramet.system("Be brief.")
        s += ramet.user("Where?") + ramet.assistant(ramet.gen("where", stop="x", temperature=0.5))
        s += ramet.user("Sure?") + ramet.assistant(ramet.gen("sure", top_p=0.5, top_k=3))

    with opened(lambda body: Speaks("in Rome"), prompt_caching=False) as (backend, bodies):
        seam: Backend = backend
        state = chat.run(backend=seam, max_tokens=None)
        assert ramet.get_server_info(backend)["model"] == {"id": "m", "type": "model"}
    assert [state["where"], state["sure"]] == ["in Rome", "in Rome"]
    assert bodies[0] == {
        "model": "m",
        "max_tokens": 8192,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Where?"}]}],
        "stop_sequences": ["x"],
        "temperature": 0.5,
        "stream": True,
    }
    assert texts(bodies[1]) == [("user", "Where?"), ("assistant", "in Rome"), ("user", "Sure?")]
    assert (bodies[1]["top_p"], bodies[1]["top_k"]) == (0.5, 3)
    meta = state.get_meta_info("sure")
    assert (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) == (14, 7, 2)


@pytest.mark.parametrize(
    ("reason", "finish"), [("end_turn", "stop"), ("max_tokens", "length"), ("stop_sequence", "stop")]
)
def test_how_it_ends(reason: str, finish: str) -> None:
    sequence = "END" if reason == "stop_sequence" else None
    with opened(lambda body: Speaks("a", stop_reason=reason, stop_sequence=sequence)) as (backend, _):
        meta = ask.run(backend=backend).get_meta_info("x")
    assert (meta["finish_reason"], meta["stop_reason"]) == (finish, sequence)


def test_a_stop_of_white_space_is_looked_for_here() -> None:
    with opened(lambda body: Speaks("one two\n three four")) as (backend, bodies):
        state = ask.run(backend=backend, stop=["\n", "x"])
        assert ask.run(backend=backend, stop_regex="t[a-z]o")["x"] == "one "
    assert state["x"] == "one two"
    assert state.get_meta_info("x")["stop_reason"] == "\n"
    assert "stop_sequences" not in bodies[0]


@pytest.mark.parametrize(
    ("beginning", "answer", "sent", "text"),
    [
        ("In ", " Rome", "In", "Rome"),
        ("In ", "Rome", "In", "Rome"),
        ("In \n", " \n x", "In", " x"),
        ("In", " Rome", "In", " Rome"),
        (" ", " Rome", None, "Rome"),
    ],
)
def test_an_answer_that_begins_with_text(beginning: str, answer: str, sent: str | None, text: str) -> None:
    with opened(lambda body: Speaks(answer)) as (backend, bodies):
        state = begun.run(beginning, backend=backend)
    assert state["x"] == text
    assert texts(bodies[0])[1:] == ([("assistant", sent)] if sent else [])
    assert state.messages()[-1]["content"] == beginning + text


def test_images() -> None:
    @ramet.function
    def look(s: Any) -> None:
        s += ramet.user("See" + ramet.image("https://x.org/a.png") + ramet.image("data:image/png;base64,AAAA"))
        s += ramet.assistant(ramet.gen("x"))

    with opened(lambda body: Speaks("a"), prompt_caching=False) as (backend, bodies):
        look.run(backend=backend)
    assert bodies[0]["messages"][0]["content"] == [
        {"type": "text", "text": "See"},
        {"type": "image", "source": {"type": "url", "url": "https://x.org/a.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    ]


def test_thinking() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with opened(lambda body: Speaks("so", thinking="well then"), thinking=thinking) as (backend, bodies):
        state = ask.run(backend=backend, max_tokens=2000)
        with pytest.raises(UnsupportedError, match="use tools without thinking"):
            ask.run(backend=backend, tools=[str_length])
    assert state["x"] == "so"
    assert state.get_meta_info("x")["reasoning_content"] == "well then"
    assert bodies[0]["thinking"] == thinking


def str_length(text: str) -> int:
    """How long it is."""
    return len(text)


def test_tools() -> None:
    def script(body: Body) -> Speaks:
        last = body["messages"][-1]["content"][-1]
        if last["type"] == "tool_result":
            return Speaks(f"it is {last['content'][0]['text']}")
        if "tools" not in body or body["tool_choice"]["type"] == "none":
            return Speaks("later")
        calls = [(f"id{text}", "str_length", f'{{"text": "{text}"}}') for text in ("abc", "de")]
        return Speaks("I count.", calls=calls, stop_reason="tool_use")

    @ramet.function
    def count(s: Any) -> None:
        s += ramet.user("How long?") + ramet.assistant(
            ramet.gen("x", tools=[str_length], tool_choice="required")
        )
        s += ramet.user("And now?") + ramet.assistant(ramet.gen("y"))

    with opened(script, prompt_caching=False) as (backend, bodies):
        state = count.run(backend=backend)
    assert (state["x"], state["y"]) == ("it is 2", "later")
    assert bodies[0]["tools"][0]["name"] == "str_length"
    assert bodies[0]["tools"][0]["strict"] is True
    assert bodies[0]["tool_choice"] == {"type": "any"}
    called, told = bodies[1]["messages"][1:]
    assert called["content"] == [
        {"type": "text", "text": "I count."},
        {"type": "tool_use", "id": "idabc", "name": "str_length", "input": {"text": "abc"}},
        {"type": "tool_use", "id": "idde", "name": "str_length", "input": {"text": "de"}},
    ]
    assert [(block["tool_use_id"], block["content"][0]["text"]) for block in told["content"]] == [
        ("idabc", "3"),
        ("idde", "2"),
    ]
    assert bodies[2]["tool_choice"] == {"type": "none"}


def test_constraints() -> None:
    with opened(lambda body: Speaks('{"answer": "no way"}')) as (backend, bodies):
        state = ask.run(backend=backend, choices=["yes", "no way"])
        assert ask.run(backend=backend, choices=["yes", "no way"])["x"] == "no way"
    assert state.get_meta_info("x")["scores"] == (float("-inf"), 0.0)
    form = bodies[0]["output_config"]["format"]
    assert form["type"] == "json_schema"
    assert form["schema"]["properties"]["answer"]["enum"] == ["yes", "no way"]


def test_what_is_shared_is_marked() -> None:
    @ramet.function
    def branches(s: Any) -> None:
        s += ramet.system("S") + ramet.user("A") + ramet.assistant("B")
        forks = s.fork(2)
        for number, fork in enumerate(forks):
            fork += ramet.user(str(number)) + ramet.assistant(ramet.gen("x"))
        forks.join()

    def marks(body: Body) -> list[str]:
        blocks = [*body["system"], *(block for turn in body["messages"] for block in turn["content"])]
        return [block["text"] for block in blocks if "cache_control" in block]

    with opened(lambda body: Speaks("a")) as (backend, bodies):
        branches.run(backend=backend)
    assert sorted(map(marks, bodies)) == [["S", "B", "0"], ["S", "B", "1"]]


def test_what_a_batch_shares_is_marked() -> None:
    @ramet.function
    def shots(s: Any, question: str) -> None:
        s += ramet.user("An example. " * 40) + ramet.assistant("Its answer.")
        s += ramet.user(question) + ramet.assistant(ramet.gen("x"))

    with opened(lambda body: Speaks("a")) as (backend, bodies):
        shots.run_batch([{"question": str(number)} for number in range(4)], backend=backend)
    marks = ["cache_control" in body["messages"][1]["content"][-1] for body in bodies]
    assert sum(marks) >= 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, "does not honour seed="),
        ({"n": 2}, "does not honour n=2"),
        ({"logprobs": 1}, "does not honour logprobs=1"),
        ({"ebnf": "root ::= x"}, "cannot constrain an answer by ebnf; it can by choice, json_schema, regex"),
        ({"priority": 2}, "has no priorities"),
    ],
)
def test_what_it_does_not_have_is_refused(options: dict[str, Any], message: str) -> None:
    with opened(lambda body: Speaks("a")) as (backend, bodies):
        with pytest.raises(UnsupportedError, match=message):
            ask.run(backend=backend, **options)
        with pytest.raises(UnsupportedError, match="cannot be told to drop"):
            ramet.flush_cache(backend)
        with pytest.raises(UnsupportedError, match="no cache_salt"):
            backend.prompt(cache_salt="s")
        assert bodies == []


def test_where_messages_may_stand() -> None:
    @ramet.function
    def late(s: Any) -> None:
        s += ramet.user("A") + ramet.assistant("B") + ramet.system("C") + ramet.user("D")
        s += ramet.assistant(ramet.gen("x"))

    @ramet.function
    def alone(s: Any) -> None:
        s += ramet.system("A") + ramet.assistant(ramet.gen("x"))

    with opened(lambda body: Speaks("a")) as (backend, _):
        with pytest.raises(UnsupportedError, match="takes a system message at the beginning only"):
            late.run(backend=backend)
        with pytest.raises(UnsupportedError, match=r"say user\(\.\.\.\) first"):
            alone.run(backend=backend)


def test_an_overloaded_server_is_asked_again() -> None:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    answers: list[Speaks | Answer] = [of_json(overloaded, 529), Speaks("a")]
    with opened(lambda body: answers.pop(0)) as (backend, bodies):
        assert ask.run(backend=backend)["x"] == "a"
        assert len(bodies) == 2


def test_errors() -> None:
    bad = {"type": "error", "error": {"type": "invalid_request_error", "message": "prefill is not supported"}}
    answers: list[Speaks | Answer] = [of_json(bad, 400), Speaks(stop_reason="refusal")]
    with opened(lambda body: answers.pop(0)) as (backend, _):
        with pytest.raises(GenerationError, match="status 400: prefill is not supported"):
            begun.run("In", backend=backend)
        with pytest.raises(GenerationError, match="the model refuses to answer"):
            ask.run(backend=backend)


def test_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    with pytest.raises(InvalidRequestError, match="api_key is missing; give it, or set ANTHROPIC_API_KEY"):
        Anthropic("m")
    with pytest.raises(InvalidRequestError, match="default_max_tokens is 0"):
        Anthropic("m", api_key="k", default_max_tokens=0)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    assert Anthropic("m").capabilities.tools
