"""What is said of a program before it runs."""

from pathlib import Path
from typing import Any

import msgspec

from ramet.lang import ProgramState, assistant, function, gen, system, user
from ramet.lang.backends.scripted import EVERYTHING, ScriptedBackend
from ramet.lang.compiler.explain import Explanation, critical_path, held_back, merged_calls

REPEATABLE = msgspec.structs.replace(EVERYTHING, repeatable=True)
LONG = "You answer questions about plants, and only about plants. " * 8


def explained(body: Any, *args: Any, **kwargs: Any) -> Explanation:
    kwargs.setdefault("backend", ScriptedBackend(capabilities=REPEATABLE))
    return function(body).explain(*args, **kwargs)  # type: ignore[no-any-return]


def skeleton(s: ProgramState, topic: str, parts: int = 3) -> None:
    s += system(LONG) + user(topic) + assistant(gen("outline", max_tokens=40, temperature=0))
    branches = s.fork(parts)
    for number, branch in enumerate(branches):
        branch += user(f"Part {number}") + assistant(gen("part", max_tokens=100, temperature=0))
    branches.join()
    s += user("Join: " + " ".join(s["part"])) + assistant(gen("whole", max_tokens=30))


def test_calls_tokens_and_the_critical_path() -> None:
    explanation = explained(skeleton, "trees")
    assert (explanation.num_calls, explanation.num_requests, explanation.num_at_once) == (5, 5, 3)
    assert explanation.critical_path == ("outline", "part", "whole")
    assert explanation.critical_tokens == 170
    assert explanation.prompt_tokens == explanation.unique_tokens + explanation.shared_tokens
    assert 0.4 < explanation.expected_saving < 0.9
    text = str(explanation)
    for words in (
        "program skeleton",
        "calls            5, of which 5 are made",
        "critical path    3 in a row, at most 170 tokens: outline -> part -> whole",
        "at once          up to 3",
        "estimated at 4 characters",
        "2: the program waits for a value once",
        "long enough to be computed ahead",
    ):
        assert words in text
    assert dict(explanation.passes).keys() == {
        "pieces",
        "hoist prefix",
        "run at once",
        "merge equal",
        "drop unread",
        "depth first",
        "prewarm",
        "tag",
    }


def test_a_run_does_what_was_explained() -> None:
    for parts in (1, 4):
        backend = ScriptedBackend("x", capabilities=REPEATABLE)
        explanation = explained(skeleton, "trees", parts, backend=backend)
        assert backend.calls == []
        function(skeleton).run("trees", parts, backend=backend)
        assert len(backend.calls) == explanation.num_requests == parts + 2


def test_equal_calls_are_named() -> None:
    def body(s: ProgramState) -> None:
        s += "q"
        branches = s.fork(3)
        branches += gen("a", temperature=0) + gen("b", temperature=0)
        branches.join()

    backend = ScriptedBackend("x", capabilities=REPEATABLE)
    explanation = explained(body, backend=backend)
    assert explanation.num_requests == 2
    assert dict(explanation.passes)["merge equal"].startswith(
        "4 calls are answered by an equal one: a of branch 0/1 is that of 0/0, b of branch 0/1"
    )
    function(body).run(backend=backend)
    assert len(backend.calls) == 2
    assert merged_calls(explanation.trace.graph) == {2: 0, 4: 0, 3: 1, 5: 1}
    unsure = explained(body, backend=ScriptedBackend())
    assert unsure.num_requests == 6
    assert "may answer the same question differently" in str(unsure)


def test_calls_that_are_not_made_are_counted() -> None:
    program = function(skeleton).compile(outputs=["outline"])
    backend = ScriptedBackend("x", capabilities=REPEATABLE)
    explanation = program.explain("trees", backend=backend)
    # Up to the read of the parts the program is as it is.
    assert explanation.num_requests == 4
    assert "1 call is not made; what is read is outline" in str(explanation)
    program.run("trees", backend=backend)
    assert len(backend.calls) == 4


def test_a_program_that_decides_is_explained_up_to_there() -> None:
    def body(s: ProgramState) -> None:
        s += gen("a")
        if s["a"] == "yes":
            s += gen("b")

    explanation = explained(body)
    assert explanation.num_calls == 1
    assert "followed up to where what it does next depends on what 'a' is (test_explain.py:" in str(explanation)


def test_a_wait_that_holds_up_other_calls_is_named() -> None:
    def body(s: ProgramState) -> None:
        first, second = s.fork(1)[0], s.fork(1)[0]
        first += gen("a")
        s += f"A was {first['a']}" + gen("c")
        second += gen("b")

    explanation = explained(body)
    ((where, calls),) = held_back(explanation.trace)
    assert where.startswith("test_explain.py:")
    assert [call.name for call in calls] == ["b"]
    assert f"waits at {where} before it says b, which could run meanwhile: compile() it" in str(explanation)


