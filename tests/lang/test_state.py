"""States: variables and their types, copies, forks and joins."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from ramet.lang import (
    GenerationError,
    ProgramState,
    ProgramStateGroup,
    ProgramStructureError,
    UnknownVariableError,
    function,
    gen,
    gen_int,
    gen_string,
    image,
    select,
    user,
    user_begin,
)
from ramet.lang.backends.scripted import Scores, ScriptedBackend


def run(body: Callable[[ProgramState], object], script: Any = "ok", **options: Any) -> ProgramState:
    return function(body).run(backend=ScriptedBackend(script), **options)


def test_typed_variables() -> None:
    class City(BaseModel):
        name: str
        size: int

    @dataclass
    class River:
        name: str

    def body(s: ProgramState) -> None:
        s += "i" + gen("i", dtype=int) + gen_int("j") + gen("f", dtype=float) + gen("b", dtype=bool)
        s += gen("s", dtype=str) + gen_string("t") + gen("p", json_schema=City) + gen("d", json_schema=River)
        s += gen("l", json_schema=list[int]) + gen("raw", json_schema={"type": "object"}) + gen("plain")
        assert s["i"] + s["j"] == 35

    script = {
        "i": "42 apples",
        "j": "-7\n8",
        "f": "2.5 kg",
        "b": "True",
        "s": '"a \\"word\\", and"',
        "t": '""',
        "p": '{"name": "Rome", "size": 3}',
        "d": '{"name": "Tiber"}',
        "l": "[1, 2]",
        "raw": '{"x": 1}',
        "plain": "42",
    }
    state = run(body, script)
    assert (state["i"], state["j"], state["f"], state["b"]) == (42, -7, 2.5, True)
    assert (state["s"], state["t"]) == ('a "word", and', "")
    assert state["p"] == City(name="Rome", size=3)
    assert state["d"] == River("Tiber")
    assert state["l"] == [1, 2]
    assert (state["raw"], state["plain"]) == ('{"x": 1}', "42")
    # A number ends where the model goes on with something else, which is not said.
    assert state.text().startswith('i42-72.5True"a')


def test_a_value_of_the_wrong_type_is_the_calls_error() -> None:
    def body(s: ProgramState) -> None:
        s += gen("p", json_schema=list[int], max_tokens=2)

    with pytest.raises(GenerationError, match=r"was cut at max_tokens=2, raise that.*'p'"):
        run(body, "[1, 2, 3]")


def test_unknown_variables_are_an_error_at_once() -> None:
    def body(s: ProgramState) -> None:
        with pytest.raises(UnknownVariableError, match="no call has made a variable 'x', nor any other"):
            s["x"]
        s += gen("a") + gen("b")
        with pytest.raises(KeyError, match=r"no call has made a variable 'x'; there are 'a', 'b' \(in program"):
            s["x"]
        with pytest.raises(UnknownVariableError):
            s.get_meta_info("x")
        with pytest.raises(UnknownVariableError):
            list(s.text_iter("x"))
        assert "a" in s
        assert "x" not in s
        assert 3 not in s

    run(body)


def test_reading_a_failed_variable_raises_its_error_there() -> None:
    def body(s: ProgramState) -> None:
        s += gen("a") + gen("b") + "more" + gen("c")
        assert s["a"] == "fine"
        for name in ("b", "c"):
            with pytest.raises(GenerationError, match=r"ValueError: boom.*variable 'b'"):
                s[name]
        with pytest.raises(GenerationError):
            s.text()
        with pytest.raises(GenerationError):
            s.sync()
        with pytest.raises(GenerationError):
            s.get_meta_info("c")
        assert isinstance(s.error(), GenerationError)
        s += gen("d")
        with pytest.raises(GenerationError):
            s["d"]

    state = run(body, {"a": "fine", "b": ValueError("boom")})
    # It was told, so the run ends well; what was said until then is there.
    assert state.text() == "fine"
    assert isinstance(state.error(), GenerationError)


def test_set_var() -> None:
    def body(s: ProgramState) -> None:
        s.set_var("x", [1])
        s["y"] = "text"
        assert s.get_var("x") == [1]
        assert "".join(s.text_iter("y")) == "text"
        assert s.get_meta_info("x") is None
        s["y"] = 3

    state = run(body)
    assert state["y"] == 3
    state["z"] = 4
    assert state["z"] == 4


def test_the_last_value_of_a_repeated_name_counts() -> None:
    def body(s: ProgramState) -> None:
        seen = []
        for i in range(3):
            s += f"{i}:" + gen("x") + "\n"
            seen.append(s["x"])
        assert seen == ["a", "b", "c"]

    state = run(body, ["a", "b", "c"])
    assert state["x"] == "c"
    assert state.text() == "0:a\n1:b\n2:c\n"


def test_unnamed_calls_do_not_collide() -> None:
    state = run(lambda s: s.__iadd__(gen() + gen() + select(choices=["c"])), ["a", "b", "c"])
    assert state.text() == "abc"


def test_several_answers_are_a_list_and_the_prompt_goes_on_without() -> None:
    def body(s: ProgramState) -> None:
        s += "A colour:" + gen("x", n=3, dtype=int) + " done"

    state = run(body, ["1", "2", "3"])
    assert state["x"] == [1, 2, 3]
    assert state.text() == "A colour: done"
    assert [meta["finish_reason"] for meta in state.get_meta_info("x")] == ["stop"] * 3
    with pytest.raises(ProgramStructureError, match="a list"):
        list(state.text_iter("x"))


def test_meta_info() -> None:
    def body(s: ProgramState) -> None:
        s += "one two" + gen("a", max_tokens=2, stop="never") + gen("b", stop=".") + select("c", ["x", "y"])

    state = run(body, {"a": "1 2 3", "b": "end. more", "c": Scores({"x": -2.0, "y": -1.0})})
    a, b, c = (state.get_meta_info(name) for name in "abc")
    assert (a["finish_reason"], a["completion_tokens"], a["prompt_tokens"]) == ("length", 2, 2)
    assert len(a["token_ids"]) == 2
    assert (b["finish_reason"], b["stop_reason"], state["b"]) == ("stop", ".", "end")
    assert (c["choices"], c["scores"], c["index"]) == (("x", "y"), (-2.0, -1.0), 1)
    assert state["c"] == "y"


def test_select_takes_one_option_and_says_it_once() -> None:
    def body(s: ProgramState) -> None:
        s += "Is lead heavy?" + select("c", [" Yes", " No", " Maybe"]) + "."

    assert run(body, Scores({" Yes": -1.0, " No": -3.0})).text() == "Is lead heavy? Yes."
    # Options that score the same: the first.
    assert run(body, Scores({}))["c"] == " Yes"


def test_a_select_with_a_temperature_is_drawn() -> None:
    def body(s: ProgramState) -> None:
        branches = s.fork(200)
        branches += select("c", ["a", "b"], temperature=1.0)
        branches.join()

    first = run(body, Scores({"a": 0.0, "b": -1.0}), seed=1)["c"]
    assert first == run(body, Scores({"a": 0.0, "b": -1.0}), seed=1)["c"]
    # exp(-1) / (1 + exp(-1)) of 200 is 54; five standard deviations are 31.
    assert 23 <= first.count("b") <= 85


def test_stops_end_the_variable_and_are_not_said() -> None:
    def body(s: ProgramState) -> None:
        s += user("Two sentences.")
        with s.assistant():
            s += "Rain " + gen("a", stop=[".", "\n"])
            s += "!"

    state = run(body, "falls. And\nends")
    assert state["a"] == "falls"
    assert state.text().endswith("Rain falls!<|im_end|>\n")


def test_images_reach_the_backend() -> None:
    state = run(lambda s: s.__iadd__(user("Look: " + image("https://example.org/a.png") + "!")))
    assert state.messages()[0]["content"] == [
        {"type": "text", "text": "Look: "},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "text", "text": "!"},
    ]


def test_fork_before_anything_was_said() -> None:
    for first in ("", "Start. ", user_begin()):

        def body(s: ProgramState, first: Any = first) -> None:
            s += first
            branches = s.fork(3)
            for i, branch in enumerate(branches):
                branch += f"Number {i} is" + gen("x")
            s += " | ".join(branch["x"] for branch in branches)

        assert run(body).text().endswith("ok | ok | ok")


def test_a_fork_sees_what_its_parent_had() -> None:
    def body(s: ProgramState) -> None:
        s += gen("a")
        branches = s.fork(2)
        s += gen("b")
        assert branches[0]["a"] == "ok"
        with pytest.raises(UnknownVariableError):
            branches[0]["b"]
        assert len(branches) == 2
        with pytest.raises(ProgramStructureError, match="cannot be replaced"):
            branches[0] = s
        assert branches[0:1] == (branches[0],)
        branches += [gen("c"), "d"]
        branches += lambda i: f"[{i}]"
        assert [branch.text() for branch in branches] == ["okok[0]", "okd[1]"]
        assert s.text() == "okok"

    run(body)


def test_join_gathers_what_the_branches_have_set() -> None:
    def body(s: ProgramState) -> None:
        s += gen("before") + gen("again")
        branches = s.fork(3)
        branches[0] += gen("new")
        branches[2] += gen("new")
        branches[1] += gen("again")
        branches[1]["set"] = 5
        branches.join()
        with pytest.raises(ProgramStructureError, match="the branch was joined"):
            branches[0] += "more"
        with pytest.raises(ProgramStructureError, match="joined before"):
            branches.join()

    state = run(body, {"before": "b", "again": ["p", "c"], "new": ["x", "x"]})
    assert state["before"] == "b"
    assert state["new"] == ["x", None, "x"]
    assert state["again"] == ["p", "c", "p"]
    assert state["set"] == [None, 5, None]
    assert [meta and meta["finish_reason"] for meta in state.get_meta_info("new")] == ["stop", None, "stop"]


def test_join_of_no_branches() -> None:
    def body(s: ProgramState) -> None:
        s.fork(0).join()
        s.fork(0).join("concate_and_append")
        branches: ProgramStateGroup = s.fork(0)
        branches += "nothing"

    assert run(body).text() == ""


def test_join_that_appends_keeps_roles() -> None:
    def body(s: ProgramState) -> None:
        s += "a"
        with s.fork(2) as gathered:
            gathered += gen("x")
        branches = s.fork(3)
        branches += lambda i: user(f"{i}" + gen("y"))
        branches.join("concate_and_append")
        s += user("b")

    state = run(body)
    assert state["x"] == ["ok", "ok"]
    assert "y" not in state
    assert [message["content"] for message in state.messages()] == ["0ok", "1ok", "2ok", "b"]


def test_copy() -> None:
    def body(s: ProgramState) -> None:
        s += "a"
        other = s.copy()
        other += "b" + gen("x")
        assert other["x"] == "ok"
        with s.copy() as joined:
            joined += gen("y")
        assert s["y"] == ["ok"]
        assert "x" not in s

    assert run(body).text() == "a"
