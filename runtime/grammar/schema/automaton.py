"""Finite automata over characters: does a text match, do languages meet, what is in some and not in others.

Each construction stops with TooLargeError at a budget; nothing here backtracks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ramet.runtime.grammar.schema.charset import EVERYTHING, CharSet, contains, union
from ramet.runtime.grammar.schema.regex_parser import ANY_TEXT, EMPTY, Alt, Chars, Regex, Repeat, Seq

DEFAULT_MAX_STATES = 4_000
_MAX_NFA_STATES = 40_000
_MAX_WORK = 300_000
"""Of one construction: ranges of characters times states, at most 2 microseconds each."""
_MAX_ELIMINATED = 300
"""States that are eliminated, which takes time with their number's third power."""
_MAX_ROUNDS = 64
"""Of refining a partition of states; a long text alone needs as many as it has characters, and is minimal."""
_MAX_WRITTEN = 6_000
"""Nodes of a regex made from an automaton."""

State = frozenset[int]
_ALWAYS_CUT = frozenset(edge for low, high in EVERYTHING for edge in (low, high + 1))


class TooLargeError(Exception):
    """An automaton would exceed its budget."""


@dataclass(slots=True)
class _Nfa:
    """Thompson's construction. State 0 starts; ``moves[s]``: (characters, target); ``free[s]``: empty moves.

    From a state of ``universal`` on, every text is accepted: what else is possible no longer matters.
    """

    moves: list[list[tuple[CharSet, int]]]
    free: list[list[int]]
    accept: int
    universal: frozenset[int] = frozenset()
    _rows: dict[State, tuple[list[int], list[State]]] = field(default_factory=dict)
    _closures: dict[State, State] = field(default_factory=dict)

    def row(self, states: State) -> tuple[list[int], list[State]]:
        """Where characters lead from ``states``: the first characters of the ranges that behave alike,
        ascending from 0, and behind each the states that it leads to. Worked out once for each ``states``."""
        known = self._rows.get(states)
        if known is None:
            known = self._rows[states] = self._new_row(states)
        return known

    def _new_row(self, states: State) -> tuple[list[int], list[State]]:
        begins: dict[int, list[int]] = {edge: [] for edge in _ALWAYS_CUT}
        ends: dict[int, list[int]] = {}
        for state in states:
            for chars, target in self.moves[state]:
                for low, high in chars:
                    begins.setdefault(low, []).append(target)
                    begins.setdefault(high + 1, [])
                    ends.setdefault(high + 1, []).append(target)
        cuts = sorted(begins)
        # By target, how many ranges that lead there have begun and not ended.
        open_: dict[int, int] = {}
        targets: list[State] = []
        for cut in cuts:
            for target in ends.get(cut, ()):
                open_[target] -= 1
                if not open_[target]:
                    del open_[target]
            for target in begins[cut]:
                open_[target] = open_.get(target, 0) + 1
            direct = frozenset(open_)
            closed = self._closures.get(direct)
            if closed is None:
                closed = self._closures[direct] = self.closure(direct)
            targets.append(closed)
        return cuts, targets

    def closure(self, states: Iterable[int]) -> State:
        seen = set(states)
        stack = list(seen)
        while stack:
            for target in self.free[stack.pop()]:
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
        if not self.universal.isdisjoint(seen):
            return frozenset((self.accept, min(self.universal & seen)))
        return frozenset(seen)

    def step(self, states: State, code_point: int) -> State:
        return self.closure(
            target for state in states for chars, target in self.moves[state] if contains(chars, code_point)
        )


def matches(regex: Regex, text: str) -> bool:
    """The whole ``text`` matches ``regex``. Raises TooLargeError."""
    nfa = _build(regex)
    states = nfa.closure((0,))
    for character in text:
        if not states:
            return False
        states = nfa.step(states, ord(character))
    return nfa.accept in states


def is_empty(
    required: Sequence[Regex], forbidden: Sequence[Regex] = (), max_states: int = DEFAULT_MAX_STATES
) -> bool:
    """No text matches all of ``required`` and none of ``forbidden``. Raises TooLargeError."""
    return not _Product(required, forbidden, max_states).find_accepting()


