"""The scripted backend stands in for a model: scripts, stops, limits, errors, and what it remembers."""

import asyncio
from typing import Any

import pytest

from ramet.lang.backends.base import GenerateDelta, SelectRequest
from ramet.lang.backends.scripted import Reply, Scores, ScriptedBackend
from ramet.lang.errors import ProgramStructureError
from ramet.runtime.protocol import Choice, FinishReason, JsonSchema, ProgramTag, Regex, SamplingParams


async def generate(
    backend: ScriptedBackend, text: str = "", variable: str = "", **options: Any
) -> list[GenerateDelta]:
    prompt = backend.prompt()
    prompt.append_text(text)
    tag = ProgramTag(variable=variable)
    deltas = [delta async for delta in prompt.generate(SamplingParams(**options), tag=tag)]
    said = "".join(delta.text for delta in deltas)
    assert prompt.text() == text + (said if options.get("n", 1) == 1 else "")
    return deltas


def answer(backend: ScriptedBackend, *args: Any, **options: Any) -> tuple[str, FinishReason | None, object]:
    deltas = asyncio.run(generate(backend, *args, **options))
    return "".join(delta.text for delta in deltas), deltas[-1].finish_reason, deltas[-1].stop_reason


STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def test_scripts() -> None:
    assert answer(ScriptedBackend("x"))[0] == "x"
    assert answer(ScriptedBackend(lambda prompt: prompt.upper()), "ab")[0] == "AB"
    listed = ScriptedBackend(["1", Reply("2")])
    assert [answer(listed)[0] for _ in range(2)] == ["1", "2"]
    with pytest.raises(ProgramStructureError, match="has 2 answers, and is asked for one more"):
        answer(listed)
    named = ScriptedBackend({"a": ["1", "2"], "": "unnamed", "*": lambda prompt: "other"})
    assert [answer(named, "", name)[0] for name in ("a", "", "a", "b")] == ["1", "unnamed", "2", "other"]
    with pytest.raises(ProgramStructureError, match="no answer for 'b'"):
        answer(ScriptedBackend({"a": "1"}), "", "b")
    with pytest.raises(ProgramStructureError, match="answers with int"):
        answer(ScriptedBackend(lambda prompt: 3))  # type: ignore[arg-type]
    with pytest.raises(ProgramStructureError, match="a gen with Scores"):
        answer(ScriptedBackend(Scores({})))


def test_answers_end_as_a_models_do() -> None:
    backend = ScriptedBackend("one two. three")
    assert answer(backend) == ("one two. three", STOP, None)
    assert answer(backend, max_tokens=2) == ("one two.", LENGTH, None)
    assert answer(backend, max_tokens=3) == ("one two. three", STOP, None)
    assert answer(backend, stop=(".", "e ")) == ("on", STOP, "e ")
    assert answer(backend, stop_regex=("t[h]",)) == ("one two. ", STOP, "t[h]")
    assert answer(backend, stop=(".",), include_stop=True) == ("one two.", STOP, ".")
    assert answer(backend, stop=("e",), min_tokens=2) == ("one two. thr", STOP, "e")
    ids = [delta.token_ids for delta in asyncio.run(generate(backend))]
    assert answer(backend, stop_token_ids=ids[1]) == ("one", STOP, ids[1][0])
    deltas = asyncio.run(generate(backend, "a b"))
    assert [delta.text for delta in deltas] == ["one", " two.", " three", ""]
    assert deltas[-1].stats is not None
    assert (deltas[-1].stats.num_prompt_tokens, deltas[-1].stats.num_output_tokens) == (2, 3)


def test_several_answers() -> None:
    deltas = asyncio.run(generate(ScriptedBackend(["a", "b"]), n=2))
    assert [(delta.index, delta.text) for delta in deltas if delta.text] == [(0, "a"), (1, "b")]


def test_a_script_that_breaks_its_constraint_is_an_error() -> None:
    for grammar, good, bad in (
        (Regex("a+"), "aa", "ab"),
        (Choice(("x", "y")), "y", "z"),
        (JsonSchema("{}"), "[1]", "[1"),
    ):
        assert answer(ScriptedBackend(good), grammar=grammar)[0] == good
        with pytest.raises(ProgramStructureError, match="does not meet"):
            answer(ScriptedBackend(bad), grammar=grammar)
    # What was cut short could still have met it.
    assert answer(ScriptedBackend("[1, 2"), grammar=JsonSchema("{}"), max_tokens=1)[0] == "[1,"


def test_errors_and_cancellation_are_remembered() -> None:
    backend = ScriptedBackend([OSError("gone"), Reply("a b c", error=OSError("late"), fail_after=2)])
    for _ in range(2):
        with pytest.raises(OSError, match=r"gone|late"):
            asyncio.run(generate(backend))

    async def cancelled() -> None:
        slow = ScriptedBackend("x", delay=60)
        task = asyncio.create_task(generate(slow))
        await asyncio.sleep(0.01)
        assert (slow.num_running, slow.calls[0].state) == (1, "running")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (slow.num_running, slow.calls[0].state) == (0, "cancelled")

    asyncio.run(cancelled())
    assert [(call.state, call.answer) for call in backend.calls] == [("failed", ""), ("failed", "a b")]
    assert backend.num_running == 0


def select(backend: ScriptedBackend, **options: Any) -> Any:
    prompt = backend.prompt()
    result = asyncio.run(prompt.select(SelectRequest(options=("x", "y"), **options)))
    assert prompt.text() == result.option
    return result


def test_select() -> None:
    assert select(ScriptedBackend("y")).index == 1
    assert select(ScriptedBackend(Scores({"x": -2.0, "y": -3.0}))).scores == (-2.0, -3.0)
    drawn = {
        select(ScriptedBackend(Scores({"x": 0.0, "y": 0.0})), temperature=1.0, seed=i).option for i in range(20)
    }
    assert drawn == {"x", "y"}
    with pytest.raises(ProgramStructureError, match="none of"):
        select(ScriptedBackend("z"))
    with pytest.raises(OSError, match="gone"):
        select(ScriptedBackend(OSError("gone")))
    backend = ScriptedBackend("y")
    select(backend, seed=4, priority=2)
    assert (backend.calls[0].kind, backend.calls[0].seed, backend.calls[0].priority) == ("select", 4, 2)
    asyncio.run(backend.aclose())
