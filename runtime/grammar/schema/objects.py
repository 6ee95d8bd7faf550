"""Objects: intersection, complement and membership."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ramet.runtime.grammar.schema.automaton import TooLargeError, is_empty, matches
from ramet.runtime.grammar.schema.automaton import combine as combine_regexes
from ramet.runtime.grammar.schema.combine import Combine
from ramet.runtime.grammar.schema.regex_parser import Regex
from ramet.runtime.grammar.schema.regex_syntax import single_text
from ramet.runtime.grammar.schema.shapes import ANY, NEVER, OBJECT, Node, Object, Option, Some

_MAX_COMPARISONS = 200
"""Of patterns with each other; one takes some milliseconds where they are large and overlap."""

Classes = tuple[tuple[Regex, Node], ...]


def simplify(value: Object, combine: Combine) -> tuple[Object, ...]:
    """``value`` without what says nothing; several where ``some`` is spread over a closed object's names."""
    props = dict(value.props)
    for name in sorted(value.required - props.keys()):
        props[name] = property_node(value, name)
    if any(props[name].is_never for name in value.required):
        return ()
    patterns = []
    for regex, node in value.patterns:
        text = single_text(regex)
        if text is None:
            patterns.append((regex, node))
        else:
            props.setdefault(text, node)
    if all(node == value.rest for _, node in patterns):
        patterns = []
    closed = value.rest.is_never and all(node.is_never for _, node in patterns)
    if closed:
        patterns = []
        props = {name: node for name, node in props.items() if not node.is_never}
    low = value.low if value.low > len(value.required) else 0
    high = value.high
    if closed:
        possible = len(props)
        if low > possible:
            return ()
        high = None if high is not None and high >= possible else high
    if high is not None and high < max(len(value.required), low):
        return ()
    value = replace(value, props=tuple(props.items()), patterns=tuple(patterns), low=low, high=high)
    if closed and value.some:
        return _spread_some(value, combine)
    return (value,)


def intersect(left: Object, right: Object, combine: Combine) -> tuple[Object, ...]:
    """Raises TooLargeError where overlapping name patterns cannot be told apart."""
    names = dict.fromkeys([*(name for name, _ in left.props), *(name for name, _ in right.props)])
    needed = left.required | right.required
    ours, theirs = dict(left.props), dict(right.props)
    met: dict[str, Node] = {}
    # Required ones first: that a discriminator differs spares the rest, which may be large or recursive.
    for name in sorted(names, key=lambda name: name not in needed):
        mine = ours[name] if name in ours else property_node(left, name)
        other = theirs[name] if name in theirs else property_node(right, name)
        met[name] = combine.intersect(mine, other)
        if name in needed and met[name].is_never:
            return ()
    props = tuple((name, met[name]) for name in names)
    highs = [high for high in (left.high, right.high) if high is not None]
    rest = combine.intersect(left.rest, right.rest)
    return simplify(
        Object(
            props=props,
            required=needed,
            patterns=_intersect_classes(left, right, combine),
            rest=rest,
            low=max(left.low, right.low),
            high=min(highs, default=None),
            some=tuple(dict.fromkeys(left.some + right.some)),
            at=left.at if left != OBJECT else right.at,
        ),
        combine,
    )


def negate(value: Object, combine: Combine) -> list[Option]:
    """The other objects."""
    at = value.at
    result: list[Object] = []
    for name in sorted(value.required):
        result.append(Object(props=((name, NEVER),), at=at))
    for name, node in value.props:
        wrong = combine.negate(node)
        if not wrong.is_never:
            result.append(Object(props=((name, wrong),), required=frozenset({name}), at=at))
    if value.low > 0:
        result.append(Object(high=value.low - 1, at=at))
    if value.high is not None:
        result.append(Object(low=value.high + 1, at=at))
    names = frozenset(name for name, _ in value.props)
    for regex, node in value.patterns:
        wrong = combine.negate(node)
        if not wrong.is_never:
            result.append(Object(some=(Some(names, (), regex, wrong),), low=1, at=at))
    wrong = combine.negate(value.rest)
    if not wrong.is_never:
        outside = Some(names, tuple(regex for regex, _ in value.patterns), None, wrong)
        result.append(Object(some=(outside,), low=1, at=at))
    result += [_none_matches(some, combine, at) for some in value.some]
    return [option for other in result for option in simplify(other, combine)]