def combine(
    required: Sequence[Regex], forbidden: Sequence[Regex] = (), max_states: int = 1_000
) -> Regex | None:
    """One regex for the texts that match all of ``required`` and none of ``forbidden``; None: there are none.

    By state elimination (Brzozowski and McCluskey 1963) on the product automaton, which is made minimal only
    where that is too large. Raises TooLargeError.
    """
    product = _Product(required, forbidden, max_states)
    edges, accepting = product.explore()
    if len(edges) <= _MAX_ELIMINATED:
        try:
            return _eliminate(edges, accepting)
        except TooLargeError:
            pass
    smaller, ends = _minimal(edges, accepting)
    if len(smaller) == len(edges) or len(smaller) > _MAX_ELIMINATED:
        raise TooLargeError
    return _eliminate(smaller, ends)


class _Product:
    """The deterministic product of several automata, built as it is visited."""

    def __init__(self, required: Sequence[Regex], forbidden: Sequence[Regex], max_states: int) -> None:
        self._nfas = [_build(regex) for regex in (*required, *forbidden)]
        self._num_required = len(required)
        self._max_states = max_states
        self._work = 0

    def _start(self) -> tuple[State, ...]:
        return tuple(nfa.closure((0,)) for nfa in self._nfas)

    def _accepts(self, state: tuple[State, ...]) -> bool:
        return all(
            (nfa.accept in part) == (index < self._num_required)
            for index, (nfa, part) in enumerate(zip(self._nfas, state, strict=True))
        )

    def _dead(self, state: tuple[State, ...]) -> bool:
        return any(not part for part in state[: self._num_required])

    def _successors(self, state: tuple[State, ...]) -> list[tuple[CharSet, tuple[State, ...]]]:
        """By target: the characters that lead there. Characters that lose every hope are left out."""
        rows = [nfa.row(part) for nfa, part in zip(self._nfas, state, strict=True)]
        cuts = sorted(set().union(*(starts for starts, _ in rows)))
        # Neither the surrogates nor what is behind the last character counts.
        self._work += (len(cuts) - 2) * sum(len(part) for part in state)
        if self._work > _MAX_WORK:
            raise TooLargeError
        ranges: dict[tuple[State, ...], list[tuple[int, int]]] = {}
        along = [_along(row, cuts) for row in rows]
        for (low, after), target in zip(pairwise(cuts), zip(*along, strict=True), strict=False):
            if low != 0xD800 and not self._dead(target):
                pairs = ranges.setdefault(target, [])
                if pairs and pairs[-1][1] == low - 1:
                    low = pairs.pop()[0]
                pairs.append((low, after - 1))
        return [(tuple(pairs), target) for target, pairs in ranges.items()]

    def find_accepting(self) -> bool:
        start = self._start()
        seen = {start}
        stack = [start]
        while stack:
            state = stack.pop()
            if self._accepts(state):
                return True
            for _, target in self._successors(state):
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
                    if len(seen) > self._max_states:
                        raise TooLargeError
        return False

    def explore(self) -> tuple[list[dict[int, CharSet]], set[int]]:
        """All states from the start (0): by state, target -> characters; and the accepting ones."""
        start = self._start()
        numbers = {start: 0}
        order = [start]
        edges: list[dict[int, CharSet]] = []
        while len(edges) < len(order):
            row: dict[int, CharSet] = {}
            for chars, target in self._successors(order[len(edges)]):
                if target not in numbers:
                    numbers[target] = len(order)
                    order.append(target)
                    if len(order) > self._max_states:
                        raise TooLargeError
                row[numbers[target]] = chars
            edges.append(row)
        return edges, {number for state, number in numbers.items() if self._accepts(state)}


