"""The values that a schema accepts, as an algebra: a union of options, each of one type.

All records are immutable and compare by meaning as far as it is written; ``at`` (where in the schema a
condition came from) does not count. Conditions that no engine's dialect has (``forbidden``, ``contains``,
``unique``, ...) are kept here exactly, so that combining them with others can still resolve them; what is left
is handled, or refused, when it is written out.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType

from ramet.runtime.grammar.schema.regex_parser import Regex


@dataclass(frozen=True, slots=True)
class Value:
    """A JSON value. Equal as JSON Schema has it: 1 and 1.0 are, true and 1 are not."""

    key: str
    value: object = field(compare=False)


@dataclass(frozen=True, slots=True)
class Everything:
    """Any value."""


@dataclass(frozen=True, slots=True)
class Ref:
    """The definition ``name``."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """One of some values, of any types; null and booleans exist only so."""

    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Number:
    """``not_multiples``: what it must be no multiple of (1: it is no integer)."""

    integer: bool = False
    low: Fraction | None = None
    low_open: bool = False
    high: Fraction | None = None
    high_open: bool = False
    multiple: Fraction | None = None
    not_multiples: tuple[Fraction, ...] = ()
    at: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class String:
    """Lengths in characters; all of ``required`` and none of ``forbidden`` match the whole text."""

    low: int = 0
    high: int | None = None
    required: tuple[Regex, ...] = ()
    forbidden: tuple[Regex, ...] = ()
    excluded: tuple[str, ...] = ()
    at: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Contains:
    """Of the items from the index ``start`` on, ``low`` to ``high`` match ``node``."""

    node: "Node"
    start: int = 0
    low: int = 1
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Array:
    """``repeated``: some two items are equal (the opposite of ``unique``)."""

    prefix: "tuple[Node, ...]" = ()
    rest: "Node" = field(default_factory=lambda: ANY)
    low: int = 0
    high: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: bool = False
    repeated: bool = False
    at: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Some:
    """Some property is a ``node``, its name in none of ``names`` and ``patterns`` but in ``within``, if any."""

    names: frozenset[str]
    patterns: tuple[Regex, ...]
    within: Regex | None
    node: "Node"


@dataclass(frozen=True, slots=True)
class Object:
    """``props``: all that holds for the properties of these names, in the order to generate.

    ``patterns`` are disjoint and count for names outside ``props``; ``rest`` for all other names. Each name of
    ``required`` is in ``props``. ``low`` and ``high`` bound the number of properties.
    """

    props: "tuple[tuple[str, Node], ...]" = ()
    required: frozenset[str] = frozenset()
    patterns: "tuple[tuple[Regex, Node], ...]" = ()
    rest: "Node" = field(default_factory=lambda: ANY)
    low: int = 0
    high: int | None = None
    some: tuple[Some, ...] = ()
    at: str = field(default="", compare=False)


Option = Everything | Ref | Literal | Number | String | Array | Object


@dataclass(frozen=True, slots=True)
class Node:
    """The union of ``options``; none: no value at all."""

    options: tuple[Option, ...]

    @property
    def is_never(self) -> bool:
        return not self.options

    @property
    def is_any(self) -> bool:
        return self.options == (_EVERYTHING,)


_EVERYTHING = Everything()
ANY: Node = Node((_EVERYTHING,))
NEVER = Node(())
NUMBER = Number()
STRING = String()
ARRAY = Array()
OBJECT = Object()


def node_of(*options: Option) -> Node:
    """The union of ``options``, equal ones once; options that a wholly open one covers are left out."""
    if _EVERYTHING in options:
        return ANY
    if len(options) < 2:
        return Node(options)
    open_types = {type(option) for option in options if _is_open(option)}
    kept: dict[Option, None] = {}
    literals: dict[Value, None] = {}
    for option in options:
        if isinstance(option, Literal):
            literals.update((value, None) for value in option.values if type_of(value) not in open_types)
            kept.setdefault(_LITERALS)
        elif type(option) not in open_types or _is_open(option):
            kept.setdefault(option)
    result = [
        Literal(tuple(literals)) if option == _LITERALS else option
        for option in kept
        if option != _LITERALS or literals
    ]
    if len(open_types) == 4 and {NULL, TRUE, FALSE} <= literals.keys():
        return ANY
    return Node(tuple(result))


_LITERALS = Literal(())


def _is_open(option: Option) -> bool:
    """It is all values of its type."""
    return option == _OPEN.get(type(option))


_OPEN: Mapping[type[Option], Option] = MappingProxyType(
    {type(option): option for option in (NUMBER, STRING, ARRAY, OBJECT)}
)


def union(nodes: Sequence[Node]) -> Node:
    return node_of(*(option for node in nodes for option in node.options))


def spread(node: Node) -> tuple[Option, ...]:
    """The options of ``node``, with Everything written as one option a type."""
    if node.is_any:
        return (Literal((NULL, TRUE, FALSE)), NUMBER, STRING, ARRAY, OBJECT)
    return node.options


def value_of(value: object) -> Value:
    # Texts are most of all values; alone, one needs no quotes to be told from the rest.
    return Value('"' + value if isinstance(value, str) else _key(value), value)


def literal_of(values: Sequence[object]) -> Node:
    distinct = tuple(dict.fromkeys(value_of(value) for value in values))
    return Node((Literal(distinct),)) if distinct else NEVER


def type_of(value: Value) -> type[Option]:
    """The option type that covers values like it; Literal for null and booleans."""
    match value.value:
        case None | bool():
            return Literal
        case int() | float():
            return Number
        case str():
            return String
        case Mapping():
            return Object
        case _:
            return Array


def number_of(value: object) -> Fraction:
    """Exact, as the number is written in decimals. ``value`` is an int or a finite float."""
    assert isinstance(value, int | float)
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def _key(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(number_of(value))
        case str():
            return json.dumps(value)
        case Mapping():
            pairs = sorted((json.dumps(name), _key(item)) for name, item in value.items())
            return "{" + ",".join(f"{name}:{item}" for name, item in pairs) + "}"
        case list() | tuple():
            return "[" + ",".join(_key(item) for item in value) + "]"
        case _:
            raise TypeError(f"{type(value).__name__} is no JSON value")


NULL = value_of(None)
TRUE = value_of(True)
FALSE = value_of(False)
