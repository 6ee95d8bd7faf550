"""The functions that stand for a program's methods."""

import ramet
from ramet.lang import ProgramState, function, gen
from ramet.lang.backends.scripted import ScriptedBackend


@function
def program(s: ProgramState, text: str) -> None:
    s += "start " + text + gen("a") + gen("b")


def test_they_do_what_the_methods_do() -> None:
    backend = ScriptedBackend("x")
    assert str(ramet.trace(program, "q")) == str(program.trace("q"))
    assert str(ramet.explain(program, "q", backend=backend)) == str(program.explain("q", backend=backend))
    assert ramet.cache(program, backend=backend) == program.cache(backend=backend)
    assert ramet.compile(program, outputs=["a"]).run("q", backend=backend)["a"] == "x"
    assert len(backend.calls) == 1
    assert ramet.compile(program).run("q", backend=backend).text() == "start qxx"
