"""Outlines: what is wrong with a program is raised where it is said."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from ramet.lang import (
    ProgramState,
    ProgramStructureError,
    UnknownVariableError,
    assistant,
    assistant_begin,
    assistant_end,
    function,
    gen,
    select,
    separate_reasoning,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from ramet.lang.backends.scripted import EVERYTHING, ScriptedBackend
from ramet.runtime.protocol import Regex


def run(body: Callable[[ProgramState], object], script: Any = "ok", **options: Any) -> ProgramState:
    return function(body).run(backend=ScriptedBackend(script), **options)


@pytest.mark.parametrize(
    ("say", "words"),
    [
        (lambda s: s.__iadd__(user(assistant("x"))), "assistant_begin.. inside the user role"),
        (lambda s: s.__iadd__(user_end()), "user_end.. where no role is open"),
        (lambda s: s.__iadd__(user_begin() + system_end()), "system_end.. where the open role is user"),
        (lambda s: s.__iadd__(3), "not of int"),
        (lambda s: s.__iadd__(None), "not of NoneType"),
        (lambda s: s.__iadd__(user("a").__add__(cast(Any, ["b"]))), "not of list"),
        (lambda s: s.fork(-1), "fork size is -1"),
        (lambda s: s.fork("2"), "fork size is '2'"),
        (lambda s: s.fork(2).join("gather"), "join mode is 'gather'"),
        (lambda s: s.fork(2).__iadd__(["a"]), "1 expressions for 2 branches"),
        (lambda s: s.fork(2).__iadd__(3), "not of int"),
        (lambda s: s.__enter__(), "only copies and streams"),
    ],
)
def test_what_is_wrong_with_a_program_is_raised_where_it_is_said(
    say: Callable[[Any], object], words: str
) -> None:
    def body(s: ProgramState) -> None:
        s += "before"
        with pytest.raises(ProgramStructureError, match=words):
            say(s)
        s += "after"

    # Nothing of the expression was said.
    assert run(body).text() == "beforeafter"


def test_a_role_left_open_by_an_exception_is_not_closed() -> None:
    def body(s: ProgramState) -> None:
        with s.user():
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run(body)


def test_the_three_ways_to_say_a_role() -> None:
    def calls(s: ProgramState) -> None:
        s += system("S") + user("U" + gen("a") + "V")
        s += assistant()

    def marks(s: ProgramState) -> None:
        s += system_begin() + "S" + system_end()
        s += user_begin()
        s += "U" + gen("a")
        s += "V" + user_end() + assistant_begin() + assistant_end()

    def blocks(s: ProgramState) -> None:
        with s.system():
            s += "S"
        with s.user():
            s += "U" + gen("a") + "V"
        s += s.assistant("")

    texts = {run(body).text() for body in (calls, marks, blocks)}
    assert texts == {
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nUokV<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
    }


def test_join_that_appends_refuses_roles_that_do_not_follow_one_another() -> None:
    def body(s: ProgramState) -> None:
        branches = s.fork(2)
        branches += user_begin()
        with pytest.raises(ProgramStructureError, match="inside the user role"):
            branches.join("concate_and_append")

    run(body)


def test_var_scope() -> None:
    def body(s: ProgramState) -> None:
        with s.var_scope("outer"):
            s += "a" + gen("x")
            with s.var_scope("inner"):
                s += user("b" + select("y", ["ok"]))
            with pytest.raises(UnknownVariableError, match="after the end of its var_scope"):
                s["outer"]
            s += "c"
        assert s["outer"] == "aokbokc"

    state = run(body)
    assert (state["outer"], state["inner"]) == ("aokbokc", "bok")
    assert list(state.text_iter("inner")) == ["bok"]


def test_separate_reasoning() -> None:
    def body(s: ProgramState) -> None:
        s += user("x")
        s += separate_reasoning(assistant("A: " + gen("a") + gen("n", n=2)), model_type="qwen3")

    state = run(body, {"a": "<think>\nso it is\n</think>\n\nyes", "n": ["<think>p</think>q", "r"]})
    assert (state["a"], state["a_reasoning_content"]) == ("yes", "so it is")
    assert (state["n"], state["n_reasoning_content"]) == (["q", "r"], ["p", ""])
    # The prompt is what the model has said.
    assert "A: <think>\nso it is\n</think>\n\nyes" in state.text()
    assert "".join(state.text_iter("a_reasoning_content")) == "so it is"

    with pytest.raises(ProgramStructureError, match="separate_reasoning around a constrained gen"):
        run(lambda s: s.__iadd__(separate_reasoning(gen("a", dtype=int))))


def test_constraints_reach_the_backend_whole() -> None:
    backend = ScriptedBackend({"a": "東風", "b": "True"})

    @function
    def program(s: ProgramState) -> None:
        s += gen("a", regex="(東|西|南|北)風", priority=3) + gen("b", dtype=bool)

    assert program.run(backend=backend)["a"] == "東風"
    assert backend.calls[0].params is not None
    assert backend.calls[0].params.grammar == Regex("(東|西|南|北)風")
    assert backend.calls[0].priority == 3
    assert EVERYTHING.select
