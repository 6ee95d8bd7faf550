"""Programs as data: what is sent, and what is not."""

from dataclasses import fields
from typing import Any

import pytest

import ramet
from ramet.lang.backends.base import SelectRequest
from ramet.lang.backends.scripted import ScriptedBackend
from ramet.lang.compiler.whole import CannotBeSent, TakesWhole, whole_program
from ramet.lang.ir import ToolUse
from ramet.lang.operations import Generate
from ramet.runtime.protocol import programs


def encoded(program: ramet.Program, **arguments: Any) -> programs.WireProgram:
    trace = program.trace(backend=ScriptedBackend("x"), **arguments)
    root = next(branch for branch in trace.log if branch.path == "0")
    return whole_program(trace.piece, root, trace.program)[0]


def refusal(program: ramet.Program) -> str:
    with pytest.raises(CannotBeSent) as raised:
        encoded(program)
    return str(raised.value)


def test_everything_has_its_form() -> None:
    def tool(a: int) -> int:
        """Adds."""
        return a

    @ramet.function
    def full(s: Any) -> None:
        s += ramet.system("Hi")
        with s.var_scope("scope"):
            s += ramet.user("a") + ramet.assistant(ramet.gen("x", tools=[tool], max_tool_rounds=2))
        s += ramet.assistant_begin()
        forks = s.fork(2, return_errors=True)
        forks += ramet.gen("y", temperature=0.5, stop="END")
        forks.join("concate_and_append")
        s += ramet.select("z", choices=["a", "b"]) + ramet.assistant_end()
        s += ramet.separate_reasoning(ramet.gen("r"), model_type="qwen3")

    whole = encoded(full)
    root, left, right = whole.branches
    assert [type(one).__name__ for one in root.operations] == [
        "BeginRole", "SayText", "EndRole", "BeginScope", "BeginRole", "SayText", "EndRole", "BeginRole", "Gen",
        "EndRole", "EndScope", "BeginRole", "Fork", "Join", "Select", "EndRole", "Gen",
    ]  # fmt: skip
    gen = root.operations[8]
    assert isinstance(gen, programs.Gen)
    assert gen.tools is not None
    assert (gen.tools.max_rounds, gen.tools.tools[0].description) == (2, "Adds.")
    fork, join = root.operations[12:14]
    assert isinstance(fork, programs.Fork)
    assert isinstance(join, programs.Join)
    assert fork.branches == join.branches == [left.name, right.name] == ["0/0", "0/1"]
    assert fork.keep_errors
    assert join.keep_errors
    (own,) = left.operations
    assert isinstance(own, programs.Gen)
    assert (own.params.temperature, own.params.stop) == (0.5, ("END",))
    last = root.operations[-1]
    assert isinstance(last, programs.Gen)
    assert last.reasoning is not None
    assert last.reasoning.begin == "<think>"
    made = [
        name for branch in whole.branches for one in branch.operations for name in programs.variables_of(one)
    ]
    assert len(set(made)) == len(made) == 7


def test_values_are_said_by_name_and_known_ones_as_text() -> None:
    @ramet.function
    def chain(s: Any, known: str) -> None:
        s["known"] = 7
        s += ramet.gen("a")
        s += f"{s['known']} {s['a']}"
        s += ramet.gen("b")

    whole = encoded(chain.compile(), known="k")
    operations = whole.branches[0].operations
    said = [one for one in operations if isinstance(one, programs.SayValue)]
    (first, _) = [one for one in operations if isinstance(one, programs.Gen)]
    assert [one.variable for one in said] == [first.variable]
    assert "".join(one.text for one in operations if isinstance(one, programs.SayText)) == "7 "


def test_one_call_gains_nothing() -> None:
    @ramet.function
    def once(s: Any) -> None:
        s += "a" + ramet.gen("x")

    assert "one call at most" in refusal(once)


def test_what_has_no_form_is_named() -> None:
    @ramet.function
    def parsed(s: Any) -> None:
        s += ramet.gen_int("n")
        s += f"{s['n']}"
        s += ramet.gen("x")

    @ramet.function
    def listed(s: Any) -> None:
        forks = s.fork(2)
        forks += ramet.gen("x")
        forks.join()
        s += f"{s['x']}"

    assert "'n', which its own code makes of the answer" in refusal(parsed.compile())
    assert "'x', which is a list" in refusal(listed.compile())


def test_every_field_of_a_call_is_sent_or_known_not_to_be() -> None:
    """A new one must not be lost without a word."""
    sent = {"variable", "params", "tag", "parse", "priority", "reasoning", "tools"}
    assert {field.name for field in fields(Generate)} == sent | {"lora"}
    assert set(SelectRequest.__struct_fields__) == {
        "options", "normalization", "temperature", "seed", "tag", "priority",
    }  # fmt: skip
    kept_here = {"context", "on_error", "elsewhere"}
    assert {field.name for field in fields(ToolUse)} == {"tools", "choice", "max_rounds"} | kept_here


def test_a_program_that_is_too_large_is_run_call_by_call() -> None:
    @ramet.function
    def large(s: Any) -> None:
        s += "a" + ramet.gen("x")
        s += ramet.select("y", choices=[str(number) for number in range(programs.MAX_OPTIONS + 1)])

    assert "1025 options" in refusal(large)


def test_a_scripted_backend_takes_no_whole_programs() -> None:
    assert not isinstance(ScriptedBackend("x"), TakesWhole)
