"""Arrays with contains and uniqueItems, written out as unions of plain ones where that is small."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

from ramet.runtime.grammar.schema import arrays, numbers
from ramet.runtime.grammar.schema.algebra import Algebra, TooComplexError
from ramet.runtime.grammar.schema.records import Unsupported
from ramet.runtime.grammar.schema.shapes import (
    NEVER,
    Array,
    Contains,
    Literal,
    Node,
    Number,
    Ref,
    literal_of,
    value_of,
)

_MAX_ALTERNATIVES = 600


def expand_array(array: Array, algebra: Algebra, report: Callable[[Unsupported], None]) -> list[Array]:
    """Plain arrays (prefix, rest and lengths only) whose union is ``array``.

    A condition that would need too many is reported, and left out of the result.
    """
    plain = [array]
    while any(item.contains for item in plain):
        opened = [other for item in plain for other in _place(item, algebra)]
        if any(other is None for other in opened) or len(opened) > _MAX_ALTERNATIVES:
            report(
                Unsupported(
                    array.at,
                    "contains",
                    "contains needs an array of few items here",
                    "give maxItems (up to about 8), or prefixItems with the item at its place",
                )
            )
            plain = [replace(array, contains=())]
            break
        plain = [other for other in opened if other is not None]
    result: list[Array] = []
    for item in plain:
        if item.repeated:
            report(Unsupported(array.at, "not", "repeated items cannot be enforced", "state what the array is"))
            item = replace(item, repeated=False)
        result += _distinct(item, algebra, report)
    return result


def _place(array: Array, algebra: Algebra) -> list[Array | None]:
    """The first contains of ``array`` by the place of its first match; [None]: the places are unbounded."""
    if not array.contains:
        return [array]
    contains, *others = array.contains
    rest = replace(array, contains=tuple(others))
    if array.high is None:
        return [None]
    wrong = algebra.negate(contains.node)
    result: list[Array | None] = []
    if contains.low == 0:
        result += _put(rest, contains.start, array.high, wrong, None, algebra)
    if contains.high == 0:
        return result
    for place in range(contains.start, array.high):
        after = Contains(
            contains.node,
            start=place + 1,
            low=max(contains.low - 1, 0),
            high=None if contains.high is None else contains.high - 1,
        )
        for item in _put(rest, contains.start, place, wrong, contains.node, algebra):
            result += arrays.simplify(replace(item, contains=(after, *item.contains)), algebra)
    return result


def _put(
    array: Array, start: int, place: int, wrong: Node, match: Node | None, algebra: Algebra
) -> list[Array]:
    """Items from ``start`` to before ``place`` are ``wrong``, the one at ``place`` is a ``match``, if given."""
    prefix = [arrays.item(array, index) for index in range(max(place + (match is not None), len(array.prefix)))]
    for index in range(start, place):
        prefix[index] = algebra.intersect(prefix[index], wrong)
    low = array.low
    if match is not None:
        prefix[place] = algebra.intersect(prefix[place], match)
        low = max(low, place + 1)
    return list(arrays.simplify(replace(array, prefix=tuple(prefix), low=low), algebra))


def _distinct(array: Array, algebra: Algebra, report: Callable[[Unsupported], None]) -> list[Array]:
    if not array.unique:
        return [array]
    plain = replace(array, unique=False)
    if array.high is not None and _never_equal(array, algebra):
        return [plain]
    listed = _listed(array, algebra)
    if listed is not None:
        return [_exactly(values) for values in listed]
    report(
        Unsupported(
            array.at,
            "uniqueItems",
            "uniqueItems needs few possible items here",
            "give items an enum of up to 5 values, or maxItems; strict=false checks it afterwards",
        )
    )
    return [plain]


def _never_equal(array: Array, algebra: Algebra) -> bool:
    """No two items of it can be equal, whatever they are."""
    if array.high is None or array.high > 12:
        return False
    nodes = [arrays.item(array, index) for index in range(array.high)]
    try:
        return all(
            algebra.intersect(left, right).is_never
            for index, left in enumerate(nodes)
            for right in nodes[index + 1 :]
        )
    except TooComplexError:
        return False


def _listed(array: Array, algebra: Algebra) -> list[list[object]] | None:
    """All arrays that it accepts; None: too many."""
    kinds = {node: _values(node, algebra, frozenset()) for node in (*array.prefix, array.rest)}
    if any(values is None for node, values in kinds.items() if not node.is_never):
        return None
    distinct = {value_of(value) for values in kinds.values() for value in values or ()}
    longest = min(len(distinct), array.high if array.high is not None else len(distinct))
    found: list[list[object]] = []
    level: list[list[object]] = [[]]
    for length in range(longest + 1):
        if length >= array.low:
            found += level
        if len(found) > _MAX_ALTERNATIVES or len(level) > _MAX_ALTERNATIVES:
            return None
        choices = kinds[arrays.item(array, length)] or []
        if len(level) * len(choices) > 20 * _MAX_ALTERNATIVES:
            return None
        level = [
            [*values, value]
            for values, value in product(level, choices)
            if value_of(value) not in {value_of(known) for known in values}
        ]
    return found


def _exactly(values: list[object]) -> Array:
    items = tuple(literal_of([value]) for value in values)
    return Array(prefix=items, rest=NEVER, low=len(values), high=len(values))


def _values(node: Node, algebra: Algebra, within: frozenset[str]) -> list[object] | None:
    """All values of a node with few; None: there are many. ``within``: definitions that lead here."""
    if node.is_never:
        return []
    result: list[object] = []
    for option in node.options:
        match option:
            case Literal(values):
                result += [value.value for value in values]
            case Number() if (span := numbers.listed(option, 12)) is not None:
                result += span
            case Ref(name) if name not in within:
                try:
                    referred = _values(algebra.definition(name), algebra, within | {name})
                except TooComplexError:
                    return None
                if referred is None:
                    return None
                result += referred
            case _:
                return None
    return result
