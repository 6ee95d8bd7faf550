"""Tracing: how far programs are followed, and that nothing is carried out."""

import asyncio
import json
from typing import Any

import pydantic
import pytest

from ramet.lang import (
    ProgramState,
    ProgramStructureError,
    UnknownVariableError,
    UnsupportedError,
    assistant,
    function,
    gen,
    select,
    use_tools,
    user,
)
from ramet.lang.backends.base import Capabilities
from ramet.lang.backends.scripted import ScriptedBackend
from ramet.lang.compiler.trace import is_tracing
from ramet.lang.operations import AppendText


class Plan(pydantic.BaseModel):
    title: str
    steps: list[str]


def names(body: Any, *args: Any, **kwargs: Any) -> tuple[list[str], str]:
    trace = function(body).trace(*args, **kwargs)
    return [call.name for call in trace.graph.calls], str(trace.stop or "")


def test_a_program_that_only_says_what_it_reads_is_followed_to_its_end() -> None:
    def body(s: ProgramState) -> None:
        s += "q" + gen("text") + gen("number", dtype=int) + gen("plan", json_schema=Plan) + gen("many", n=2)
        s += f"{s['text']} {s['number']} {s['plan'].title} {s['many'][0]}" + select("end", ["x", "y"])
        s.set_var("known", "value")
        s.set_var("copy", s["text"])
        if s["known"] == "value" and "other" not in s:
            s += s["copy"] + gen("last")
        s.sync()

    assert names(body) == (["text", "number", "plan", "many", "end", "last"], "")


@pytest.mark.parametrize(
    ("look", "reason"),
    [
        (lambda s: s["a"] == "x", "what it does next depends on what 'a' is"),
        (lambda s: range(s["n"]), "what it does next depends on what 'n' is"),
        (
            lambda s: int(s["a"]),
            "it raises ValueError: invalid literal for int() with base 10: '...', as it looks at",
        ),
        (lambda s: _claim(s["a"] is None), "it raises LookupError, as it looks at what is not known yet"),
        (lambda s: json.loads(s["a"]), "what it does next depends on what 'a' is (test_trace.py"),
        (lambda s: s.text(), "it reads its own text"),
        (lambda s: s.messages(), "it reads its own messages"),
        (lambda s: s.get_meta_info("a"), "it asks how the call of 'a' went"),
        (lambda s: s.error(), "it asks whether a call has failed"),
        (lambda s: list(s.text_iter()), "it follows its own text while it is generated"),
        (lambda s: list(s.text_iter("a")), "it follows the text of 'a' while it is generated"),
        (lambda s: function(lambda t: None).run(backend=ScriptedBackend()), "it runs the program <lambda>"),
    ],
)
def test_a_program_is_followed_to_where_it_looks(look: Any, reason: str) -> None:
    def body(s: ProgramState) -> None:
        s += gen("a") + gen("n", dtype=int)
        look(s)
        s += gen("b")

    called, stop = names(body)
    assert called == ["a", "n"]
    assert stop.startswith(reason)
    assert "test_trace.py:" in stop


def _claim(what: bool) -> None:
    if not what:
        raise LookupError


def test_the_line_is_named_at_which_a_trace_ends() -> None:
    def body(s: ProgramState) -> None:
        s += gen("a")
        if s["a"]:
            s += gen("b")

    line = body.__code__.co_firstlineno + 2
    assert names(body)[1].endswith(f"(test_trace.py:{line})")


def test_arguments_that_are_not_given_are_left_open() -> None:
    def body(s: ProgramState, a: str, b: str = "default", *, c: str) -> None:
        s += f"{b}: {a} {c}" + gen("x")
        if c == "more":
            s += gen("y")

    assert names(body) == (["x"], names(body)[1])
    assert "the argument c" in names(body)[1]
    assert names(body, c="more") == (["x", "y"], "")
    trace = function(body).trace(c="more")
    assert trace.prefix == (AppendText("default: "),)
    assert function(body).bind(a="A").trace(c="more").prefix == (AppendText("default: A more"),)


def test_an_error_of_the_program_itself_is_raised() -> None:
    def wrong(s: ProgramState) -> None:
        s += gen("a")
        s["b"]

    with pytest.raises(UnknownVariableError, match="'b'"):
        function(wrong).trace()

    def nested(s: ProgramState) -> None:
        s += user(assistant("a"))

    with pytest.raises(ProgramStructureError, match="roles do not nest"):
        function(nested).trace()
    with pytest.raises(TypeError, match="program wrong: too many positional"):
        function(wrong).trace(1)


def test_what_the_backend_cannot_do_is_refused_as_in_a_run() -> None:
    poor = ScriptedBackend(capabilities=Capabilities(name="poor"))

    def body(s: ProgramState) -> None:
        s += select("a", ["x"])

    with pytest.raises(UnsupportedError, match="poor cannot select"):
        function(body).trace(backend=poor)


def test_async_programs_are_followed_as_far_as_they_await_nothing_else() -> None:
    async def body(s: ProgramState) -> None:
        s += gen("a")
        s += await s.aio.get("a") + gen("b")
        await asyncio.sleep(0)
        s += gen("c")

    assert names(body) == (["a", "b"], "it awaits something outside of the program")


def test_loops_with_tools_are_followed_to_their_first_call() -> None:
    def tool(x: int) -> int:
        """A tool."""
        raise AssertionError("a trace runs no tools")

    def body(s: ProgramState) -> None:
        s += user("?")
        use_tools(s, "answer", [tool])

    called, stop = names(body)
    assert called == ["answer_call"]
    assert stop


def test_nothing_is_said_of_a_trace_while_programs_run() -> None:
    seen: list[bool] = []

    def body(s: ProgramState) -> None:
        seen.append(is_tracing())

    program = function(body)
    program.run(backend=ScriptedBackend())
    program.trace()
    program.run(backend=ScriptedBackend())
    assert seen == [False, True, False]


def test_a_trace_can_be_cut_into_the_pieces_of_a_run() -> None:
    def body(s: ProgramState) -> None:
        s += gen("a")
        branches = s.fork(2)
        branches += s["a"] + gen("b")
        branches.join()
        s += " ".join(s["b"]) + gen("c")

    trace = function(body).trace()
    pieces = trace.pieces()
    branches = [[track.branch.path for track in piece.tracks] for piece in pieces]
    assert branches == [["0"], ["0/0", "0/1"], ["0"]]
    assert [(piece.waits, piece.whole) for piece in pieces] == [(True, False), (True, False), (False, True)]
    assert sum(len(track.operations) for piece in pieces for track in piece.tracks) == len(trace.log)
    assert [trace.order[call.index] for call in trace.graph.calls] == sorted(trace.order.values())


def test_a_trace_says_what_it_found() -> None:
    def body(s: ProgramState) -> None:
        s += gen("a") + gen()
        if s["a"]:
            s += gen("b")

    text = str(function(body).trace())
    assert text.splitlines()[:3] == ["program body: 2 calls", "  0: a", "  0: 0#1 after a"]
    assert "followed up to here: what it does next depends on what 'a' is" in text
