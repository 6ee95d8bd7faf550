"""Recording and replaying: equal runs, and refusals by name."""

import asyncio
from pathlib import Path

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
    user,
)
from ramet.lang.backends.base import Capabilities
from ramet.lang.backends.recording import RecordingBackend, ReplayBackend
from ramet.lang.backends.scripted import Reply, Scores, ScriptedBackend
from ramet.runtime.protocol import InvalidRequestError, RequestFailedError


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
        }
    )
    recording = RecordingBackend(backend, path)
    for source in (recording, ReplayBackend(path)):
        for name, words in (
            ("a", "RequestFailedError: broken"),
            ("b", "OSError: gone"),
            ("s", "OSError: gone"),
        ):
            with pytest.raises(GenerationError, match=words):
                fails.run(name, backend=recording if source is recording else ReplayBackend(path))
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
