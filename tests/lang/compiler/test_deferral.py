"""Compiled programs do not wait for what they only say; they give the same as when they do."""

import zlib
from collections.abc import Callable
from typing import Any

import pytest

import ramet
from ramet.lang import GenerationError, ProgramState, assistant, function, gen, select, system, user
from ramet.lang.backends.scripted import Reply, ScriptedBackend
from ramet.lang.compiler.deferral import deferred, is_state, joined, later
from ramet.lang.ir import Sequence, Text

OUTER = "outer"


def reply(prompt: str) -> Reply:
    key = zlib.crc32(prompt.encode())
    return Reply(f" word{key % 97}", delay=0.01)


def backend() -> ScriptedBackend:
    return ScriptedBackend({"pick": lambda prompt: " no", "number": lambda prompt: "17", "*": reply})


def crossed(s: ProgramState) -> None:
    first, second, third = (s.fork(1)[0] for _ in range(3))
    first += "first" + gen("a")
    second += f"<{first['a']}>" + gen("b")
    third += "third" + gen("c")
    s += user(f"{OUTER}: {second['b']}, {third['c']!r:>12}") + assistant(gen("d"))


def summed(s: ProgramState) -> None:
    first, second = s.fork(1)[0], s.fork(1)[0]
    first += gen("a")
    s += "one " + first["a"] + " two" + gen("b")
    second += "more" + gen("c")
    s += first["a"] + gen("d") + second["c"]


def gathered(s: ProgramState, size: int = 3) -> None:
    s += system("Be brief.")
    branches = s.fork(size)
    for number, branch in enumerate(branches):
        branch += user(f"{number}") + assistant(gen("part"))
    branches.join()
    s += ramet.user(f"Parts: {s['part']} and {' '.join(s['part'])}") + ramet.assistant(gen("whole"))
    s += user(s["whole"] + "?") + assistant(select("pick", [" yes", " no"]))


def typed(s: ProgramState) -> None:
    s += gen("number", dtype=int)
    s += f"{s['number']}+{s['number']:>4}" + gen("a")
    text: Any = ""
    total = 0
    text += s["a"]
    total += s["number"]
    known: dict[str, Any] = {"number": 2, "a": "x"}
    total += known["number"] + known["number"]
    s += f"{known['a']}{known['number']}" + known["a"]
    assert (text, total) == (s["a"], 21)
    assert isinstance(text, str)


def scoped(s: ProgramState) -> None:
    with s.var_scope("scope"):
        s += "in" + gen("a")
    other = s.fork(1)[0]
    other += f"[{s['scope']}]" + gen("b")
    other_again = other.copy()
    other_again += other["b"] + gen("c", n=2)
    s += f"{other_again['c']}"
    s["set"] = "value"
    s += f"{s['set']}" + gen("d")


def nested(s: ProgramState) -> None:
    s += gen("a")

    def inner() -> str:
        text = "in "
        text += str(s["a"])
        return text

    s += f"{inner()} {s['a']}" + gen("b")
    try:
        s += f"{s['b']}"
    finally:
        s += gen("c")


@pytest.mark.parametrize("body", [crossed, summed, gathered, typed, scoped, nested])
def test_the_results_are_those_of_a_run_that_waits(body: Callable[[ProgramState], None]) -> None:
    program = function(body)
    results = []
    for variant in (program.interpreted(), program, program.compile()):
        state = variant.run(backend=backend())
        names = [
            name for name in ("a", "b", "c", "d", "part", "whole", "pick", "scope", "number") if name in state
        ]
        results.append((state.text(), {name: state[name] for name in names}))
    assert results[0] == results[1] == results[2]


def test_calls_that_need_no_answer_run_meanwhile() -> None:
    asked, waiting = backend(), backend()
    function(crossed).compile().run(backend=asked)
    function(crossed).run(backend=waiting)
    assert [call.tag.variable for call in asked.calls] == ["a", "c", "b", "d"]
    assert [call.tag.variable for call in waiting.calls] == ["a", "b", "c", "d"]
    trace = function(crossed).compile().trace()
    assert [call.needs for call in trace.graph.calls] == [(), (0,), (), (1, 2)]
    assert len(trace.reads) == 1  # One is formatted, so its value is looked at.


def test_an_error_is_the_one_of_a_run_that_waits() -> None:
    def body(s: ProgramState) -> None:
        first = s.fork(1)[0]
        first += gen("bad")
        s += f"{first['bad']}" + gen("never")

    for variant in (function(body), function(body).compile()):
        asked = ScriptedBackend({"bad": ValueError("boom"), "never": "x"})
        with pytest.raises(GenerationError, match=r"ValueError: boom .*'0/0', variable 'bad'"):
            variant.run(backend=asked)
        assert [call.tag.variable for call in asked.calls] == ["bad"]


def test_an_unknown_name_is_an_error_where_it_is_read() -> None:
    def body(s: ProgramState) -> None:
        s += f"{s['nothing']}"

    with pytest.raises(KeyError, match="'nothing'"):
        function(body).compile().run(backend=backend())


def test_what_an_output_is_said_to_need_is_made() -> None:
    asked = backend()
    state = function(crossed).compile(outputs=["d"]).run(backend=asked)
    assert sorted(call.tag.variable for call in asked.calls) == ["a", "b", "c", "d"]
    assert state["d"] == function(crossed).run(backend=backend())["d"]


def test_functions_keep_what_they_are() -> None:
    closed, count = "closed", 0

    def body(s: ProgramState, text: str = "default", *, key: str = "k") -> str:
        """Documented."""
        nonlocal count
        count += 1
        s += gen("a")
        s += f"{s['a']} {closed} {text} {key} {OUTER}"
        raise ValueError("here")

    made = deferred(body)
    assert made is not body
    assert (made.__name__, made.__doc__, made.__module__) == (body.__name__, body.__doc__, body.__module__)
    with pytest.raises(ValueError, match="here") as raised:
        function(made).run(backend=backend())
    assert raised.traceback[-1].lineno == body.__code__.co_firstlineno + 6 - 1
    assert count == 1

    def whole(s: ProgramState, text: str = "default", *, key: str = "k") -> None:
        nonlocal count
        count += 1
        s += gen("a")
        s += f"{s['a']} {closed} {text} {key} {OUTER}"

    state = function(whole).compile().run(key="other", backend=backend())
    assert state.text().endswith(" closed default other outer")
    assert count == 2


async def _coroutine(s: ProgramState) -> None:
    s += f"{s['a']}"


@pytest.mark.parametrize(
    "left_alone",
    [
        lambda s: s,
        _coroutine,
        len,
        eval("lambda s: s"),
        deferred,
    ],
)
def test_what_cannot_be_rewritten_is_left_alone(left_alone: Any) -> None:
    assert deferred(left_alone) is left_alone


def test_parts_of_a_text() -> None:
    assert joined("a", "b") == "ab"
    node = joined("a", gen("b"))
    assert isinstance(node, Sequence)
    assert node.parts[0] == Text("a")
    assert later({"a": 3}, "a", formats=False) == 3
    assert later({"a": 3}, "a", formats=True) == "3"
    assert not is_state("a")