def accepts(value: Object, members: Mapping[str, object], combine: Combine) -> bool:
    """Raises TooLargeError where a name pattern is too large to tell."""
    if not value.required <= members.keys():
        return False
    if len(members) < value.low or (value.high is not None and len(members) > value.high):
        return False
    if not all(combine.accepts(property_node(value, name), member) for name, member in members.items()):
        return False
    return all(
        any(counts(some, name) and combine.accepts(some.node, member) for name, member in members.items())
        for some in value.some
    )


def property_node(value: Object, name: str) -> Node:
    """All that holds for a property of this name. Raises TooLargeError."""
    for known, node in value.props:
        if known == name:
            return node
    for regex, node in value.patterns:
        if matches(regex, name):
            return node
    return value.rest


def partition(parts: Sequence[tuple[Regex, Node]], combine: Combine) -> Classes:
    """Overlapping ``parts`` as disjoint ones: a name in several must meet all of them. Raises TooLargeError."""
    result = Object(rest=ANY)
    num_comparisons = 0
    for regex, node in parts:
        combine.check_pace()
        num_comparisons += len(result.patterns)
        if num_comparisons > _MAX_COMPARISONS:
            raise TooLargeError
        classes = _intersect_classes(result, Object(patterns=((regex, node),)), combine)
        result = Object(patterns=classes)
    return result.patterns


def _intersect_classes(left: Object, right: Object, combine: Combine) -> Classes:
    """Disjoint classes of names, each with both sides' conditions; the names in none have both sides' rest."""
    ours, theirs = dict(left.patterns), dict(right.patterns)
    classes: dict[Regex, Node] = {}
    meeting = _meeting(ours, theirs, combine)
    for first, second, other in ((ours, theirs, right.rest), (theirs, ours, left.rest)):
        for regex, node in first.items():
            combine.check_pace()
            rivals = [
                rival for rival in second if ((regex, rival) if first is ours else (rival, regex)) in meeting
            ]
            if regex in second:
                classes[regex] = combine.intersect(ours[regex], theirs[regex])
                continue
            mine = combine_regexes((regex,), rivals) if rivals else regex
            if mine is not None:
                classes[mine] = combine.intersect(node, other)
    for regex, node in ours.items():
        for rival, rival_node in theirs.items():
            combine.check_pace()
            if (regex, rival) in meeting:
                both = combine_regexes((regex, rival))
                if both is not None:
                    classes[both] = combine.intersect(node, rival_node)
    return tuple(classes.items())


def _meeting(ours: Iterable[Regex], theirs: Iterable[Regex], combine: Combine) -> set[tuple[Regex, Regex]]:
    """The pairs of different regexes, one of each side, that some name may match both of."""
    meeting: set[tuple[Regex, Regex]] = set()
    for regex in ours:
        for rival in theirs:
            combine.check_pace()
            if rival != regex and not _disjoint(regex, rival):
                meeting.add((regex, rival))
    return meeting


def _disjoint(left: Regex, right: Regex) -> bool:
    try:
        return is_empty((left, right), max_states=2_000)
    except TooLargeError:
        return False


def counts(some: Some, name: str) -> bool:
    """Whether a property of this name is one that ``some`` asks of. Raises TooLargeError."""
    if name in some.names or (some.within is not None and not matches(some.within, name)):
        return False
    return not any(matches(regex, name) for regex in some.patterns)


def _none_matches(some: Some, combine: Combine, at: str) -> Object:
    """Every property that ``some`` counts matches the opposite."""
    wrong = combine.negate(some.node)
    props = tuple((name, ANY) for name in sorted(some.names))
    if some.within is not None:
        return Object(props=props, patterns=((some.within, wrong),), at=at)
    if len(some.patterns) > 1:
        spared = partition([(regex, ANY) for regex in some.patterns], combine)
    else:
        spared = tuple((regex, ANY) for regex in some.patterns)
    return Object(props=props, patterns=spared, rest=wrong, at=at)


def _spread_some(value: Object, combine: Combine) -> tuple[Object, ...]:
    """A closed object: the property that the first open condition asks for is one of its names."""
    some, *others = value.some
    result: list[Object] = []
    for name, node in value.props:
        if not counts(some, name):
            continue
        chosen = combine.intersect(node, some.node)
        props = tuple((known, chosen if known == name else old) for known, old in value.props)
        narrowed = replace(value, props=props, required=value.required | {name}, some=tuple(others))
        result += simplify(narrowed, combine)
    return tuple(result)
