"""Explaining a program before it runs: its calls, what they share, what waits for what, what each pass does."""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ramet.lang.backends.base import Backend
from ramet.lang.compiler.graph import Answer, CallNode, Graph, Link, Part
from ramet.lang.compiler.hoist import MIN_PREFIX
from ramet.lang.compiler.html import page
from ramet.lang.compiler.measure import Measure, measure
from ramet.lang.compiler.order import num_moved
from ramet.lang.compiler.pieces import Compilation
from ramet.lang.compiler.prewarm import PrewarmTails
from ramet.lang.compiler.shared_calls import is_repeatable, question
from ramet.lang.compiler.trace import Trace
from ramet.lang.compiler.unread import drop_unread, dropped_calls
from ramet.lang.operations import Prewarm

MAX_LISTED = 5


@dataclass(frozen=True)
class Explanation:
    """What is known of a program before it runs. ``str()`` of it is the whole as text."""

    trace: Trace
    measure: Measure
    num_requests: int
    """Calls that are made, once equal ones were merged and unread ones dropped."""
    critical_path: tuple[str, ...]
    """The calls that have to be made one after the other, where these take longest."""
    critical_tokens: int
    """How many tokens they generate, at most."""
    num_at_once: int
    """How many calls can run at once."""
    passes: tuple[tuple[str, str], ...]
    """Of each pass its name and what it does here."""

    @property
    def num_calls(self) -> int:
        return len(self.trace.graph.calls)

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts, each counted whole."""
        return self.measure.total

    @property
    def unique_tokens(self) -> int:
        """What of them has to be computed."""
        return self.measure.unique

    @property
    def shared_tokens(self) -> int:
        return self.prompt_tokens - self.unique_tokens

    @property
    def expected_saving(self) -> float:
        """The share of the prompts' tokens that need not be computed again, 0 to 1."""
        return self.shared_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def write_html(self, path: str | Path) -> None:
        """A page of its own, with the graph drawn."""
        Path(path).write_text(page(self.trace, self.measure, str(self)), encoding="utf-8")

    def __str__(self) -> str:
        about = "about " if self.measure.is_estimate else ""
        at_most = "at most " if self.num_calls else ""
        lines = [
            f"program {self.trace.program}",
            f"  calls            {self.num_calls}, of which {self.num_requests} are made",
            f"  prompt tokens    {about}{self.prompt_tokens}: {self.unique_tokens} unique, "
            f"{self.shared_tokens} shared",
            f"  expected saving  {self.expected_saving:.0%} of the prompt tokens",
            f"  critical path    {len(self.critical_path)} in a row, {at_most}{self.critical_tokens} tokens: "
            f"{_listed(self.critical_path, ' -> ')}",
            f"  at once          up to {self.num_at_once}",
        ]
        if self.measure.is_estimate:
            lines.append("  tokens are estimated at 4 characters each: the backend does not count its own")
        lines.append("passes")
        lines += [f"  {name:<15}  {text}" for name, text in self.passes]
        return "\n".join(lines)


def explain_trace(trace: Trace, backend: Backend, compilation: Compilation) -> Explanation:
    graph = trace.graph
    measured = measure(graph, backend)
    levels = graph.levels()
    if not compilation.compiles:
        return _interpreted(trace, measured, levels)
    dropped = {id(call) for piece in trace.pieces() for call in dropped_calls(drop_unread(piece))}
    kept = [call for call in graph.calls if id(call.operation) not in dropped]
    merged = merged_calls(graph) if backend.capabilities.repeatable else {}
    merged = {one: other for one, other in merged.items() if id(graph.calls[one].operation) not in dropped}
    path, tokens = critical_path(graph, measured.answers)
    passes = (
        ("pieces", _pieces_line(trace)),
        ("hoist prefix", _hoist_line(trace, measured, hoists=backend.capabilities.hoists)),
        ("run at once", _independent_line(trace, levels, compilation)),
        ("merge equal", _merge_line(graph, merged, repeatable=backend.capabilities.repeatable)),
        ("drop unread", _drop_line(len(dropped), compilation)),
        ("depth first", _order_line(trace)),
        ("prewarm", _prewarm_line(trace)),
        ("tag", "each call says how many calls follow it"),
    )
    return Explanation(
        trace=trace,
        measure=measured,
        num_requests=len(kept) - len(merged),
        critical_path=tuple(graph.calls[index].name for index in path),
        critical_tokens=tokens,
        num_at_once=max(Counter(levels).values(), default=0),
        passes=passes,
    )


