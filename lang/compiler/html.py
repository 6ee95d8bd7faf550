"""A page that shows a traced program: its graph as inline SVG, and each call with its prompt. No script."""

from html import escape

from ramet.lang.compiler.graph import Answer, Argument, CallNode, Graph, Part
from ramet.lang.compiler.measure import Measure
from ramet.lang.compiler.trace import Trace
from ramet.lang.operations import AppendImage, AppendText, BeginRole, EndRole, Generate

MAX_ROWS = 40
"""Calls drawn in one column; of more only the number is shown."""
MAX_CALLS = 400
"""Calls listed with their prompts."""
WIDTH, HEIGHT, GAP_X, GAP_Y = 168, 44, 76, 16

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
pre { background: #f3f5f8; padding: .8rem 1rem; border-radius: 6px; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.graph { overflow-x: auto; border: 1px solid #d8dee6; border-radius: 6px; }
svg text { font: 12px system-ui, sans-serif; fill: #1d2733; } svg .small { fill: #5a6776; font-size: 11px; }
.gen { fill: #e3f1e6; stroke: #3d8b57; } .select { fill: #e4ecfa; stroke: #3f6fb8; }
.more { fill: #f3f5f8; stroke: #aab4c0; stroke-dasharray: 4 3; }
path { fill: none; stroke: #7a8796; } path.read { stroke-dasharray: 5 4; }
.answer { background: #e3f1e6; border-radius: 3px; padding: 0 .25em; } .mark { color: #5a6776; }
"""


def page(trace: Trace, measure: Measure, summary: str) -> str:
    """The page's text. Everything that comes from the program is escaped."""
    name = escape(trace.program)
    shown = trace.graph.calls[:MAX_CALLS]
    left_out = len(trace.graph.calls) - len(shown)
    calls = "\n".join(_call(trace.graph, measure, call) for call in shown)
    more = f"<p>and {left_out} more</p>" if left_out else ""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>
<h1>{name}</h1>
<pre>{escape(summary)}</pre>
<h2>Calls</h2>
<p>Each column can begin once the one before it has ended. Solid: the prompt goes on from there.
Dashed: the answer was read, and said as text.</p>
<div class="graph">{graph_svg(trace.graph, measure)}</div>
<h2>Prompts</h2>
{calls}
{more}
</body></html>
"""


def graph_svg(graph: Graph, measure: Measure) -> str:
    """Calls in columns by how many have to come before them, and arrows from the answers that they need."""
    places, hidden = _places(graph)
    columns = 1 + max((column for column, _ in places.values()), default=0)
    rows = 1 + max([row for _, row in places.values()] + [MAX_ROWS for _ in hidden], default=0)
    width, height = columns * (WIDTH + GAP_X), rows * (HEIGHT + GAP_Y) + GAP_Y
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="the calls and what they need">'
    ]
    for call in graph.calls:
        if call.index in places:
            parts += [
                _arrow(places[other], places[call.index], carried=carried)
                for other, carried in _direct_needs(graph, call)
                if other in places
            ]
    parts += [_box(call, measure, places[call.index]) for call in graph.calls if call.index in places]
    for column, count in hidden.items():
        x, y = _corner((column, MAX_ROWS))
        parts.append(
            f'<rect class="more" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
            f'<text x="{x + 10}" y="{y + 26}">and {count} more</text>'
        )
    return "".join(parts) + "</svg>"


Place = tuple[int, int]
"""Column and row."""


def _places(graph: Graph) -> tuple[dict[int, Place], dict[int, int]]:
    """Of the calls that are drawn; and of each column how many are not."""
    places: dict[int, Place] = {}
    hidden: dict[int, int] = {}
    used: dict[int, int] = {}
    for call, level in zip(graph.calls, graph.levels(), strict=True):
        row = used.get(level, 0)
        if row < MAX_ROWS:
            places[call.index] = level, row
            used[level] = row + 1
        else:
            hidden[level] = hidden.get(level, 0) + 1
    return places, hidden


def _direct_needs(graph: Graph, call: CallNode) -> list[tuple[int, bool]]:
    """The answer that the prompt goes on from, and those that are read behind it; whether it is the former."""
    before, parts = graph.newly_said(call)
    found = {(part.call, False): None for part in parts if isinstance(part, Answer)}
    if before is not None:
        found[before, True] = None
    return list(found)


def _corner(place: Place) -> tuple[int, int]:
    column, row = place
    return GAP_X // 2 + column * (WIDTH + GAP_X), GAP_Y + row * (HEIGHT + GAP_Y)


def _arrow(begin: Place, end: Place, *, carried: bool) -> str:
    x1, y1 = _corner(begin)
    x2, y2 = _corner(end)
    x1, y1, y2 = x1 + WIDTH, y1 + HEIGHT // 2, y2 + HEIGHT // 2
    middle = (x1 + x2) // 2
    kind = "" if carried else ' class="read"'
    return f'<path{kind} d="M{x1} {y1} C{middle} {y1} {middle} {y2} {x2} {y2}"/>'


def _box(call: CallNode, measure: Measure, place: Place) -> str:
    x, y = _corner(place)
    kind = "gen" if isinstance(call.operation, Generate) else "select"
    name = call.name if len(call.name) <= 20 else call.name[:19] + "…"
    tokens = f"{call.branch}: {measure.prompts[call.index]} in, {measure.own[call.index]} new"
    return (
        f"<g><title>{escape(f'{kind} {call.name} on branch {call.branch}')}</title>"
        f'<rect class="{kind}" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        f'<text x="{x + 10}" y="{y + 18}">{escape(name)}</text>'
        f'<text class="small" x="{x + 10}" y="{y + 35}">{escape(tokens)}</text></g>'
    )


def _call(graph: Graph, measure: Measure, call: CallNode) -> str:
    before, parts = graph.newly_said(call)
    prompt = "".join(_shown(graph, part) for part in parts)
    if before is not None:
        # Its prompt is on the page already: the whole of all prompts would be quadratic in a long conversation.
        name = escape(graph.calls[before].name)
        prompt = f"<span class='mark'>[the prompt of {name}]</span>{_shown(graph, Answer(before))}{prompt}"
    about = f"{measure.prompts[call.index]} tokens, at most {measure.answers[call.index]} generated"
    return (
        f"<details><summary>{escape(call.name)} <span class='mark'>branch {escape(call.branch)}, {about}"
        f"</span></summary><pre>{prompt}</pre></details>"
    )


def _shown(graph: Graph, part: Part) -> str:
    match part:
        case AppendText(text):
            return escape(text)
        case BeginRole(role):
            return f"<span class='mark'>[{escape(role)}]</span>"
        case EndRole():
            return "<span class='mark'>[/]</span>"
        case AppendImage():
            return "<span class='mark'>[image]</span>"
        case Answer(index):
            return f"<span class='answer'>{escape(graph.calls[index].name)}</span>"
        case Argument(name):
            return f"<span class='mark'>[{escape(name)}]</span>"
