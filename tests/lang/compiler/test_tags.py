"""What each call says of what follows it."""

from ramet.lang import ProgramState, assistant, function, gen, select, user
from ramet.lang.backends.scripted import ScriptedBackend
from ramet.lang.compiler.tags import MAX_NEXT_TEXT, tag_calls, tag_of
from ramet.runtime.protocol import ProgramTag


@function
def program(s: ProgramState) -> None:
    s += "q" + gen("a") + " then" + " more " + select("b", ["x"]) + "end"
    branches = s.fork(2)
    branches += gen("c") + "." + gen("d")
    branches.join()
    s += user("next") + assistant(gen("e"))


def tags(whole: bool) -> dict[str, ProgramTag]:
    backend = ScriptedBackend("x")
    program.compile().run(backend=backend)
    assert whole
    return {f"{call.tag.branch}/{call.tag.variable}": call.tag for call in backend.calls}


def test_calls_know_how_many_follow_them_and_with_which_text() -> None:
    found = tags(whole=True)
    assert {name: tag.remaining_calls for name, tag in found.items()} == {
        "0/a": 6,
        "0/b": 5,
        "0/0/c": 1,
        "0/0/d": 0,
        "0/1/c": 1,
        "0/1/d": 0,
        "0/e": 0,
    }
    assert {name: tag.next_text for name, tag in found.items()} == {
        "0/a": " then more ",
        "0/b": "end",
        "0/0/c": ".",
        "0/0/d": "",
        "0/1/c": ".",
        "0/1/d": "",
        "0/e": "",
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


def test_what_follows_is_sent_up_to_a_bound() -> None:
    @function
    def long(s: ProgramState) -> None:
        s += gen("a") + "x" * (MAX_NEXT_TEXT + 1) + gen("b")

    piece = tag_calls(long.trace().piece)
    operations = piece.tracks[0].operations
    assert len(tag_of(operations[0]).next_text) == MAX_NEXT_TEXT  # type: ignore[arg-type]


def test_interpreted_calls_know_nothing() -> None:
    backend = ScriptedBackend("x")
    program.interpreted().run(backend=backend)
    assert {(call.tag.remaining_calls, call.tag.next_text) for call in backend.calls} == {(None, "")}
