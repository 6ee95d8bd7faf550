"""Prompts that are computed while the program waits."""

import asyncio
import threading
from collections.abc import Sequence

from ramet.lang import ProgramState, function, gen
from ramet.lang.backends.base import Prompt
from ramet.lang.backends.scripted import Reply, ScriptedBackend
from ramet.lang.compiler.prewarm import MIN_TEXT

LONG = "What follows is said already. " * 20


class Watched(ScriptedBackend):
    """Says when something was computed ahead; ``error``: it fails."""

    def __init__(self, script: object, error: Exception | None = None) -> None:
        super().__init__(script)  # type: ignore[arg-type]
        self.computed = threading.Event()
        self.error = error

    async def prefill(self, prompts: Sequence[Prompt]) -> None:
        await super().prefill(prompts)
        self.computed.set()
        if self.error is not None:
            raise self.error


def test_what_was_said_on_the_parent_is_computed_while_branches_decode() -> None:
    backend = Watched({"part": Reply("p", delay=0.05), "whole": "w"})

    @function
    def program(s: ProgramState) -> None:
        s += "start "
        branches = s.fork(2)
        branches += gen("part")
        branches.join()
        s += LONG
        s += " ".join(s["part"]) + gen("whole")

    assert program.run(backend=backend)["whole"] == "w"
    assert backend.prefilled == ["start " + LONG]


def test_what_follows_a_call_is_computed_while_its_answer_is_used() -> None:
    backend = Watched({"call": "4", "answer": "ok"})

    @function
    def program(s: ProgramState) -> None:
        s += "Think:" + gen("call") + LONG
        used = s["call"]
        assert backend.computed.wait(timeout=60)
        s += used + gen("answer")

    assert program.run(backend=backend).text() == "Think:4" + LONG + "4ok"
    assert backend.prefilled == ["Think:4" + LONG]


def test_an_error_of_the_computation_ahead_fails_nothing() -> None:
    backend = Watched({"call": "4", "answer": "ok"}, error=OSError("full"))

    @function
    def program(s: ProgramState) -> None:
        s += gen("call") + LONG
        s["call"]
        assert backend.computed.wait(timeout=60)
        s += gen("answer")

    assert program.run(backend=backend)["answer"] == "ok"


def test_nothing_is_computed_that_no_call_is_expected_to_use() -> None:
    backend = Watched("x")

    @function
    def short(s: ProgramState) -> None:
        s += gen("a") + "x" * (MIN_TEXT - 1)
        s["a"]
        s += gen("b")

    @function
    def ended(s: ProgramState) -> None:
        s += gen("a") + LONG

    @function
    def told(s: ProgramState) -> None:
        s += LONG
        assert s.text() == LONG

    for program in (short, ended, told):
        program.run(backend=backend)
    assert backend.prefilled == []


def test_a_run_ends_without_waiting_for_a_computation_ahead() -> None:
    class Endless(ScriptedBackend):
        async def prefill(self, prompts: Sequence[Prompt]) -> None:
            started.set()
            await asyncio.sleep(600)

    started = threading.Event()

    @function
    def program(s: ProgramState) -> None:
        s += gen("a") + LONG
        s["a"]
        assert started.wait(timeout=60)

    # The program has to be waiting when the answer comes: otherwise nothing is computed ahead.
    assert program.run(backend=Endless(Reply("x", delay=0.5)))["a"] == "x"


def test_nothing_is_computed_ahead_once_the_body_has_ended_or_the_next_call_is_there() -> None:
    backend = Watched({"slow": Reply("s", delay=0.2), "fast": "f", "next": "n"})

    @function
    def ended(s: ProgramState) -> None:
        slow = s.fork(1)[0]
        slow += gen("slow") + LONG
        s += gen("fast")
        s["fast"]

    @function
    def told(s: ProgramState) -> None:
        slow = s.fork(1)[0]
        slow += gen("slow") + LONG
        s += gen("fast")
        s["fast"]
        slow += gen("next")
        assert slow["next"] == "n"

    for program in (ended, told):
        program.run(backend=backend)
    assert backend.prefilled == []
