"""Bodies that tell, before they read at their end, that they say nothing any more."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ramet.lang import ProgramState, assistant, function, gen, user
from ramet.lang.backends.base import Backend
from ramet.lang.backends.scripted import ScriptedBackend
from ramet.lang.compiler.tail import mark_end
from ramet.lang.errors import UnknownVariableError
from ramet.runtime.protocol import programs


class Whole(ScriptedBackend):
    """Is sent whole programs, and answers their calls one by one all the same."""

    takes_whole = True

    def __init__(self) -> None:
        super().__init__({"*": lambda prompt: f"{len(prompt)}"})
        self.sent: list[programs.WireProgram] = []

    @property
    def backend(self) -> Backend:
        return self

    def send_whole(
        self, program: programs.WireProgram, calls: Mapping[tuple[str, int], str], *, cache_salt: str
    ) -> "Whole":
        self.sent.append(program)
        return self

    def begin(self) -> None:
        """Nothing runs anywhere else."""

    def close(self) -> None:
        """Nothing runs anywhere else."""


def two(s: ProgramState) -> None:
    s += user("one") + assistant(gen("a")) + user("two") + assistant(gen("b"))


def returned(s: ProgramState) -> Any:
    two(s)
    return s["b"]


def made_of(s: ProgramState) -> Any:
    two(s)
    first = str(s["a"]).strip()
    texts: list[str] = [text.upper() for text in (first, s["b"])]
    return {"all": ", ".join(sorted(texts)), "text": s.text(), "meta": s.get_meta_info("a")["finish_reason"]}


def branches(s: ProgramState) -> Any:
    forks = s.fork(2)
    forks += gen("x")
    forks.join()
    return [len(one) for one in s["x"]]


def early(s: ProgramState, short: bool = True) -> Any:
    two(s)
    if short:
        return s["a"] + s["b"]
    s += gen("c")
    return s["c"]


def says_more(s: ProgramState) -> Any:
    s += gen("a") + gen("b")
    last = more(s.copy())
    return s["a"] + last


def more(s: ProgramState) -> Any:
    s += "and" + gen("more")
    return s["more"]


def says_more_unseen(s: ProgramState) -> Any:
    s += gen("a") + gen("b")
    other = s.copy()
    return s["a"] + more(other) + s["b"]


def reads_first(s: ProgramState) -> Any:
    two(s)
    if s["a"] == "no such answer":
        s += "more"
    return s["b"]


def inside(s: ProgramState) -> Any:
    s += gen("a") + gen("b")
    with s.user():
        return s["a"]


def caught(s: ProgramState) -> Any:
    s += gen("a") + gen("b")
    try:
        return s["a"]
    finally:
        s += "more" + gen("c")


def reads_nothing(s: ProgramState) -> int:
    two(s)
    return 3


def mark(state: str) -> ast.stmt:
    return ast.parse(f"mark_of('{state}')").body[0]


WHOLE = [returned, made_of, branches, early, reads_nothing]
PARTS = [says_more, reads_first, inside, caught]


@pytest.mark.parametrize("body", [*WHOLE, *PARTS, says_more_unseen])
def test_the_results_are_those_of_a_run_that_tells_nothing(body: Callable[..., Any]) -> None:
    program = function(body)
    backend = Whole()
    expected, found = program.interpreted().run(backend=backend), program.compile().run(backend=backend)
    assert found.ret_value == expected.ret_value
    assert (found.text(), found.messages()) == (expected.text(), expected.messages())
    assert len(backend.calls) % 2 == 0
    assert len({(call.prompt, call.kind) for call in backend.calls}) <= len(backend.calls) // 2


@pytest.mark.parametrize("body", [*WHOLE, *PARTS])
def test_what_ends_with_reading_is_one_piece(body: Callable[..., Any]) -> None:
    backend = Whole()
    function(body).compile().run(backend=backend)
    assert len(backend.sent) == (body in WHOLE)


def test_nothing_is_told_where_outputs_are_declared() -> None:
    backend = Whole()
    state = function(returned).compile(outputs=["a"]).run(backend=backend)
    assert state.ret_value == state["b"]
    assert not backend.sent


def test_a_name_that_there_is_not_is_an_error_all_the_same() -> None:
    def body(s: ProgramState) -> Any:
        two(s)
        return s["c"]

    with pytest.raises(UnknownVariableError, match="'c'"):
        function(body).compile().run(backend=Whole())


def test_a_program_within_another_one_tells_nothing() -> None:
    inner = function(returned)

    def body(s: ProgramState) -> Any:
        value = inner.compile()(s)
        s += "more" + gen("c")
        return value + s["c"]

    backend = Whole()
    assert function(body).compile().run(backend=backend).ret_value
    assert not backend.sent


@pytest.mark.parametrize(
    ("body", "marks"),
    [(returned, 1), (made_of, 1), (early, 2), (says_more, 1), (caught, 0), (inside, 0), (reads_nothing, 0)],
)
def test_marks_stand_before_what_is_read(body: Callable[..., Any], marks: int) -> None:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(body))).body
    assert isinstance(definition, ast.FunctionDef)
    assert mark_end(definition, mark) == marks
    assert ast.unparse(definition).count("mark_of('s')") == marks


@pytest.mark.parametrize(
    ("source", "marks"),
    [
        ("def f(): return s['a']", 0),
        ("def f(s): s['b'] = 1; return s['b']", 1),
        ("def f(s):\n x = s['a']\n y = s['b']\n return x + y", 1),
        ("def f(s):\n s += g\n x = (y := s['a'])\n return y", 0),
        ("def f(s):\n x = s.fork(2)\n return x['a']", 1),
        ("def f(s): return helper(s, s['a'])", 0),
        ("def f(s): return helper(s['a'])", 1),
        ("def f(s): return s.fork(1)[0]['a']", 0),
        ("def f(s):\n def g(): return s['a']\n return 1", 0),
        ("def f(s):\n for x in y:\n  return s['a']", 1),
        ("def f(s):\n while s['a']: s += 'x'\n return s['a']", 1),
    ],
)
def test_what_is_a_tail(source: str, marks: int) -> None:
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.FunctionDef)
    assert mark_end(definition, mark) == marks
    text = ast.unparse(definition)
    assert text.count("mark_of('s')") == marks
    compile(ast.fix_missing_locations(ast.Module([definition], [])), "test", "exec")