def _interpreted(trace: Trace, measured: Measure, levels: tuple[int, ...]) -> Explanation:
    """Of a program whose calls are made as they are said."""
    path, tokens = critical_path(trace.graph, measured.answers)
    return Explanation(
        trace=trace,
        measure=measured,
        num_requests=len(trace.graph.calls),
        critical_path=tuple(trace.graph.calls[index].name for index in path),
        critical_tokens=tokens,
        num_at_once=max(Counter(levels).values(), default=0),
        passes=(("none", "the program is interpreted: each call is made as it is said, equal ones too"),),
    )


def merged_calls(graph: Graph) -> dict[int, int]:
    """Calls that ask what another one asks of an equal prompt, and which one that is."""
    stands_for: dict[int, int] = {}
    first: dict[tuple[int, bytes], int] = {}
    numbers: dict[tuple[int, Part], int] = {}
    prompts: dict[Link | None, int] = {None: 0}
    """Equal numbers stand for equal prompts."""
    for step in graph.steps():
        if isinstance(step, Link):
            prompt = prompts[step.before]
            for part in graph.made.parts(step.open):
                if isinstance(part, Answer):
                    part = Answer(stands_for.get(part.call, part.call), part.carried)
                prompt = numbers.setdefault((prompt, part), len(numbers) + 1)
            prompts[step] = prompt
        elif is_repeatable(step.operation):
            other = first.setdefault((prompts[step.last], question(step.operation)), step.index)
            if other != step.index:
                stands_for[step.index] = other
    return stands_for


def critical_path(graph: Graph, answers: tuple[int, ...]) -> tuple[list[int], int]:
    """The chain of calls that generates the most tokens, and how many these are."""
    before: dict[int, int | None] = {}
    total: dict[int, int] = {}
    longest: dict[Link | None, int | None] = {None: None}
    """Of the calls that each prompt needs, up to here: the one at the end of the longest chain."""
    for step in graph.steps():
        if isinstance(step, Link):
            needed = [answer.call for answer in graph.answers(step)]
            so_far = longest[step.before]
            candidates = needed if so_far is None else [so_far, *needed]
            longest[step] = max(candidates, key=lambda index: total[index], default=None)
        else:
            before[step.index] = last = longest[step.last]
            total[step.index] = answers[step.index] + (0 if last is None else total[last])
    if not total:
        return [], 0
    end: int | None = max(total, key=lambda index: total[index])
    tokens = total[end] if end is not None else 0
    path: list[int] = []
    while end is not None:
        path.append(end)
        end = before[end]
    return path[::-1], tokens


def held_back(trace: Trace) -> list[tuple[str, list[CallNode]]]:
    """Reads at which the program waits, though calls that it says later do not need what it waits for. Each
    call is listed with the last read that it need not wait for."""
    graph = trace.graph
    made_of = graph.made_of
    reads = [read for read in trace.reads if made_of.get(id(read.variable))]
    # Sets of reads are bits of integers: programs may have thousands.
    of_call = [0] * len(graph.calls)
    for number, read in enumerate(reads):
        for index in made_of[id(read.variable)]:
            of_call[index] |= 1 << number
    needed: list[int] = [0] * len(graph.calls)
    along: dict[Link | None, int] = {None: 0}
    for step in graph.steps():
        if isinstance(step, CallNode):
            needed[step.index] = along[step.last]
        else:
            bits = along[step.before]
            for answer in graph.answers(step):
                bits |= needed[answer.call] | of_call[answer.call]
            along[step] = bits
    told_at = [read.num_told for read in reads]
    found: dict[int, list[CallNode]] = {}
    for index, told in trace.order.items():
        earlier = (1 << bisect_right(told_at, told)) - 1
        if free := earlier & ~needed[index]:
            found.setdefault(free.bit_length() - 1, []).append(graph.calls[index])
    return [(reads[number].where, found[number]) for number in sorted(found)]


