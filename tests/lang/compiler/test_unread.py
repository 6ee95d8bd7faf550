"""Calls that are not made, since a program was compiled for other outputs."""

import pytest

from ramet.lang import (
    BranchError,
    ProgramState,
    ProgramStructureError,
    UnknownVariableError,
    assistant,
    function,
    gen,
    select,
    user,
)
from ramet.lang.backends.scripted import Reply, ScriptedBackend
from ramet.lang.compiler.piece import Call, Piece, calls_of
from ramet.lang.compiler.unread import drop_unread
from ramet.runtime.protocol import InvalidRequestError


@function
def program(s: ProgramState) -> None:
    s += "q" + gen("a") + " and" + gen("b")
    with s.var_scope("scope"):
        s += "[" + gen("inside") + "]"
    branches = s.fork(2)
    branches += gen("c") + gen("d")
    branches.join()
    other = s.fork(1)
    other += gen("e")
    other.join("concate_and_append")
    s += gen("f")
    never = s.fork(1)
    never += gen("g")


def called(outputs: list[str]) -> list[str]:
    backend = ScriptedBackend(lambda prompt: f"<{len(prompt)}>")
    state = program.compile(outputs=outputs).run(backend=backend)
    expected = program.run(backend=ScriptedBackend(lambda prompt: f"<{len(prompt)}>"))
    assert {name: state[name] for name in outputs} == {name: expected[name] for name in outputs}
    return sorted(call.tag.variable for call in backend.calls)


@pytest.mark.parametrize(
    ("outputs", "calls"),
    [
        ([], []),
        (["a"], ["a"]),
        (["b"], ["a", "b"]),
        (["scope"], ["a", "b", "inside"]),
        (["c"], ["a", "b", "c", "c", "inside"]),
        (["d"], ["a", "b", "c", "c", "d", "d", "inside"]),
        (["f"], ["a", "b", "e", "f", "inside"]),
        (["c", "f"], ["a", "b", "c", "c", "e", "f", "inside"]),
    ],
)
def test_only_calls_that_an_output_needs_are_made(outputs: list[str], calls: list[str]) -> None:
    assert called(outputs) == calls


def test_what_was_left_out_says_so_where_it_is_read() -> None:
    state = program.compile(outputs=["b"]).run(backend=ScriptedBackend("x"))
    for read in ("scope", "f"):
        with pytest.raises(ProgramStructureError, match=r"compiled for other outputs; add this one.*'program'"):
            state[read]
    with pytest.raises(BranchError, match="compiled for other outputs"):
        state["d"]
    with pytest.raises(ProgramStructureError, match="compiled for other outputs"):
        state.text()
    with pytest.raises(ProgramStructureError, match="compiled for other outputs"):
        state.messages()
    with pytest.raises(ProgramStructureError, match="compiled for other outputs"):
        list(state.text_iter())
    assert state["b"] == "x"
    assert state.error() is None


def test_a_stream_of_a_program_with_outputs_ends_with_that_error() -> None:
    state = program.compile(outputs=["b"]).stream(backend=ScriptedBackend("x"))
    assert "".join(state.text_iter("b")) == "x"
    with pytest.raises(ProgramStructureError, match="compiled for other outputs"):
        list(state.text_iter())


def test_the_text_of_a_program_that_lost_nothing_is_there() -> None:
    @function
    def small(s: ProgramState) -> None:
        s += "q" + gen("a") + " end"

    assert small.compile(outputs=["a"]).run(backend=ScriptedBackend("x")).text() == "qx end"


def test_a_value_that_the_program_reads_is_made() -> None:
    backend = ScriptedBackend("x")

    @function
    def reading(s: ProgramState) -> None:
        s += gen("a") + gen("b")
        if s["a"] == "x":
            s += gen("c")
        s += gen("d")

    assert reading.compile(outputs=["c"]).run(backend=backend)["c"] == "x"
    # Up to the read nobody can know what is read later.
    assert [call.tag.variable for call in backend.calls] == ["a", "b", "c"]


def test_a_call_that_may_run_tools_is_made() -> None:
    used: list[int] = []

    def double(number: int) -> int:
        """Twice the number."""
        used.append(number)
        return 2 * number

    @function
    def acting(s: ProgramState) -> None:
        s += user("?") + assistant(gen("done", tools=[double])) + user("!") + assistant(gen("comment"))

    backend = ScriptedBackend({"done": [Reply('{"number": 2}'), Reply("ok")], "comment": "x"})
    trace = acting.compile(outputs=[]).trace(backend=backend)
    (piece,) = trace.pieces()
    assert [call.variable.name for call in _calls(drop_unread(piece))] == ["done"]


def _calls(piece: Piece) -> list[Call]:
    return [call for track in piece.tracks for call in calls_of(track)]


def test_nothing_is_left_out_of_a_run_without_outputs() -> None:
    backend = ScriptedBackend("x")
    program.run(backend=backend)
    assert len(backend.calls) == 10
    (piece,) = program.trace().pieces()
    assert drop_unread(piece) is piece


def test_errors_of_calls_that_are_not_made_do_not_occur() -> None:
    @function
    def failing(s: ProgramState) -> None:
        s += select("good", ["x"]) + gen("bad")

    backend = ScriptedBackend({"good": "x", "bad": ValueError("boom")})
    assert failing.compile(outputs=["good"]).run(backend=backend)["good"] == "x"


def test_outputs_that_the_program_does_not_make_are_refused_by_name() -> None:
    with pytest.raises(UnknownVariableError, match=r"'z'.*there are 'a'"):
        program.compile(outputs=["z"]).run(backend=ScriptedBackend("x"))
    for wrong in ("a", [1]):
        with pytest.raises(InvalidRequestError, match="outputs is"):
            program.compile(outputs=wrong)  # type: ignore[arg-type]
