"""Equal calls are made once, and nobody can tell."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from ramet.lang import GenerationError, ProgramCancelledError, ProgramState, function, gen, select
from ramet.lang.backends.base import Capabilities
from ramet.lang.backends.scripted import EVERYTHING, Reply, ScriptedBackend
from ramet.lang.compiler.shared_calls import MAX_REMEMBERED, SharedCalls, is_repeatable, question
from ramet.lang.operations import Generate
from ramet.lang.variables import Place, Variable
from ramet.runtime.protocol import ProgramTag, SamplingParams
from tests.lang.test_fork_trees import NAMES, Oracle, Step, chosen, program, reply, trees

REPEATABLE: Capabilities = msgspec.structs.replace(EVERYTHING, repeatable=True)


def backend(script: Any = "x", **options: Any) -> ScriptedBackend:
    return ScriptedBackend(script, capabilities=REPEATABLE, **options)


def test_equal_calls_of_branches_are_one() -> None:
    asked = backend(Reply("one two", token_delay=0.005))

    @function
    def forked(s: ProgramState) -> None:
        s += "q"
        branches = s.fork(5)
        branches += gen("a", temperature=0) + "," + gen("b", temperature=0)
        branches[0].fork(1)[0].__iadd__(gen("c", temperature=0))
        branches.join()

    state = forked.run(backend=asked)
    assert state["a"] == state["b"] == ["one two"] * 5
    assert [(call.prompt, call.state) for call in asked.calls] == [
        ("q", "finished"),
        ("qone two,", "finished"),
        ("qone two,one two", "finished"),
    ]
    metas = state.get_meta_info("a")
    assert [meta["branch"] for meta in metas] == [f"0/{i}" for i in range(5)]
    assert len({meta["token_ids"] for meta in metas}) == 1


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({"temperature": 0}, 1),
        ({"temperature": 1, "seed": 3}, 1),
        ({"temperature": 1}, 3),
        ({}, 3),
        ({"temperature": 0, "n": 2}, 1),
    ],
)
def test_only_calls_without_a_choice_are_merged(options: dict[str, Any], calls: int) -> None:
    asked = backend()

    @function
    def forked(s: ProgramState) -> None:
        branches = s.fork(3)
        branches += gen("a", **options)

    forked.run(backend=asked)
    assert len(asked.calls) == calls
    plain = backend()
    forked.interpreted().run(backend=plain)
    assert len(plain.calls) == 3
    unsure = ScriptedBackend("x")
    forked.run(backend=unsure)
    assert len(unsure.calls) == 3


def test_calls_that_differ_in_anything_are_made() -> None:
    asked = backend({"a": "x", "b": "x", "p": " yes", "q": " yes"})

    @function
    def forked(s: ProgramState) -> None:
        branches = s.fork(6)
        branches += [
            gen("a", temperature=0),
            gen("b", temperature=0),
            gen("a", temperature=0, max_tokens=3),
            "text" + gen("a", temperature=0),
            select("p", [" yes", " no"]),
            select("q", [" yes", " no"], temperature=1.0),
        ]

    forked.run(backend=asked)
    # Only the name of the variable differs between the first two.
    assert len(asked.calls) == 5


def test_a_batch_shares_its_calls() -> None:
    asked = backend(lambda prompt: Reply(prompt[::-1], delay=0.002))

    @function
    def reverse(s: ProgramState, word: str) -> None:
        s += word + gen("a", temperature=0)

    states = reverse.run_batch([(f"word{i % 3}",) for i in range(30)], backend=asked)
    assert [state["a"] for state in states] == [f"word{i % 3}"[::-1] for i in range(30)]
    assert len(asked.calls) == 3


def test_a_branch_that_goes_leaves_the_call_to_the_others() -> None:
    asked = backend({"slow": Reply("one two three", token_delay=0.02)})

    @function
    def forked(s: ProgramState) -> None:
        first, second = s.fork(1)[0], s.fork(1)[0]
        first += gen("slow", temperature=0)
        second += gen("slow", temperature=0)
        assert next(second.text_iter("slow"))
        first.cancel()
        assert second["slow"] == "one two three"
        with pytest.raises(ProgramCancelledError):
            first["slow"]

    forked.run(backend=asked)
    assert [call.state for call in asked.calls] == ["finished"]


def test_the_last_one_to_go_ends_the_call() -> None:
    asked = backend({"slow": Reply("x", delay=600)})

    @function
    def forked(s: ProgramState) -> None:
        branches = s.fork(3)
        branches += gen("slow", temperature=0)
        raise KeyError("enough")

    with pytest.raises(KeyError):
        forked.run(backend=asked)
    assert asked.num_running == 0
    assert {call.state for call in asked.calls} <= {"cancelled"}


def test_all_who_asked_are_told_of_an_error_and_whoever_asks_later_asks_anew() -> None:
    asked = backend([Reply("one two", error=OSError("gone"), fail_after=1), "fine"])

    @function
    def forked(s: ProgramState) -> None:
        branches = s.fork(2, return_errors=True)
        branches += gen("a", temperature=0)
        branches.join()
        errors = s["a"]
        assert [type(error) for error in errors] == [GenerationError] * 2
        assert {error.branch for error in errors} == {"0/0", "0/1"}
        s += gen("b", temperature=0)

    assert forked.run(backend=asked)["b"] == "fine"
    assert [call.state for call in asked.calls] == ["failed", "finished"]


def test_streams_of_merged_calls_are_whole() -> None:
    asked = backend(Reply("one two three four", token_delay=0.002))

    @function
    def forked(s: ProgramState) -> None:
        branches = s.fork(3)
        branches += gen("a", temperature=0) + "."
        assert ["".join(branch.text_iter()) for branch in branches] == ["one two three four."] * 3
        late = s.fork(1)[0]
        late += gen("a", temperature=0)
        assert "".join(late.text_iter("a")) == "one two three four"

    forked.run(backend=asked)
    assert len(asked.calls) == 1


def test_what_is_remembered_is_bounded() -> None:
    shared = SharedCalls(REPEATABLE)
    asked = backend("x")

    async def ask() -> None:
        for number in range(MAX_REMEMBERED + 10):
            prompt = asked.prompt()
            prompt.append_text(str(number))
            call = Generate(_variable(), SamplingParams(temperature=0.0), ProgramTag(), str)
            own = shared.join(prompt, call)
            assert own is not None
            deltas = [delta async for delta in own.generate(call.params, tag=call.tag)]
            assert deltas[-1].finish_reason is not None
            assert own.after().text() == f"{number}x"

    asyncio.run(ask())
    assert len(shared._calls) == MAX_REMEMBERED
    assert shared.num_merged == 0


def _variable() -> Any:
    return Variable("a", Place("program", "0"))


def test_what_is_asked_does_not_depend_on_who_asks() -> None:
    def call(tag: ProgramTag, **options: Any) -> Generate:
        return Generate(_variable(), SamplingParams(temperature=0.0, **options), tag, str)

    one, other = call(ProgramTag(branch="0")), call(ProgramTag(branch="0/1"))
    assert question(one) == question(other)
    assert question(one) != question(call(ProgramTag(), stop=("x",)))
    assert question(call(ProgramTag(), logit_bias={3: 1.0})) != question(one)
    assert is_repeatable(one)


@given(trees)
@hypothesis_settings(max_examples=80)
def test_any_program_gives_the_same_compiled_and_interpreted(steps: list[Step]) -> None:
    """Calls are greedy, so that equal ones are merged."""
    oracle = Oracle()
    oracle.run(tuple(steps))
    results = []
    num_calls = []
    for variant in (program, program.compile(), program.compile(outputs=[]), program.interpreted()):
        asked = backend(
            {"p": lambda prompt: Reply(chosen(prompt)), "q": lambda prompt: Reply(chosen(prompt)), "*": reply}
        )
        state = variant.run(tuple(steps), backend=asked, temperature=0)
        num_calls.append(len(asked.calls))
        if variant._compilation.outputs is None:
            results.append((state.text(), {name: state[name] for name in NAMES if name in state}))
    assert results == [(oracle.text, oracle.values)] * 3
    assert num_calls[0] == num_calls[1] <= num_calls[3]
    assert num_calls[2] <= num_calls[3]
