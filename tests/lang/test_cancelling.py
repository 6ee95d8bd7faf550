"""Ending branches: however deep they are forked, whoever waits is told, and nothing runs on."""

import pytest

from ramet.lang import BranchError, GenerationError, Program, ProgramError, ProgramState, function, gen
from ramet.lang.backends.scripted import Reply, ScriptedBackend
from ramet.lang.cancelling import Cancelling
from ramet.lang.interpreter import Branch, Execution
from ramet.lang.loop_thread import branches_loop
from ramet.lang.variables import Failure

DEPTH = 1500
"""More than Python's own functions may nest."""


def nested(raises: bool) -> Program:
    @function
    def program(s: ProgramState) -> None:
        state = s
        for _ in range(DEPTH):
            state = state.fork(1)[0]
        state += gen("a")
        if raises:
            raise ValueError("mine")
        state["a"]

    return program


@pytest.mark.parametrize("variant", ["plain", "interpreted", "compiled"])
def test_branches_end_however_deep_they_are(variant: str) -> None:
    def run(program: Program, backend: ScriptedBackend) -> None:
        variants = {"plain": program, "interpreted": program.interpreted(), "compiled": program.compile()}
        variants[variant].run(backend=backend)

    backend = ScriptedBackend(Reply("never", delay=600))
    with pytest.raises(ValueError, match="mine"):
        run(nested(raises=True), backend)
    assert backend.num_running == 0
    with pytest.raises(GenerationError, match="OSError: gone"):
        run(nested(raises=False), ScriptedBackend(OSError("gone")))


def test_a_branch_above_that_fails_ends_those_below() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += gen("a")
        state = s
        for _ in range(DEPTH):
            state = state.fork(1)[0]
        state += gen("b")
        state["b"]

    with pytest.raises(ProgramError, match="gone") as raised:
        program.run(backend=ScriptedBackend({"a": OSError("gone"), "b": "never asked"}))
    assert isinstance(raised.value, BranchError | GenerationError)


def test_what_is_cancelled_meanwhile_comes_afterwards() -> None:
    ended: list[str] = []
    cancelling = Cancelling()

    class Watched(Branch):
        def end(self, failure: Failure) -> None:
            ended.append(f"{self.path} begins")
            if self.path == "0":
                cancelling.cancel(Watched(self.execution, "0/0", self.group), failure)
            ended.append(f"{self.path} ends")

    execution = Execution("program", "program-1", ScriptedBackend(), branches_loop())
    failure = Failure(ProgramError("over"))
    cancelling.cancel(Watched(execution, "0", execution.root.group), failure)
    assert ended == ["0 begins", "0 ends", "0/0 begins", "0/0 ends"]
