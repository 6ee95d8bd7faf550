"""The page about a program: well formed, complete, and safe."""

import re
import xml.etree.ElementTree as ElementTree

from ramet.lang import ProgramState, assistant, function, gen, image, select, user
from ramet.lang.backends.scripted import ScriptedBackend
from ramet.lang.compiler.html import MAX_CALLS, MAX_ROWS, graph_svg, page
from ramet.lang.compiler.measure import measure
from ramet.lang.compiler.trace import Trace

SVG = "{http://www.w3.org/2000/svg}"


def page_of(trace: Trace) -> str:
    return page(trace, measure(trace.graph, ScriptedBackend()), "summary <&>")


def svg_of(trace: Trace) -> ElementTree.Element:
    return ElementTree.fromstring(graph_svg(trace.graph, measure(trace.graph, ScriptedBackend())))


@function
def program(s: ProgramState, text: str) -> None:
    s += user(text + image("data:image/png;base64,AA")) + assistant(gen("<script>alert(1)</script>"))
    branches = s.fork(2)
    branches += gen("b" * 40)
    branches.join()
    s += user(" ".join(s["b" * 40])) + assistant(select("s", ["x", "y"]))


def test_each_call_and_each_need_is_drawn() -> None:
    svg = svg_of(program.trace("q"))
    boxes = [str(rect.get("class")) for rect in svg.iter(f"{SVG}rect")]
    assert sorted(boxes) == ["gen", "gen", "gen", "select"]
    arrows = [path.get("class") for path in svg.iter(f"{SVG}path")]
    assert sorted(arrow or "" for arrow in arrows) == ["", "", "", "read", "read"]
    columns = {rect.get("x") for rect in svg.iter(f"{SVG}rect")}
    assert len(columns) == 3


def test_a_prompt_that_goes_on_from_another_names_it() -> None:
    def body(s: ProgramState) -> None:
        s += "A beginning" + gen("first") + ", and" + gen("second") + " then" + gen("third")

    text = page_of(function(body).trace())
    assert text.count("A beginning") == 1
    assert (
        "<span class='mark'>[the prompt of second]</span><span class='answer'>second</span> then</pre>" in text
    )


def test_what_comes_from_the_program_is_escaped() -> None:
    text = page_of(program.trace("<img src=x onerror=alert(1)>"))
    assert "<script" not in text
    assert "<img" not in text
    assert "summary &lt;&amp;&gt;" in text
    assert "[image]" in text
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", text)
    assert "[text]" in page_of(program.trace())


def test_wide_graphs_are_cut() -> None:
    @function
    def wide(s: ProgramState) -> None:
        branches = s.fork(MAX_CALLS + 10)
        branches += gen("a")

    trace = wide.trace()
    texts = [text.text for text in svg_of(trace).iter(f"{SVG}text")]
    assert f"and {MAX_CALLS + 10 - MAX_ROWS} more" in texts
    assert page_of(trace).count("<details>") == MAX_CALLS
    assert "<p>and 10 more</p>" in page_of(trace)


def test_nothing_is_a_page_too() -> None:
    assert "<svg" in page_of(function(lambda s: None).trace())
