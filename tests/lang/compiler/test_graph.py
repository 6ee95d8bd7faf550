"""Graphs of programs: what each prompt consists of and needs."""

from hypothesis import given
from hypothesis import settings as hypothesis_settings

from ramet.lang import ProgramState, assistant, function, gen, select, user
from ramet.lang.backends.scripted import ScriptedBackend
from ramet.lang.compiler.graph import Answer, Argument, Graph, graph_of
from ramet.lang.compiler.piece import Piece
from ramet.lang.compiler.placeholders import Marks
from ramet.lang.operations import AppendText, BeginRole, EndRole
from tests.lang.test_fork_trees import Step, backend, program, trees


@function
def essay(s: ProgramState, topic: str) -> None:
    s += user(f"On {topic}:") + assistant(gen("outline"))
    with s.var_scope("plan"):
        s += "plan: " + gen("detail")
    branches = s.fork(2)
    for branch in branches:
        branch += "part" + gen("part")
    branches.join()
    alone = s.fork(1)[0]
    alone += f"{s['plan']} | {' '.join(s['part'])}" + select("grade", ["good", "bad"])
    s += gen("end")


def test_prompts_consist_of_texts_answers_and_arguments() -> None:
    graph = essay.trace().graph
    assert [call.name for call in graph.calls] == ["outline", "detail", "part", "part", "grade", "end"]
    begin = (BeginRole("user"), AppendText("On "), Argument("topic"), AppendText(":"), EndRole("user"))
    assert graph.calls[0].prompt == (*begin, BeginRole("assistant"))
    assert graph.start == (*begin, BeginRole("assistant"))
    assert graph.calls[2].prompt[-4:] == (
        EndRole("assistant"),
        AppendText("plan: "),
        Answer(1),
        AppendText("part"),
    )
    assert graph.calls[4].prompt[-6:] == (
        AppendText("plan: "),
        Answer(1, carried=False),
        AppendText(" | "),
        Answer(2, carried=False),
        AppendText(" "),
        Answer(3, carried=False),
    )


def test_calls_come_after_those_whose_answers_they_need() -> None:
    graph = essay.trace("trees").graph
    assert [call.needs for call in graph.calls] == [(), (0,), (0, 1), (0, 1), (0, 1, 2, 3), (0, 1)]
    assert graph.levels() == (0, 1, 2, 2, 3, 2)
    order = list(graph.in_order())
    assert sorted(order) == list(range(6))
    assert all(order.index(need) < order.index(call.index) for call in graph.calls for need in call.needs)


def test_concatenated_branches_are_text_of_their_parent() -> None:
    @function
    def joined(s: ProgramState) -> None:
        s += "a"
        branches = s.fork(2)
        branches += lambda i: f"{i}" + gen("b")
        branches.join("concate_and_append")
        s += gen("c")

    graph = joined.trace().graph
    assert graph.calls[2].prompt == (
        AppendText("a"),
        AppendText("0"),
        Answer(0, carried=False),
        AppendText("1"),
        Answer(1, carried=False),
    )


def test_a_value_of_a_branch_that_comes_later_is_found() -> None:
    @function
    def crossed(s: ProgramState) -> None:
        first, second = s.fork(1)[0], s.fork(1)[0]
        second += gen("x")
        first += f"<{second['x']}>" + gen("y")

    graph = crossed.trace().graph
    assert [call.name for call in graph.calls] == ["y", "x"]
    assert graph.calls[0].needs == (1,)
    assert graph.levels() == (1, 0)
    assert list(graph.in_order()) == [1, 0]


def test_several_answers_are_not_part_of_the_prompt() -> None:
    @function
    def several(s: ProgramState) -> None:
        s += "q" + gen("many", n=3)
        s += ", ".join(s["many"]) + gen("one")

    graph = several.trace().graph
    assert graph.calls[1].prompt == (
        AppendText("q"),
        Answer(0, carried=False),
        AppendText(", "),
        Answer(0, carried=False),
        AppendText(", "),
        Answer(0, carried=False),
    )


def test_nothing_has_an_empty_graph() -> None:
    graph = graph_of(Piece(()), Marks())
    assert (graph.calls, graph.start, graph.made_of) == ((), (), {})
    assert graph.levels() == ()


@given(trees)
@hypothesis_settings(max_examples=60)
def test_the_graph_has_the_prompts_of_a_run(steps: list[Step]) -> None:
    trace = program.trace(tuple(steps))
    asked = backend()
    program.run(tuple(steps), backend=asked)
    if trace.stop is not None:
        assert len(trace.graph.calls) <= len(asked.calls)
        return
    answers = {(call.tag.branch, call.tag.step): call.answer for call in asked.calls}
    prompts = {(call.tag.branch, call.tag.step): call.prompt for call in asked.calls}
    assert len(trace.graph.calls) == len(prompts)
    for call in trace.graph.calls:
        text = "".join(
            part.text if isinstance(part, AppendText) else answers[_place(trace.graph, part)]  # type: ignore[arg-type]
            for part in call.prompt
        )
        assert text == prompts[call.branch, _step(trace.graph, call.index)]


def _step(graph: Graph, index: int) -> int:
    operation = graph.calls[index].operation
    tag = getattr(operation, "tag", None) or operation.request.tag  # type: ignore[union-attr]
    return int(tag.step)


def _place(graph: Graph, part: Answer) -> tuple[str, int]:
    return graph.calls[part.call].branch, _step(graph, part.call)


def test_the_backend_is_not_asked() -> None:
    asked = ScriptedBackend()
    essay.trace(backend=asked)
    assert asked.calls == []
