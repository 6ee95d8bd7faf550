"""Branches: their order, their failures, their cancellation, and how few threads they take."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ramet.lang import (
    BranchError,
    GenerationError,
    ProgramCancelledError,
    ProgramError,
    ProgramState,
    UnsupportedError,
    function,
    gen,
)
from ramet.lang.backends.base import GenerateDelta, Prompt, SelectRequest, SelectResult
from ramet.lang.backends.scripted import Reply, Script, ScriptedBackend
from ramet.lang.interpreter import Execution
from ramet.lang.ir import Text
from ramet.lang.loop_thread import branches_loop
from ramet.lang.options import Sampling
from ramet.lang.outline import Outline, Terms
from ramet.lang.reading import Reader
from ramet.runtime.protocol import FinishReason, ProgramTag, SamplingParams


def run(body: Callable[[ProgramState], object], script: Any = "ok", **options: Any) -> ProgramState:
    return function(body).run(backend=ScriptedBackend(script), **options)


def test_a_failed_branch_cancels_its_siblings_and_is_named() -> None:
    script: dict[str, Script] = {"bad": ValueError("boom"), "slow": Reply("x", delay=60), "fast": "fine"}
    backend = ScriptedBackend(script)

    @function
    def program(s: ProgramState) -> None:
        other = s.fork(1)
        other += gen("fast")
        branches = s.fork(3)
        branches += [gen("slow"), gen("bad"), gen("slow")]
        below = branches[2].fork(2)
        below += gen("slow")
        branches.join()
        reads = [(branches[0], "slow"), (s, "slow"), (below[0], "slow"), (s, "bad")]
        for state, name in reads:
            with pytest.raises(
                BranchError, match=r"a branch failed: ValueError: boom .*'0/2', variable 'bad'"
            ) as e:
                state[name]
            assert isinstance(e.value.__cause__, GenerationError)
        with pytest.raises(GenerationError):
            branches[1]["bad"]
        assert other[0]["fast"] == "fine"
        s += gen("fast")

    assert program.run(backend=backend)["fast"] == "fine"
    assert backend.num_running == 0
    assert {call.state for call in backend.calls if call.tag.variable == "slow"} <= {"cancelled"}


def test_a_failed_branch_that_nobody_reads_is_raised_at_the_end() -> None:
    for join in (None, "gather_variable", "concate_and_append"):

        def body(s: ProgramState, join: str | None = join) -> None:
            branches = s.fork(2)
            branches += [gen("x"), "nothing"]
            if join is not None:
                branches.join(join)

        with pytest.raises((GenerationError, BranchError), match="boom"):
            run(body, ValueError("boom"))


def test_a_failed_branch_keeps_its_place_where_errors_are_kept() -> None:
    def body(s: ProgramState) -> None:
        branches = s.fork(3, return_errors=True)
        branches += lambda i: f"{i}" + gen(f"x{i}") + gen("y")
        branches.join()
        again = s.fork(2, return_errors=True)
        again += ["p" + gen("x1"), "q"]
        again.join("concate_and_append")

    state = run(body, {"x0": "a", "x1": ValueError("boom"), "x2": "c", "y": "d"})
    assert state["y"][0::2] == ["d", "d"]
    assert isinstance(state["y"][1], GenerationError)
    assert state["x0"] == ["a", None, None]
    assert state.text() == "q"


def test_cancelling_one_branch_leaves_the_others() -> None:
    backend = ScriptedBackend({"slow": Reply("x", delay=60), "fast": "first"})

    @function
    def program(s: ProgramState) -> None:
        branches = s.fork(2)
        branches += [gen("slow"), gen("fast")]
        assert branches[1]["fast"] == "first"
        branches[0].cancel()
        with pytest.raises(ProgramCancelledError, match=r"the branch was cancelled.*'0/0'"):
            branches[0]["slow"]

    program.run(backend=backend)
    assert [call.state for call in backend.calls] == ["cancelled", "finished"]


def test_a_thousand_branches_take_no_thread_each() -> None:
    backend = ScriptedBackend(Reply("x y", delay=0.02))
    most_threads = 0

    @function
    def program(s: ProgramState) -> None:
        nonlocal most_threads
        s += gen("a")
        s["a"]
        before = threading.active_count()
        branches = s.fork(1000)
        branches += lambda i: f"{i}" + gen("b") + gen("c")
        for branch in branches:
            assert branch["c"] == "x y"
            most_threads = max(most_threads, threading.active_count() - before)

    program.run(backend=backend)
    assert most_threads == 0
    assert backend.max_running > 100
    assert len(backend.calls) == 2001


def test_branches_run_at_once_and_each_in_its_order() -> None:
    backend = ScriptedBackend(Reply("x", delay=0.01))

    @function
    def program(s: ProgramState) -> None:
        branches = s.fork(8)
        branches += "1" + gen("a") + "2" + gen("b")
        assert [branch.text() for branch in branches] == ["1x2x"] * 8

    program.run(backend=backend)
    assert backend.max_running == 8
    assert [call.prompt for call in backend.calls] == ["1"] * 8 + ["1x2"] * 8


@pytest.mark.parametrize("position", range(6))
def test_an_error_at_any_place_ends_the_program_and_leaves_nothing_running(position: int) -> None:
    """Of the first, a middle or the last call; on the root and in a branch; while others run."""
    variables = ["a", "b", "c", "d", "e", "f"]
    script: dict[str, Script] = dict.fromkeys(variables, "fine")
    script[variables[position]] = Reply("some text", error=OSError("gone"), fail_after=1)
    script["slow"] = Reply("x", delay=60)
    backend = ScriptedBackend(script)

    @function
    def program(s: ProgramState) -> None:
        s += gen("a") + "text" + gen("b")
        branches = s.fork(2)
        branches += [gen("c") + gen("d"), gen("e")]
        branches.join()
        if position < 5:
            branches_too = s.fork(1)
            branches_too += gen("slow")
        s += gen("f")
        s["d"], s["e"], s["f"]

    with pytest.raises((GenerationError, BranchError), match="OSError: gone") as raised:
        program.run(backend=backend)
    assert raised.value.variable == variables[position]
    assert raised.value.program == "program"
    assert raised.value.branch == ["0", "0", "0/0", "0/0", "0/1", "0"][position]
    assert backend.num_running == 0


class OddPrompt:
    """Ends its answers in ways that no backend should."""

    def __init__(self, how: str) -> None:
        self.how = how

    def append_text(self, text: str) -> None:
        if self.how == "append":
            raise UnsupportedError("no text today")

    def begin_role(self, role: str) -> None: ...

    def end_role(self, role: str) -> None: ...

    def append_image(self, data_url: str) -> None: ...

    def fork(self) -> "OddPrompt":
        raise OSError("no fork")

    def text(self) -> str:
        return ""

    def messages(self) -> list[dict[str, object]]:
        return []

    async def generate(
        self, params: SamplingParams, *, tag: ProgramTag, priority: int = 0
    ) -> AsyncIterator[GenerateDelta]:
        match self.how:
            case "cancels":
                raise asyncio.CancelledError
            case "aborts":
                yield GenerateDelta(text="x", finish_reason=FinishReason.ABORT)
            case "breaks off":
                yield GenerateDelta(text="x")
            case _:
                yield GenerateDelta(text="x", finish_reason=FinishReason.STOP)

    async def select(self, request: SelectRequest) -> SelectResult:
        raise NotImplementedError


class OddBackend(ScriptedBackend):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def prompt(self, *, cache_salt: str = "") -> Prompt:
        if self.how == "prompt":
            raise OSError("no prompt")
        return OddPrompt(self.how)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cancels", "the backend cancelled the call"),
        ("aborts", "ended the answer with 'abort'"),
        ("breaks off", "broke off without an end"),
        ("append", "no text today"),
        ("prompt", "OSError: no prompt"),
        ("fork", "OSError: no fork"),
    ],
)
def test_a_backend_that_misbehaves_fails_the_program_and_hangs_nothing(how: str, words: str) -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "text" + gen("a")
        branches = s.fork(2)
        branches += gen("b")
        branches.join()
        s["b"]

    with pytest.raises(ProgramError, match=words) as raised:
        program.run(backend=OddBackend(how))
    assert raised.value.program == "program"


def test_what_besides_fails_is_noted() -> None:
    @function
    def program(s: ProgramState) -> None:
        groups = [s.fork(1), s.fork(1)]
        for group in groups:
            group += gen("a")

    with pytest.raises(GenerationError, match="one") as raised:
        program.run(backend=ScriptedBackend([ValueError("one"), ValueError("two")]))
    assert any("and besides: ValueError: two" in note for note in raised.value.__notes__)


def test_a_feed_that_ends_while_the_branch_is_busy_has_its_text_and_ends() -> None:
    entered, asked = threading.Event(), threading.Event()

    class Slow(ScriptedBackend):
        def prompt(self, *, cache_salt: str = "") -> Prompt:
            # The branch is in the middle of an operation, and its loop with it.
            entered.set()
            assert asked.wait(timeout=60)
            return super().prompt(cache_salt=cache_salt)

    backend = Slow("ok")
    branch = Execution("program", "program-1", backend, branches_loop()).root
    outline = Outline(branch, Terms(backend.capabilities, Sampling()))
    outline.say(Text("said"))
    assert entered.wait(timeout=60)
    feed = Reader(outline).feed()
    asked.set()
    assert "".join(chunk.text for chunk in feed) == "said"
