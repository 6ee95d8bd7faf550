"""Objects with bounds on their number of properties, as unions of plain ones where that is small."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, islice

from ramet.runtime.grammar.schema import objects
from ramet.runtime.grammar.schema.algebra import Algebra, TooComplexError
from ramet.runtime.grammar.schema.automaton import TooLargeError, combine, is_empty, matches
from ramet.runtime.grammar.schema.objects import Classes
from ramet.runtime.grammar.schema.records import Unsupported
from ramet.runtime.grammar.schema.regex_parser import ANY_TEXT, Alt, Regex
from ramet.runtime.grammar.schema.regex_syntax import literal
from ramet.runtime.grammar.schema.shapes import NEVER, Node, Object

_MAX_ALTERNATIVES = 200
_MAX_OPTIONAL = 6


def expand_object(value: Object, algebra: Algebra, report: Callable[[Unsupported], None]) -> list[Object]:
    """Objects whose union is ``value`` and whose bounds, if any are left, an engine can count.

    An engine counts only where all listed properties are required, and it does not see that an open name stands
    twice. A condition that would need too many objects is reported, and left out of the result.
    """
    if value.patterns:
        value = _without_spent_names(value)
    if value.some and value.high == 1:
        return _only_property(value, algebra)
    if value.some:
        opened = _open_names(value, algebra)
        if opened is not None:
            return [other for item in opened for other in expand_object(item, algebra, report)]
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


def forbid_names(classes: Classes, names: list[str]) -> Classes:
    """``classes`` of names without ``names``, and one more of these, which no property may have.

    Raises:
        TooComplexError: a pattern without the names is too large.
    """
    if not names:
        return classes
    result = [pair for regex, node in classes for pair in _without(regex, node, names)]
    texts = tuple(literal(name) for name in names)
    return (*result, (Alt(texts) if len(texts) > 1 else texts[0], NEVER))


def spare_names(value: Object, algebra: Algebra) -> Classes:
    """The classes of names of ``value`` without listed names that need not be what the class demands.

    In a written schema a pattern counts for listed names too.

    Raises:
        TooComplexError: a pattern without the names is too large.
    """
    result: list[tuple[Regex, Node]] = []
    for regex, node in value.patterns:
        freer = [name for name, own in value.props if algebra.intersect(own, node) != own]
        result += _without(regex, node, freer)
    return tuple(result)


def _without(regex: Regex, node: Node, names: list[str]) -> Classes:
    try:
        inside = [literal(name) for name in names if matches(regex, name)]
        left = combine((regex,), inside) if inside else regex
    except TooLargeError:
        raise TooComplexError from None
    return () if left is None else ((left, node),)


def _without_spent_names(value: Object) -> Object:
    """``value`` without the classes of names whose every name is listed: they hold no further property.

    An engine does not see it, and writes a comma behind which nothing can stand.
    """
    try:
        patterns = tuple((regex, node) for regex, node in value.patterns if _has_other(regex, value))
        rest = value.rest
        if (
            not rest.is_never
            and patterns
            and not _has_other(ANY_TEXT, value, *(regex for regex, _ in patterns))
        ):
            rest = NEVER
    except TooLargeError:
        return value
    return replace(value, patterns=patterns, rest=rest)


def _has_other(regex: Regex, value: Object, *others: Regex) -> bool:
    """A name that ``regex`` matches, and none of ``others``, is not listed. Raises TooLargeError."""
    listed = [literal(name) for name, _ in value.props if matches(regex, name)]
    return not is_empty((regex,), (*others, *listed))


def _open_names(value: Object, algebra: Algebra) -> list[Object] | None:
    """The one open condition of ``value`` met by a listed property or by any property of an open name.

    None: it cannot be written so. That an open name is there is written as a count, with the listed ones fixed.
    """
    some, *others = value.some
    listed = {name for name, _ in value.props}
    # Names that do not count are listed, so that the open ones all count.
    spared = tuple((name, value.rest) for name in sorted(some.names - listed))
    value = replace(value, props=value.props + spared)
    simple = not others and not value.patterns and some.within is None and not some.patterns
    optional = [name for name, node in value.props if name not in value.required and not node.is_never]
    if not simple or value.low > 1 or value.high is not None or len(optional) > _MAX_OPTIONAL:
        return None
    left = algebra.intersect(value.rest, some.node)
    if not left.is_never and left != value.rest:
        return None
    plain = replace(value, some=(), low=0)
    result: list[Object] = []
    for name, node in value.props:
        if name not in some.names:
            chosen = algebra.intersect(node, some.node)
            props = tuple((known, chosen if known == name else old) for known, old in value.props)
            narrowed = replace(plain, props=props, required=value.required | {name})
            result += objects.simplify(narrowed, algebra)
    for size in range(len(optional) + 1) if not left.is_never else ():
        for kept in combinations(optional, size):
            props = tuple(
                (name, node if name in value.required or name in kept else NEVER) for name, node in value.props
            )
            required = value.required | set(kept)
            fixed = replace(plain, props=props, required=required, low=len(required) + 1)
            result += objects.simplify(fixed, algebra)
    return result


def _only_property(value: Object, algebra: Algebra) -> list[Object]:
    """``value``, which has a single property, so that each open condition is met by that one.

    Raises:
        TooComplexError: names that meet them all cannot be told apart.
    """
    result: list[Object] = []
    for name, node in value.props:
        if all(objects.counts(some, name) for some in value.some) and value.required <= {name}:
            met = algebra.all_of([node, *(some.node for some in value.some)])
            alone = Object(props=((name, met),), required=frozenset({name}), rest=NEVER, at=value.at)
            result += objects.simplify(alone, algebra)
    if value.required:
        return result
    within = tuple(some.within for some in value.some if some.within is not None)
    spared = tuple(regex for some in value.some for regex in some.patterns)
    listed = {name for some in value.some for name in some.names} | {name for name, _ in value.props}
    classes: list[tuple[Regex, Node]] = []
    known = tuple(regex for regex, _ in value.patterns)
    for required, forbidden, node in (
        *(((regex,), (), node) for regex, node in value.patterns),
        ((ANY_TEXT,), known, value.rest),
    ):
        met = algebra.all_of([node, *(some.node for some in value.some)])
        try:
            regex = None if met.is_never else combine((*required, *within), (*forbidden, *spared))
        except TooLargeError:
            raise TooComplexError from None
        classes += [] if regex is None else [(regex, met)]
    never = tuple((name, NEVER) for name in sorted(listed))
    opened = Object(props=never, patterns=tuple(classes), rest=NEVER, low=1, high=1, at=value.at)
    return [*result, *objects.simplify(opened, algebra)]


def _too_many(value: Object, optional: list[str], is_open: bool) -> bool:
    choices = islice(_choices(value, optional, is_open), _MAX_ALTERNATIVES + 1)
    return bool(optional) and sum(1 for _ in choices) > _MAX_ALTERNATIVES


def _choices(
    value: Object, optional: list[str], is_open: bool
) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
    """(required, forbidden) among ``optional``, for each alternative."""
    needed = value.low - len(value.required)
    room = None if value.high is None else value.high - len(value.required)
    everything = frozenset(optional)
    if room is None:
        # By the first ``needed`` of them that are there; in an open object, others may be of open names.
        for chosen in combinations(optional, needed):
            before = optional[: optional.index(chosen[-1])]
            yield frozenset(chosen), frozenset(before) - set(chosen)
        sizes = range(needed if is_open else 0)
    elif needed <= 0 and not is_open:
        # Any of so many may be there.
        for chosen in combinations(optional, room):
            yield frozenset(), everything - set(chosen)
        sizes = range(0)
    else:
        sizes = range(0 if is_open else max(needed, 0), min(room, len(optional)) + 1)
    for size in sizes:
        for chosen in combinations(optional, size):
            yield frozenset(chosen), everything - set(chosen)


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
