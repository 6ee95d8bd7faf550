"""Intersection, complement and membership of nodes, through references.

References are expanded only where something must be combined with what they stand for. A combination that
meets itself again on the way down becomes a definition of its own, so recursive schemas stay finite.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import TypeVar

from ramet.runtime.grammar.schema import arrays, numbers, objects, strings
from ramet.runtime.grammar.schema.automaton import TooLargeError
from ramet.runtime.grammar.schema.pace import Pace
from ramet.runtime.grammar.schema.shapes import (
    ANY,
    FALSE,
    NEVER,
    NULL,
    TRUE,
    Array,
    Everything,
    Literal,
    Node,
    Number,
    Object,
    Option,
    Ref,
    String,
    Value,
    literal_of,
    node_of,
    number_of,
    spread,
    type_of,
    union,
    value_of,
)

_MAX_DEPTH = 90
T = TypeVar("T")
_SIMPLE = (NULL, TRUE, FALSE)


class TooComplexError(Exception):
    """A combination would take too many steps or nest too deeply."""


class Algebra:
    """Combines nodes. ``definitions`` grows by those that combinations need; everything else is immutable.

    ``load`` answers the node of a definition that is not known yet.
    """

    def __init__(self, load: Callable[[str], Node], max_steps: int, pace: Pace | None = None) -> None:
        self.definitions: dict[str, Node] = {}
        self._load = load
        self._memo: dict[tuple[str, object], Node] = {}
        self._running: dict[tuple[str, object], str] = {}
        self._recursive: set[str] = set()
        self._open: set[str] = set()
        self._pending: dict[str, tuple[str, Node | None]] = {}
        self._num_names = 0
        self._steps = max_steps
        self.check_pace = (pace or Pace()).check
        self._depth = 0

    def definition(self, name: str) -> Node:
        """What ``name`` stands for. Raises TooComplexError where it is still being worked out."""
        if name in self.definitions:
            return self.definitions[name]
        if self._is_open(name):
            raise TooComplexError
        self._open.add(name)
        try:
            if name in self._pending:
                base, other = self._pending.pop(name)
                result = self._apply(base, other)
            else:
                result = self._load(name)
        finally:
            self._open.discard(name)
        self.definitions[name] = result
        return result

    def intersect(self, left: Node, right: Node) -> Node:
        """The values that both accept. Raises TooComplexError."""
        if left.is_any or left == right:
            return right
        if right.is_any:
            return left
        if left.is_never or right.is_never:
            return NEVER
        with_depth = self._enter()
        try:
            return union([self._pair(a, b) for a in left.options for b in right.options])
        finally:
            self._depth = with_depth

    def negate(self, node: Node) -> Node:
        """The values that ``node`` does not accept. Raises TooComplexError."""
        return self.subtract(ANY, node)

    def subtract(self, given: Node, node: Node) -> Node:
        """The values of ``given`` that ``node`` does not accept. Raises TooComplexError."""
        if node.is_any:
            return NEVER
        if node.is_never:
            return given
        with_depth = self._enter()
        try:
            for option in node.options:
                given = self.intersect(given, self._negate_option(option))
            return given
        finally:
            self._depth = with_depth

    def accepts(self, node: Node, value: object) -> bool:
        """Whether ``value`` is one of the node's. Raises TooComplexError."""
        with_depth = self._enter()
        try:
            return any(self._option_accepts(option, value) for option in node.options)
        finally:
            self._depth = with_depth

    def all_of(self, nodes: Iterable[Node]) -> Node:
        result = ANY
        for node in nodes:
            result = self.intersect(result, node)
        return result

    def _enter(self) -> int:
        self.check_pace()
        before = self._depth
        self._steps -= 1
        if self._steps < 0 or before >= _MAX_DEPTH:
            raise TooComplexError
        self._depth = before + 1
        return before

    def _pair(self, left: Option, right: Option) -> Node:
        self.check_pace()
        self._steps -= 1
        if self._steps < 0:
            raise TooComplexError
        match left, right:
            case Everything(), _:
                return Node((right,))
            case _, Everything():
                return Node((left,))
            case _ if left == right:
                return Node((left,))
            case (Ref(name), other) | (other, Ref(name)):
                return self._through(("and", frozenset((left, right))), name, Node((other,)))
            case Literal(values), Literal(others):
                known = set(others)
                kept = tuple(value for value in values if value in known)
                return Node((Literal(kept),)) if kept else NEVER
            case (Literal(values), other) | (other, Literal(values)):
                kept = tuple(value for value in values if self._option_accepts(other, value.value))
                return Node((Literal(kept),)) if kept else NEVER
            case Number(), Number():
                return node_of(*numbers.intersect(left, right))
            case String(), String():
                return node_of(*strings.intersect(left, right))
            case Array(), Array():
                return node_of(*arrays.intersect(left, right, self))
            case Object(), Object():
                self._steps -= len(left.props) + len(right.props)
                return node_of(*_bounded(lambda: objects.intersect(left, right, self)))
            case _:
                return NEVER

    def _through(self, key: tuple[str, object], name: str, other: Node | None) -> Node:
        """The definition ``name`` combined with ``other`` (None: its complement), computed once.

        Met again while it is computed, it is a reference to itself, and becomes a definition. Where ``name`` is
        itself being worked out, the combination is put off until it is first needed.
        """
        if key in self._memo:
            return self._memo[key]
        if key in self._running:
            self._recursive.add(self._running[key])
            return Node((Ref(self._running[key]),))
        self._num_names += 1
        own_name = f"{key[0]} {self._num_names}{origin(name)}"
        if self._is_open(name):
            self._pending[own_name] = (name, other)
            self._memo[key] = Node((Ref(own_name),))
            return self._memo[key]
        self._running[key] = own_name
        self._open.add(own_name)
        try:
            result = self._apply(name, other)
        finally:
            del self._running[key]
            self._open.discard(own_name)
        if own_name in self._recursive:
            self.definitions[own_name] = result
            # Nothing at all stays nothing, so that branches are seen to be disjoint.
            result = result if result.is_never else Node((Ref(own_name),))
        self._memo[key] = result
        return result

    def _apply(self, name: str, other: Node | None) -> Node:
        inner = self.definition(name)
        return self.negate(inner) if other is None else self.intersect(inner, other)

    def _is_open(self, name: str) -> bool:
        """It is being worked out, or waits for one that is."""
        while name in self._pending and name not in self._open:
            name = self._pending[name][0]
        return name in self._open

    def _negate_option(self, option: Option) -> Node:
        if isinstance(option, Ref):
            return self._through(("not", option.name), option.name, None)
        if isinstance(option, Literal):
            return self._negate_values(option.values)
        if isinstance(option, Everything):
            return NEVER
        inside: list[Option] = []
        match option:
            case Number():
                inside = numbers.negate(option)
            case String():
                inside = strings.negate(option) + list(literal_of(option.excluded).options)
            case Array():
                inside = arrays.negate(option, self)
            case Object():
                inside = _bounded(lambda: objects.negate(option, self))
        others = [other for other in spread(ANY) if type(other) is not type(option)]
        return node_of(*others, *inside)

    def _negate_values(self, values: tuple[Value, ...]) -> Node:
        kept = tuple(value for value in _SIMPLE if value not in values)
        parts = [Node((Literal(kept),))] if kept else []
        by_type: dict[type[Option], list[object]] = {Number: [], String: [], Array: [], Object: []}
        for value in values:
            if value not in _SIMPLE:
                by_type[type_of(value)].append(value.value)
        numeric = sorted(number_of(value) for value in by_type[Number])
        bounds = [None, *numeric, None]
        for low, high in pairwise(bounds):
            gap = Number(low=low, low_open=low is not None, high=high, high_open=high is not None)
            parts.append(node_of(*numbers.simplify(gap)))
        texts = [value for value in by_type[String] if isinstance(value, str)]
        parts.append(Node((String(excluded=tuple(sorted(texts))),)))
        for kind in (Array, Object):
            others = Node(tuple(other for other in spread(ANY) if type(other) is kind))
            for content in by_type[kind]:
                others = self.intersect(others, self._negate_option(structure(content)))
            parts.append(others)
        return union(parts)

    def _option_accepts(self, option: Option, value: object) -> bool:
        self.check_pace()
        match option:
            case Everything():
                return True
            case Ref(name):
                return self.accepts(self.definition(name), value)
            case Literal(values):
                return value_of(value) in values
            case Number():
                return (
                    isinstance(value, int | float)
                    and not isinstance(value, bool)
                    and numbers.accepts(option, number_of(value))
                )
            case String():
                return isinstance(value, str) and _bounded(lambda: strings.accepts(option, value))
            case Array():
                return isinstance(value, list) and arrays.accepts(option, value, self)
            case Object():
                return isinstance(value, Mapping) and _bounded(lambda: objects.accepts(option, value, self))


def origin(name: str) -> str:
    """The pointer in the schema that a definition comes from, or a combination began with; the names of the
    latter begin with a word."""
    return name[name.index("/") :] if "/" in name else ""


def _bounded(compute: Callable[[], T]) -> T:
    try:
        return compute()
    except TooLargeError:
        raise TooComplexError from None


def structure(value: object) -> Option:
    """The array or object ``value`` as an option that accepts it alone."""
    if isinstance(value, Mapping):
        props = tuple((name, literal_of([member])) for name, member in value.items())
        return Object(props=props, required=frozenset(value), rest=NEVER)
    assert isinstance(value, list)
    return Array(
        prefix=tuple(literal_of([item]) for item in value), rest=NEVER, low=len(value), high=len(value)
    )
