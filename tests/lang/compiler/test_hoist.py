"""The common beginning of a batch, computed once before the first calls."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.lang import ProgramState, assistant, function, gen, system, user
from ramet.lang.backends.base import Prompt, ToolSpec
from ramet.lang.backends.scripted import EVERYTHING, Reply, ScriptedBackend
from ramet.lang.compiler.hoist import MIN_PREFIX, PrefixGate, common_start, say
from ramet.lang.compiler.piece import Fixed, marked_text
from ramet.lang.operations import AppendImage, AppendText, BeginRole, EndRole

LONG = "You answer questions about plants, and only about plants. " * 8

fixed = st.lists(
    st.one_of(
        st.builds(AppendText, st.sampled_from(["", "a", "ab", "b"])),
        st.sampled_from([BeginRole("user"), EndRole("user"), AppendImage("data:x")]),
    ),
    max_size=6,
)


@given(fixed, fixed)
def test_the_common_start_is_what_both_texts_begin_with(left: list[Fixed], right: list[Fixed]) -> None:
    shared = common_start(left, right)
    text, one, other = marked_text(shared), marked_text(left), marked_text(right)
    assert one.startswith(text)
    assert other.startswith(text)
    assert common_start(shared, left) == common_start(shared, right) == shared
    if len(text) < min(len(one), len(other)) and "\x00" not in one[len(text) :] + other[len(text) :]:
        assert one[len(text)] != other[len(text)]


def test_texts_that_follow_one_another_are_one() -> None:
    assert common_start([AppendText("a"), AppendText("bc")], [AppendText("abd")]) == (AppendText("ab"),)
    prompt = ScriptedBackend().prompt()
    parts: list[Fixed] = [BeginRole("user"), AppendText("a"), AppendImage("data:x"), EndRole("user")]
    say(prompt, parts)
    assert prompt.text() == "<|im_start|>user\na<|image|><|im_end|>\n"


class Slow(ScriptedBackend):
    """Computes ahead slowly, and remembers what was called before that was done."""

    early = 0
    error: Exception | None = None

    async def prefill(self, prompts: Sequence[Prompt]) -> None:
        await super().prefill(prompts)
        await asyncio.sleep(0.02)
        self.early = len(self.calls)
        if self.error is not None:
            raise self.error


@function
def question(s: ProgramState, text: str, start: str = LONG) -> None:
    s += system(start) + user(text) + assistant(gen("answer"))


@function
async def aquestion(s: ProgramState, text: str) -> None:
    s += system(LONG) + user(text) + assistant(gen("answer"))


@pytest.mark.parametrize("program", [question, aquestion], ids=["sync", "async"])
def test_what_a_batch_begins_with_is_computed_once_and_first(program: object) -> None:
    assert program in (question, aquestion)
    chosen = question if program is question else aquestion
    backend = Slow(lambda prompt: prompt[-40:-30])
    states = chosen.compile().run_batch([{"text": f"{i} roots?"} for i in range(20)], backend=backend)
    plain = chosen.interpreted().run_batch(
        [{"text": f"{i} roots?"} for i in range(20)], backend=ScriptedBackend(lambda prompt: prompt[-40:-30])
    )
    assert [state.text() for state in states] == [state.text() for state in plain]
    assert len(backend.prefilled) == 1
    assert backend.prefilled[0].startswith("<|im_start|>system\n" + LONG)
    # The first to come goes alone where no other one comes soon.
    assert backend.early <= 1


def test_a_backend_that_has_nothing_of_it_is_not_asked() -> None:
    plain = msgspec.structs.replace(EVERYTHING, hoists=False)
    backend = Slow("x", capabilities=plain)
    question.run_batch([(f"{i} roots?",) for i in range(20)], backend=backend)
    assert backend.prefilled == []
    assert "has nothing of" in str(question.explain("roots?", backend=backend))


def test_the_tools_of_the_first_call_are_part_of_the_beginning() -> None:
    gate = PrefixGate(Slow("x"))
    start = (AppendText("a" * MIN_PREFIX),)
    one = (ToolSpec(name="one", parameters={"type": "object"}),)

    async def meet(*tools: tuple[ToolSpec, ...]) -> None:
        await asyncio.wait_for(asyncio.gather(*[gate.arrive(start, told) for told in tools]), 60)

    asyncio.run(meet(one, (), one))
    assert gate.prefix == ()
    gate = PrefixGate(Slow("x"))
    asyncio.run(meet(one, one, ()))
    assert gate.prefix == start


def test_programs_that_begin_otherwise_do_not_wait_for_it() -> None:
    gate = PrefixGate(Slow("x"))
    start = (AppendText("a" * MIN_PREFIX + "b"),)

    async def meet() -> list[bool]:
        first = asyncio.create_task(gate.arrive(start))
        await asyncio.sleep(0)
        second = asyncio.create_task(gate.arrive(start))
        await asyncio.sleep(0)
        other = asyncio.create_task(gate.arrive((AppendText("c" * MIN_PREFIX),)))
        short = asyncio.create_task(gate.arrive((AppendText("c"),)))
        await asyncio.wait([other, short])
        waited = [first.done(), second.done()]
        await asyncio.wait_for(asyncio.gather(first, second), 60)
        return waited

    assert asyncio.run(meet()) == [False, False]
    assert gate.prefix == start


def test_one_program_alone_does_not_wait_long() -> None:
    gate = PrefixGate(Slow("x"))

    async def alone() -> None:
        await asyncio.wait_for(gate.arrive((AppendText("a" * MIN_PREFIX),)), 60)
        await asyncio.wait_for(gate.arrive((AppendText("b" * MIN_PREFIX),)), 60)
        await asyncio.wait_for(gate.arrive((AppendText("a" * MIN_PREFIX),)), 60)

    asyncio.run(alone())
    gate.close()
    assert gate.prefix == ()


def test_a_prefix_that_cannot_be_computed_fails_nothing() -> None:
    backend = Slow("x")
    backend.error = OSError("full")
    states = question.run_batch([("a",), ("b",), ("c",)], backend=backend)
    assert [state["answer"] for state in states] == ["x"] * 3


@pytest.mark.parametrize("num_threads", [1, 2])
def test_short_beginnings_and_single_runs_compute_nothing_ahead(num_threads: int) -> None:
    backend = ScriptedBackend(Reply("x"))
    question.run_batch([("a", "brief"), ("b", "brief")], backend=backend, num_threads=num_threads)
    question.run_batch([("a",)], backend=backend)
    question.run("a", backend=backend)
    assert backend.prefilled == []


def test_a_cancelled_batch_leaves_no_computation() -> None:
    class Endless(ScriptedBackend):
        async def prefill(self, prompts: Sequence[Prompt]) -> None:
            await asyncio.sleep(600)

    backend = Endless("x")

    async def run() -> None:
        await asyncio.wait_for(question.arun_batch([("a",), ("b",)], backend=backend), 0.2)

    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert len(backend.calls) <= 1