def test_what_is_moved_and_computed_ahead_is_named() -> None:
    def body(s: ProgramState) -> None:
        branches = s.fork(4)
        branches += lambda i: (LONG if i % 2 else LONG[::-1]) + gen("a")
        branches.join()
        s += LONG + s["a"][0] + gen("b")

    def warmed(s: ProgramState) -> None:
        branches = s.fork(1)
        branches += gen("a")
        branches.join()
        s += LONG
        s += s["a"][0] + gen("b")

    assert "2 branches begin beside those that share their text" in str(explained(body))
    assert "what it said already is computed on 0" in str(explained(warmed))


def test_the_longest_chain_is_that_of_the_most_tokens() -> None:
    def body(s: ProgramState) -> None:
        s += gen("a", max_tokens=1)
        branches = s.fork(2)
        branches += [
            gen("b", max_tokens=5) + gen("c", max_tokens=5) + gen("d", max_tokens=5),
            gen("e", max_tokens=50),
        ]

    explanation = explained(body)
    assert explanation.critical_path == ("a", "e")
    assert critical_path(explanation.trace.graph, explanation.measure.answers) == ([0, 4], 51)


def test_a_program_without_calls_is_explained() -> None:
    explanation = explained(lambda s: None)
    assert (explanation.num_calls, explanation.expected_saving, explanation.critical_path) == (0, 0.0, ())
    assert "calls            0" in str(explanation)
    passes = dict(explanation.passes)
    assert passes["run at once"] == passes["hoist prefix"] == "none: there are no calls"


def test_a_lone_call_has_nothing_to_wait_for() -> None:
    def body(s: ProgramState) -> None:
        s += gen("a")

    passes = dict(explained(body).passes)
    assert passes["run at once"] == "none: there is one call"
    assert passes["hoist prefix"] == "none: no start is shared by all prompts"


def test_an_interpreted_program_is_explained_as_it_runs() -> None:
    def body(s: ProgramState) -> None:
        s += "Once"
        branches = s.fork(3)
        for branch in branches:
            branch += gen("a", max_tokens=5, temperature=0)
        branches.join()

    for program, num_requests in ((function(body), 1), (function(body).interpreted(), 3)):
        backend = ScriptedBackend("x", capabilities=REPEATABLE)
        explanation = program.explain(backend=backend)
        assert (explanation.num_calls, explanation.num_requests, explanation.num_at_once) == (
            3,
            num_requests,
            3,
        )
        program.run(backend=backend)
        assert len(backend.calls) == num_requests
    assert [name for name, _ in explanation.passes] == ["none"]
    assert "calls            3, of which 3 are made" in str(explanation)
    assert "interpreted" in str(explanation)


def test_a_page_is_written(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    explained(skeleton, "trees", html=path)
    assert "<svg" in path.read_text(encoding="utf-8")

    def about(s: ProgramState, html: str) -> None:
        s += html + gen("a")

    explanation = explained(about, html="<b>")
    explanation.write_html(path)
    assert "&lt;b&gt;" in path.read_text(encoding="utf-8")


def test_long_lists_are_cut() -> None:
    def body(s: ProgramState) -> None:
        for number in range(9):
            s += gen(f"v{number}")

    assert "v0 -> v1 -> v2 -> v3 -> v4 -> and 4 more" in str(explained(body))


def test_each_call_is_named_with_the_last_wait_that_it_does_not_need() -> None:
    def body(s: ProgramState) -> None:
        first, second, third = s.fork(3)
        first += gen("a", max_tokens=1)
        s += f"{first['a']}"
        second += gen("b", max_tokens=1)
        s += f"{second['b']}"
        third += gen("c", max_tokens=1)
        s += gen("d", max_tokens=1)

    held = held_back(function(body).trace())
    assert [[call.name for call in calls] for _, calls in held] == [["b"], ["c"]]


def test_thousands_of_calls_are_no_matter() -> None:
    """Nothing here recurses, and what is known of prompts grows with the program and not with its square."""

    def body(s: ProgramState) -> None:
        for index in range(3000):
            s += f"{index}" + gen(f"x{index}", max_tokens=2)
            s += f"({s[f'x{index}']})"

    explanation = function(body).explain(backend=ScriptedBackend())
    assert (explanation.num_calls, explanation.critical_tokens) == (3000, 6000)
    assert len(explanation.trace.pieces()) == 3001
