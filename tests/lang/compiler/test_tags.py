"""What each call says of what follows it."""

from ramet.lang import ProgramState, assistant, function, gen, select, user
from ramet.lang.backends.scripted import ScriptedBackend


@function
def program(s: ProgramState) -> None:
    s += "q" + gen("a") + " then" + " more " + select("b", ["x"]) + "end"
    branches = s.fork(2)
    branches += gen("c") + "." + gen("d")
    branches.join()
    s += user("next") + assistant(gen("e"))


def test_calls_know_how_many_follow_them() -> None:
    backend = ScriptedBackend("x")
    program.compile().run(backend=backend)
    tags = [call.tag for call in backend.calls]
    assert {f"{tag.branch}/{tag.variable}": tag.remaining_calls for tag in tags} == {
        "0/a": 6,
        "0/b": 5,
        "0/0/c": 1,
        "0/0/d": 0,
        "0/1/c": 1,
        "0/1/d": 0,
        "0/e": 0,
    }


def test_while_the_program_goes_on_nobody_knows_that_a_call_is_the_last() -> None:
    backend = ScriptedBackend("x")

    @function
    def reading(s: ProgramState) -> None:
        s += gen("a") + gen("b")
        assert s["b"] == "x"
        s += gen("c")

    reading.compile().run(backend=backend)
    assert [(call.tag.variable, call.tag.remaining_calls) for call in backend.calls] == [
        ("a", 1),
        ("b", None),
        ("c", 0),
    ]


def test_interpreted_calls_know_nothing() -> None:
    backend = ScriptedBackend("x")
    program.interpreted().run(backend=backend)
    assert {call.tag.remaining_calls for call in backend.calls} == {None}
