"""Windows of long prompts against the whole prompts."""

import pytest

from ramet.lang import ProgramState, assistant, function, gen, system, user
from ramet.lang.backends.scripted import ScriptedBackend
from ramet.lang.compiler.graph import Answer
from ramet.lang.compiler.prompt_trie import joined
from ramet.lang.compiler.renderings import MIN_DEPTH, SPACING, Renderings, Seam


def conversation(s: ProgramState, count: int) -> None:
    s += system("be brief")
    for index in range(count):
        s += user(f"question {index}") + assistant(gen(f"answer {index}"))


def texts(s: ProgramState, count: int) -> None:
    for index in range(count):
        s += f"text {index}. "
    s += gen("end")


def messages_without_answers(s: ProgramState, count: int) -> None:
    for index in range(count):
        s += user(f"a {index}") + assistant(f"b {index}")
    s += user("c") + assistant(gen("end"))


@pytest.mark.parametrize("body", [conversation, texts, messages_without_answers])
def test_a_window_shows_what_the_whole_has_behind_each_seam(body: object) -> None:
    graph = function(body).trace(100).graph  # type: ignore[call-overload]
    renderings = Renderings(graph, ScriptedBackend())
    last = graph.calls[-1].last
    assert last is not None
    whole = renderings.whole(last, ())
    seams = list(renderings.seams(last))
    assert seams
    for seam, mark in seams:
        behind = renderings.behind(seam, last, ())
        assert behind == whole[whole.index(mark) + 1 :]


def test_an_answer_is_a_seam_and_where_there_is_none_texts_have_some() -> None:
    graph = function(conversation).trace(100).graph
    renderings = Renderings(graph, ScriptedBackend())
    marks = [mark for _, mark in renderings.seams(graph.calls[-1].last)]
    assert all(isinstance(mark, Answer) for mark in marks)
    assert not any(isinstance(piece, Seam) for piece in renderings.whole(graph.calls[-1].last, ()))
    graph = function(texts).trace(100).graph
    renderings = Renderings(graph, ScriptedBackend())
    seams = [mark for _, mark in renderings.seams(graph.calls[-1].last)]
    assert 100 // SPACING - MIN_DEPTH // SPACING <= len(seams) <= 100 // SPACING
    said = [piece for piece in renderings.whole(graph.calls[-1].last, ()) if not isinstance(piece, Seam)]
    assert joined([piece for piece in said if isinstance(piece, str)]) == [
        "".join(f"text {index}. " for index in range(100))
    ]


def test_short_prompts_have_no_seam() -> None:
    graph = function(conversation).trace(5).graph
    renderings = Renderings(graph, ScriptedBackend())
    assert list(renderings.seams(graph.calls[-1].last)) == []


def test_where_no_conversation_could_begin_there_is_no_window() -> None:
    def body(s: ProgramState) -> None:
        s += user("first")
        for index in range(60):
            s += assistant(f"so {index}" + gen(f"answer {index}"))

    graph = function(body).trace().graph
    renderings = Renderings(graph, ScriptedBackend())
    last = graph.calls[-1].last
    assert last is not None
    seams = list(renderings.seams(last))
    assert seams
    assert all(renderings.behind(seam, last, ()) is None for seam, _ in seams)