def _pieces_line(trace: Trace) -> str:
    count = len(trace.pieces())
    if trace.stop is not None:
        return f"followed up to where {trace.stop}; what comes then is compiled while it runs"
    if count == 1:
        return "the whole program is one piece"
    waits = "once" if count == 2 else f"{count - 1} times"
    return f"{count}: the program waits for a value {waits}, and is compiled from one wait to the next"


def _hoist_line(trace: Trace, measured: Measure, *, hoists: bool) -> str:
    if not measured.shared_start:
        return "none: no start is shared by all prompts" if trace.graph.calls else "none: there are no calls"
    characters = sum(len(getattr(part, "text", "")) for part in trace.prefix)
    shared = f"all prompts share their first {measured.shared_start} tokens"
    if not hoists:
        return f"{shared}; this backend has nothing of being told so ahead of a batch"
    batch = "the start is long enough to be" if characters >= MIN_PREFIX else "the start is too short to be"
    return f"{shared}; in a batch {batch} computed ahead"


def _independent_line(trace: Trace, levels: tuple[int, ...], compilation: Compilation) -> str:
    if not trace.graph.calls:
        return "none: there are no calls"
    widest = max(Counter(levels).values())
    line = "none: each call needs the answers before it" if len(levels) > 1 else "none: there is one call"
    if widest > 1:
        line = f"up to {widest} calls, since none of them needs another's answer"
    remedy = "" if compilation.defers else ": compile() it"
    advice = [
        f"; the program waits{f' at {where}' if where else ''} before it says "
        f"{_listed(tuple(call.name for call in calls), ', ')}, which could run meanwhile{remedy}"
        for where, calls in held_back(trace)[:2]
    ]
    return line + "".join(advice)


def _merge_line(graph: Graph, merged: dict[int, int], *, repeatable: bool) -> str:
    if not repeatable:
        return "none: this backend may answer the same question differently"
    if not merged:
        return "none: no two calls ask the same of the same prompt with a fixed answer"
    pairs = tuple(_pair(graph.calls[one], graph.calls[other]) for one, other in merged.items())
    return f"{_calls(len(merged))} answered by an equal one: {_listed(pairs, ', ')}"


def _pair(call: CallNode, other: CallNode) -> str:
    if call.name != other.name:
        return f"{call.name} is {other.name}"
    return f"{call.name} of branch {call.branch} is that of {other.branch}"


def _drop_line(count: int, compilation: Compilation) -> str:
    if compilation.outputs is None:
        return "none: every variable and the text may be read; compile(outputs=[...]) says which are"
    return f"{_calls(count)} not made; what is read is {', '.join(compilation.outputs) or 'nothing'}"


def _order_line(trace: Trace) -> str:
    moved = sum(num_moved(piece) for piece in trace.pieces())
    if not moved:
        return "branches begin in the order in which they were forked"
    return f"{moved} branches begin beside those that share their text"


def _prewarm_line(trace: Trace) -> str:
    prewarm = PrewarmTails()
    branches = [
        track.branch.path
        for piece in trace.pieces()
        for track in prewarm(piece).tracks
        if isinstance(track.operations[-1], Prewarm)
    ]
    if not branches:
        return "nothing long is said before a wait and used after it"
    return f"while the program waits, what it said already is computed on {_listed(tuple(branches), ', ')}"


def _calls(count: int) -> str:
    return "1 call is" if count == 1 else f"{count} calls are"


def _listed(names: tuple[str, ...], separator: str) -> str:
    shown = separator.join(names[:MAX_LISTED])
    more = len(names) - MAX_LISTED
    return f"{shown}{separator}and {more} more" if more > 0 else shown