def _along(row: tuple[list[int], list[State]], cuts: list[int]) -> list[State]:
    """A row's states at each of ``cuts``, which has all of its own."""
    starts, targets = row
    if len(starts) == len(cuts):
        return targets
    result: list[State] = []
    index = -1
    end = len(starts)
    for cut in cuts:
        if index + 1 < end and starts[index + 1] == cut:
            index += 1
        result.append(targets[index])
    return result


def _minimal(edges: list[dict[int, CharSet]], accepting: set[int]) -> tuple[list[dict[int, CharSet]], set[int]]:
    """The same automaton without states that differ in nothing behind them; 0 starts still. By refining a
    partition (Moore 1956): states stay together that accept alike and go on into the same parts alike. Raises
    TooLargeError."""
    useful = _reaching(edges, accepting) | {0}
    part = {state: int(state in accepting) for state in useful}
    count = len(set(part.values()))
    rows = {state: _Row(edges[state]) for state in useful}
    for _ in range(_MAX_ROUNDS):
        numbers: dict[tuple[int, frozenset[tuple[int, CharSet]]], int] = {}
        refined = {}
        for state in sorted(useful):
            signature = (part[state], frozenset(rows[state].by_part(part).items()))
            refined[state] = numbers.setdefault(signature, len(numbers))
        part = refined
        if len(numbers) == count:
            break
        count = len(numbers)
    else:
        raise TooLargeError
    # The start is the first state, so its part has the number 0.
    merged: list[dict[int, CharSet]] = [{} for _ in range(count)]
    for state in useful:
        merged[part[state]] = rows[state].by_part(part)
    return merged, {part[state] for state in accepting & useful}


class _Row:
    """A state's arrows, with the characters of those that led into one part before."""

    def __init__(self, row: dict[int, CharSet]) -> None:
        self._row = row
        self._merged: dict[tuple[int, ...], CharSet] = {}

    def by_part(self, part: dict[int, int]) -> dict[int, CharSet]:
        """The characters by the part that they lead to; those that lead nowhere useful are left out."""
        together: dict[int, list[int]] = {}
        for target in self._row:
            number = part.get(target)
            if number is not None:
                together.setdefault(number, []).append(target)
        return {number: self._union(tuple(targets)) for number, targets in together.items()}

    def _union(self, targets: tuple[int, ...]) -> CharSet:
        if len(targets) == 1:
            return self._row[targets[0]]
        known = self._merged.get(targets)
        if known is None:
            known = self._merged[targets] = union(*(self._row[target] for target in targets))
        return known


def _eliminate(edges: list[dict[int, CharSet]], accepting: set[int]) -> Regex | None:
    useful = _reaching(edges, accepting)
    if 0 not in useful:
        return None
    end = len(edges)
    start = end + 1
    arrows: dict[int, dict[int, Regex]] = {
        source: {target: Chars(chars) for target, chars in edges[source].items() if target in useful}
        for source in useful
    }
    for source in accepting:
        arrows[source][end] = EMPTY
    arrows[start] = {0: EMPTY}
    arrows[end] = {}
    sources: dict[int, set[int]] = {state: set() for state in arrows}
    for source, row in arrows.items():
        for target in row:
            sources[target].add(source)
    remaining = set(useful)
    sizes = _Sizes()
    while remaining:
        victim = min(remaining, key=lambda state: (len(sources[state]) * len(arrows[state]), state))
        remaining.discard(victim)
        _remove(arrows, sources, victim, sizes)
    return arrows[start].get(end)


def _remove(
    arrows: dict[int, dict[int, Regex]], sources: dict[int, set[int]], victim: int, sizes: "_Sizes"
) -> None:
    """Takes ``victim`` out, with paths through it written as arrows around it. ``sources``: by state, those
    that have an arrow to it."""
    row = arrows.pop(victim)
    loop = row.pop(victim, None)
    middle = () if loop is None else (_star(loop),)
    for target in row:
        sources[target].discard(victim)
    for source in sorted(sources.pop(victim) - {victim}):
        source_row = arrows[source]
        entry = source_row.pop(victim)
        for target, leave in row.items():
            sources[target].add(source)
            path = _join((entry, *middle, leave))
            known = source_row.get(target)
            source_row[target] = path if known is None else _either(known, path)
            if sizes.of(source_row[target]) > _MAX_WRITTEN:
                raise TooLargeError


