"""Objects with bounds on their number of properties, as unions of plain ones where that is small."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

from ramet.runtime.grammar.schema import objects
from ramet.runtime.grammar.schema.algebra import Algebra
from ramet.runtime.grammar.schema.records import Unsupported
from ramet.runtime.grammar.schema.shapes import NEVER, Object

_MAX_ALTERNATIVES = 200


def expand_object(value: Object, algebra: Algebra, report: Callable[[Unsupported], None]) -> list[Object]:
    """Objects whose union is ``value`` and whose bounds, if any are left, an engine can count.

    An engine counts only where all listed properties are required, and it does not see that an open name stands
    twice. A condition that would need too many objects is reported, and left out of the result.
    """
    if value.some:
        report(
            Unsupported(
                value.at,
                "not",
                "some property that differs cannot be demanded of an open object",
                "close the object with additionalProperties: false, or state what it is",
            )
        )
        value = replace(value, some=())
    if not value.low and value.high is None:
        return [value]
    optional = [name for name, node in value.props if name not in value.required and not node.is_never]
    is_open = not value.rest.is_never or any(not node.is_never for _, node in value.patterns)
    if (is_open and value.low > len(value.required) + len(optional) + 1) or _too_many(value, optional, is_open):
        report(_count_issue(value))
        return [replace(value, low=0, high=None)]
    counted = [value] if not optional else _by_choice(value, optional, is_open)
    result: list[Object] = []
    for item in counted:
        if item.low > len(item.required) + 1 and is_open:
            # Two more properties of open names: nothing stops an engine from writing one name twice.
            report(_count_issue(value))
            item = replace(item, low=0)
        result += objects.simplify(item, algebra)
    return result


def count_bounds(value: Object) -> tuple[int, int | None]:
    """minProperties and maxProperties to write; (0, None) where the required properties say it all."""
    return (value.low if value.low > len(value.required) else 0), value.high


def _too_many(value: Object, optional: list[str], is_open: bool) -> bool:
    return bool(optional) and len(_choices(value, optional, is_open)) > _MAX_ALTERNATIVES


def _choices(value: Object, optional: list[str], is_open: bool) -> list[tuple[frozenset[str], frozenset[str]]]:
    """(required, forbidden) among ``optional``, for each alternative; cut off above the limit."""
    needed = value.low - len(value.required)
    room = None if value.high is None else value.high - len(value.required)
    everything = frozenset(optional)
    result: list[tuple[frozenset[str], frozenset[str]]] = []
    if room is None and needed > 0:
        # By the first ``needed`` of them that are there; in an open object, one may be of another name.
        for chosen in combinations(optional, needed):
            before = optional[: optional.index(chosen[-1])]
            result.append((frozenset(chosen), frozenset(before) - set(chosen)))
            if len(result) > _MAX_ALTERNATIVES:
                return result
        for size in range(needed) if is_open else ():
            for chosen in combinations(optional, size):
                result.append((frozenset(chosen), everything - set(chosen)))
                if len(result) > _MAX_ALTERNATIVES:
                    return result
        return result
    if needed <= 0 and room is not None and not is_open:
        # Any of so many may be there.
        for chosen in combinations(optional, room):
            result.append((frozenset(), everything - set(chosen)))
            if len(result) > _MAX_ALTERNATIVES:
                break
        return result
    smallest = 0 if is_open else max(needed, 0)
    largest = len(optional) if room is None else min(room, len(optional))
    for size in range(smallest, largest + 1):
        for chosen in combinations(optional, size):
            result.append((frozenset(chosen), everything - set(chosen)))
            if len(result) > _MAX_ALTERNATIVES:
                return result
    return result


def _by_choice(value: Object, optional: list[str], is_open: bool) -> list[Object]:
    result = []
    for required, forbidden in _choices(value, optional, is_open):
        props = tuple((name, NEVER if name in forbidden else node) for name, node in value.props)
        item = replace(value, props=props, required=value.required | required)
        left = [name for name in optional if name not in required and name not in forbidden]
        if left and item.low <= len(item.required):
            item = replace(item, low=0)
        if left and value.high is not None and not is_open:
            item = replace(item, high=None)
        result.append(item)
    return result


def _count_issue(value: Object) -> Unsupported:
    low = value.low > len(value.required)
    return Unsupported(
        value.at,
        "minProperties" if low else "maxProperties",
        "the number of properties cannot be enforced with these optional or open names",
        "list the properties and close the object, require some of them, or lower the bound",
    )
