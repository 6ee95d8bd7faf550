"""Recording and replaying: equal runs, and refusals by name."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from ramet.lang import (
    GenerationError,
    ProgramState,
    UnsupportedError,
    assistant,
    function,
    gen,
    image,
    select,
    system,
    user,
    user_begin,
)
from ramet.lang.backends.base import Capabilities
from ramet.lang.backends.local import LocalBackend
from ramet.lang.backends.recording import RecordingBackend, ReplayBackend
from ramet.lang.backends.scripted import Reply, Scores, ScriptedBackend
from ramet.runtime.engine import Score
from ramet.runtime.protocol import InvalidRequestError, RequestFailedError
from tests.lang.backends.saying_engine import SayingEngine
from tests.lang.backends.small_tokenizer import GEMMA, small_tokenizer


@function
def program(s: ProgramState, topic: str, *, temperature: float = 0.5) -> None:
    s += user(f"About {topic}: " + image("https://example.org/a.png"))
    with s.assistant():
        s += "Well, " + gen("a", temperature=temperature, logit_bias={3: 1.0})
        s += select("b", ["yes", "no"], temperature=0.5, seed=1)
    branches = s.fork(3)
    branches += user("more") + assistant(gen("c", n=2) + gen("d", dtype=int))
    branches.join()


def script() -> ScriptedBackend:
    return ScriptedBackend(
        {"a": ["first one", "second one"], "b": Scores({"yes": 0.0}), "c": "x", "d": ["1", "2", "3"] * 2}
    )


def outcome(state: ProgramState) -> tuple[object, ...]:
    return state.text(), state.messages(), state["a"], state["b"], state["c"], sorted(state["d"])


def recorded(path: Path, backend: ScriptedBackend) -> list[tuple[object, ...]]:
    recording = RecordingBackend(backend, path)
    outcomes = [outcome(program.run("rain", backend=recording)) for _ in range(2)]
    asyncio.run(recording.aclose())
    return outcomes


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@function
def conversation(s: ProgramState, tail: str = "") -> None:
    s += system("Be brief.") + user("Hello") + assistant(gen("hello"))
    branches = s.fork(2)
    branches += lambda index: user(f"What is {index}?") + assistant(select("what", ["a", "b"]) + gen("more"))
    branches.join()
    s += user(f"Add {len(s['more'])}.") + assistant("Hm. " + gen("sum", tools=[add]))
    s += user_begin() + "Well" + tail


def with_a_template(gate: threading.Event | None = None) -> LocalBackend:
    """A backend whose text and messages are not those of a plain transcript."""
    call = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
    answers = ["Hi.", "x", "x", call, '{"answer": "It is 3."}']
    return LocalBackend(ChoosingEngine(small_tokenizer(GEMMA, bos="<s>"), answers, gate=gate))


class ChoosingEngine(SayingEngine):
    async def ascore(self, prompt: Any, continuations: Any, **options: Any) -> list[Score]:
        return [
            Score(text="", token_ids=ids, token_logprobs=[-1.0] * len(ids), logprob=-1.0 * len(ids), score=0.0)
            for ids in continuations
        ]


def test_text_and_messages_are_there_though_nobody_asked_when_it_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    recording = RecordingBackend(with_a_template(), path)
    conversation.run(backend=recording)
    asyncio.run(recording.aclose())
    replay = ReplayBackend(path)
    expected = conversation.run(backend=with_a_template())
    state = conversation.run(backend=replay)
    assert state.text() == expected.text()
    assert "<start_of_turn>model\nHm. " in state.text()
    assert state.messages() == expected.messages()
    assert '{"answer": "It is 3."}' in str(state.messages())
    # A text that was never said before, behind what was.
    longer = conversation.run(" then", backend=replay)
    assert longer.text() == expected.text().replace("Well", "Well then")
    assert longer.messages()[-1] == {"role": "user", "content": "Well then"}


def test_a_stream_of_all_that_is_said_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    gate = threading.Event()
    recording = RecordingBackend(with_a_template(gate), path)
    state = conversation.stream(backend=recording)
    said = ""
    for chunk in state.text_iter():
        gate.set()
        said += chunk
    # The tools are offered behind a call: what tells of them comes before all that was streamed.
    assert "Adds." not in said
    assert "Adds." in state.text()
    assert said.partition("Hello")[2] == state.text().partition("Hello")[2]
    asyncio.run(recording.aclose())
    # This one may begin before they are offered, or after.
    again = "".join(conversation.stream(backend=ReplayBackend(path)).text_iter())
    assert again in (said, state.text())


def test_a_stream_can_be_replayed_of_what_was_run_without_one(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    recording = RecordingBackend(with_a_template(), path)
    expected = conversation.run(backend=recording).text()
    asyncio.run(recording.aclose())
    for _ in range(5):  # It may begin before the tools are offered, or after.
        said = "".join(conversation.stream(backend=ReplayBackend(path)).text_iter())
        assert said.partition("Hello")[2] == expected.partition("Hello")[2] != ""


def test_answers_of_different_adapters_are_told_apart(tmp_path: Path) -> None:
    @function
    def program(s: ProgramState, lora: str | None) -> None:
        s += "q" + gen("a", lora=lora) + gen("b")

    path = tmp_path / "recording.jsonl"
    recording = RecordingBackend(ScriptedBackend(["one", "b1", "two", "b2"]), path)
    for lora in ("sql", None):
        program.run(lora, backend=recording)
    asyncio.run(recording.aclose())
    replay = ReplayBackend(path)
    assert [program.run(lora, backend=replay)["a"] for lora in (None, "sql", None)] == ["two", "one", "two"]
    with pytest.raises(UnsupportedError, match="record the program again"):
        program.run("math", backend=replay)


def test_a_template_that_refuses_the_turns_does_so_again(tmp_path: Path) -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "Go on: " + gen("x")
        s += user("a") + user("b")

    path = tmp_path / "recording.jsonl"
    recording = RecordingBackend(LocalBackend(SayingEngine(small_tokenizer(GEMMA, bos="<s>"), ["y"])), path)
    state = program.run(backend=recording)
    with pytest.raises(GenerationError) as refused:
        state.text()
    asyncio.run(recording.aclose())
    with pytest.raises(GenerationError) as again:
        program.run(backend=ReplayBackend(path)).text()
    assert again.value.message == refused.value.message


def test_an_engine_can_be_recorded_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_text("kept")
    with pytest.raises(InvalidRequestError, match="backend is int"):
        RecordingBackend(7, path)  # type: ignore[arg-type]
    assert path.read_text() == "kept"

    @function
    def says(s: ProgramState) -> None:
        s += "x" + gen("v", max_tokens=3)

    recording = RecordingBackend(SayingEngine(small_tokenizer(GEMMA, bos="<s>"), ["y"]), path)
    said = says.run(backend=recording)
    asyncio.run(recording.aclose())
    assert says.run(backend=ReplayBackend(path)).text() == said.text() == "xy"


def test_a_replay_gives_what_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    first, second = recorded(path, script())
    assert first != second
    replay = ReplayBackend(path)
    assert replay.capabilities == script().capabilities
    outcomes = [outcome(program.run("rain", backend=replay)) for _ in range(3)]
    # In the order in which they were recorded, then from the start again.
    assert outcomes == [first, second, first]


def test_streams_are_replayed_as_they_came(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    recorded(path, script())
    state = program.stream("rain", backend=ReplayBackend(path))
    assert list(state.text_iter("a")) == ["first", " one"]
    state.sync()


def test_what_was_not_recorded_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    recorded(path, script())
    with pytest.raises(
        UnsupportedError, match=r"has no generate after a prompt that ends with 'userAbout snow"
    ):
        program.run("snow", backend=ReplayBackend(path))
    with pytest.raises(UnsupportedError, match=r'has no generate.*"temperature": 0\.7'):
        program.run("rain", temperature=0.7, backend=ReplayBackend(path))


def test_errors_are_recorded_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"

    @function
    def fails(s: ProgramState, name: str) -> None:
        s += name + (select("s", ["x"]) if name == "s" else gen(name))

    backend = ScriptedBackend(
        {
            "a": Reply("some text", error=RequestFailedError("broken"), fail_after=1),
            "b": OSError("gone"),
            "s": OSError("gone"),
            "c": GenerationError("the server answers with status 500"),
            "d": UnsupportedError("it has no such model"),
        }
    )
    recording = RecordingBackend(backend, path)
    said: dict[str, list[str]] = {}
    for source in (recording, ReplayBackend(path)):
        for name, words in (
            ("a", "RequestFailedError: broken"),
            ("b", "OSError: gone"),
            ("s", "OSError: gone"),
            ("c", "the server answers"),
            ("d", "it has no such model"),
        ):
            kind = UnsupportedError if name == "d" else GenerationError
            with pytest.raises(kind, match=rf"^{words}") as raised:
                fails.run(name, backend=recording if source is recording else ReplayBackend(path))
            said.setdefault(name, []).append(str(raised.value))
    assert all(first == second for first, second in said.values())
    asyncio.run(recording.aclose())


def test_the_wrapped_backend_is_reached(tmp_path: Path) -> None:
    inner = script()
    recording = RecordingBackend(inner, tmp_path / "recording.jsonl")
    prompt = recording.prompt()
    prompt.append_text("ahead")

    async def main() -> None:
        await recording.prefill([prompt])
        await recording.flush_cache()
        assert (await recording.server_info())["num_calls"] == 0
        await recording.aclose()
        replay = ReplayBackend(tmp_path / "recording.jsonl")
        await replay.prefill([replay.prompt()])
        await replay.flush_cache()
        assert (await replay.server_info())["num_questions"] == 0
        await replay.aclose()

    asyncio.run(main())
    assert inner.prefilled == ["ahead"]
    assert inner.num_flushes == 1


@pytest.mark.parametrize("content", ["", "no json\n", '{"format": "other"}\n', '{"x": 1}\n', "[]\n", None])
def test_files_that_are_no_recording(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "recording.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidRequestError, match="is not a recording"):
        ReplayBackend(path)


def test_capabilities_are_those_recorded(tmp_path: Path) -> None:
    plain = Capabilities(name="plain", select=False)
    recording = RecordingBackend(ScriptedBackend(capabilities=plain), tmp_path / "r.jsonl")
    asyncio.run(recording.aclose())
    assert ReplayBackend(tmp_path / "r.jsonl").capabilities == plain