def _reaching(edges: list[dict[int, CharSet]], accepting: set[int]) -> set[int]:
    """The states from which an accepting one can be reached."""
    sources: dict[int, list[int]] = {}
    for source, row in enumerate(edges):
        for target in row:
            sources.setdefault(target, []).append(source)
    seen = set(accepting)
    stack = list(accepting)
    while stack:
        for source in sources.get(stack.pop(), ()):
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return seen


def _star(regex: Regex) -> Regex:
    return ANY_TEXT if regex == ANY_TEXT else Repeat(regex, 0, None)


def _join(parts: Iterable[Regex]) -> Regex:
    flat: list[Regex] = []
    for part in parts:
        flat += part.items if isinstance(part, Seq) else (part,)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def _either(left: Regex, right: Regex) -> Regex:
    items: list[Regex] = []
    for side in (left, right):
        items += side.items if isinstance(side, Alt) else (side,)
    return Alt(tuple(dict.fromkeys(items)))


class _Sizes:
    """Nodes of the trees that one elimination makes of each other; each is counted once."""

    def __init__(self) -> None:
        # By identity: nodes are kept, so that no other gets the same.
        self._known: dict[int, tuple[Regex, int]] = {}

    def of(self, regex: Regex) -> int:
        stack = [regex]
        while stack:
            node = stack[-1]
            parts = _parts(node)
            missing = [part for part in parts if id(part) not in self._known]
            if missing:
                stack += missing
                continue
            stack.pop()
            self._known[id(node)] = (node, 1 + sum(self._known[id(part)][1] for part in parts))
        return self._known[id(regex)][1]


def _parts(regex: Regex) -> tuple[Regex, ...]:
    match regex:
        case Seq(items) | Alt(items):
            return items
        case Repeat(item):
            return (item,)
        case _:
            return ()


def _build(regex: Regex) -> _Nfa:
    nfa = _Nfa([[]], [[]], 0)
    nfa.accept = _add(nfa, regex, 0)
    nfa.universal = frozenset(
        state
        for state, moves in enumerate(nfa.moves)
        if any(chars == EVERYTHING and state in nfa.free[target] for chars, target in moves)
        and nfa.accept in nfa.closure((state,))
    )
    return nfa


def _new_state(nfa: _Nfa) -> int:
    if len(nfa.moves) >= _MAX_NFA_STATES:
        raise TooLargeError
    nfa.moves.append([])
    nfa.free.append([])
    return len(nfa.moves) - 1


def _add(nfa: _Nfa, regex: Regex, start: int) -> int:
    """Adds ``regex`` behind the state ``start``; returns its end."""
    match regex:
        case Chars(chars):
            end = _new_state(nfa)
            nfa.moves[start].append((chars, end))
            return end
        case Seq(items):
            for item in items:
                start = _add(nfa, item, start)
            return start
        case Alt(items):
            end = _new_state(nfa)
            for item in items:
                branch = _new_state(nfa)
                nfa.free[start].append(branch)
                nfa.free[_add(nfa, item, branch)].append(end)
            return end
        case Repeat(item, low, high):
            return _add_repeat(nfa, item, low, high, start)
        case _:
            raise AssertionError(f"{regex!r} is resolved before an automaton is built")


def _add_repeat(nfa: _Nfa, item: Regex, low: int, high: int | None, start: int) -> int:
    for _ in range(low):
        start = _add(nfa, item, start)
    end = _new_state(nfa)
    if high is None:
        hub = _new_state(nfa)
        nfa.free[start].append(hub)
        nfa.free[hub].append(end)
        nfa.free[_add(nfa, item, hub)].append(hub)
        return end
    nfa.free[start].append(end)
    for _ in range(high - low):
        hub = _new_state(nfa)
        nfa.free[start].append(hub)
        start = _add(nfa, item, hub)
        nfa.free[start].append(end)
    return end
