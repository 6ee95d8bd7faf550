"""Arrays: intersection, complement and membership."""

from dataclasses import replace

from ramet.runtime.grammar.schema.combine import Combine
from ramet.runtime.grammar.schema.shapes import ANY, ARRAY, NEVER, Array, Contains, Node, Option, value_of


def simplify(array: Array, combine: Combine) -> tuple[Array, ...]:
    """``array`` without what says nothing, or nothing where no array is left."""
    high = array.high
    ends = [index for index, item in enumerate(array.prefix) if item.is_never]
    if array.rest.is_never:
        ends.append(len(array.prefix))
    if ends:
        high = ends[0] if high is None else min(high, ends[0])
    prefix = array.prefix if high is None else array.prefix[:high]
    rest = NEVER if high is not None and high <= len(prefix) else array.rest
    if high is not None and array.low > high:
        return ()
    if array.unique and array.repeated:
        return ()
    array = replace(array, prefix=prefix, rest=rest, high=high)
    for contains in array.contains:
        settled = _settle(array, contains, combine)
        if settled is None:
            return ()
        array = settled
    if array.high is not None and array.low > array.high:
        return ()
    if array.high is not None and array.high < len(array.prefix):
        array = replace(array, prefix=array.prefix[: array.high], rest=NEVER)
    if array.high is not None and array.high < 2:
        if array.repeated:
            return ()
        array = replace(array, unique=False)
    return (array,)


def intersect(left: Array, right: Array, combine: Combine) -> tuple[Array, ...]:
    length = max(len(left.prefix), len(right.prefix))
    highs = [high for high in (left.high, right.high) if high is not None]
    prefix = tuple(combine.intersect(item(left, i), item(right, i)) for i in range(length))
    return simplify(
        Array(
            prefix=prefix,
            rest=combine.intersect(left.rest, right.rest),
            low=max(left.low, right.low),
            high=min(highs, default=None),
            contains=tuple(dict.fromkeys(left.contains + right.contains)),
            unique=left.unique or right.unique,
            repeated=left.repeated or right.repeated,
            at=left.at if left != ARRAY else right.at,
        ),
        combine,
    )


def negate(array: Array, combine: Combine) -> list[Option]:
    """The other arrays."""
    result: list[Array] = []
    at = array.at
    if array.low > 0:
        result.append(Array(high=array.low - 1, at=at))
    if array.high is not None:
        result.append(Array(low=array.high + 1, at=at))
    for index, node in enumerate(array.prefix):
        if not node.is_any:
            wrong = combine.negate(node)
            result.append(Array(prefix=(ANY,) * index + (wrong,), low=index + 1, at=at))
    # Where the length alone forbids the rest, ``high`` has said so.
    if not array.rest.is_any and (array.high is None or array.high > len(array.prefix)):
        wrong = combine.negate(array.rest)
        result.append(Array(contains=(Contains(wrong, start=len(array.prefix)),), at=at))
    for contains in array.contains:
        if contains.low > 0:
            result.append(Array(contains=(replace(contains, low=0, high=contains.low - 1),), at=at))
        if contains.high is not None:
            result.append(Array(contains=(replace(contains, low=contains.high + 1, high=None),), at=at))
    if array.unique:
        result.append(Array(repeated=True, low=2, at=at))
    if array.repeated:
        result.append(Array(unique=True, at=at))
    return [option for other in result for option in simplify(other, combine)]


def accepts(array: Array, values: list[object], combine: Combine) -> bool:
    if len(values) < array.low or (array.high is not None and len(values) > array.high):
        return False
    if not all(combine.accepts(item(array, index), value) for index, value in enumerate(values)):
        return False
    for contains in array.contains:
        count = sum(combine.accepts(contains.node, value) for value in values[contains.start :])
        if count < contains.low or (contains.high is not None and count > contains.high):
            return False
    distinct = len({value_of(value) for value in values}) == len(values)
    return not (array.unique and not distinct) and not (array.repeated and distinct)


def item(array: Array, index: int) -> Node:
    """What holds for the item at ``index`` (its length aside)."""
    return array.prefix[index] if index < len(array.prefix) else array.rest


def _settle(array: Array, contains: Contains, combine: Combine) -> Array | None:
    """``array`` with ``contains`` taken out where every item settles it alike; None: no array is left.

    Where all items from its start on match, it bounds the length; where none can, it is met or never met.
    """
    others = tuple(other for other in array.contains if other != contains)
    if contains.low == 0 and contains.high is None:
        return replace(array, contains=others)
    if contains.high is not None and contains.low > contains.high:
        return None
    if contains.high == 0:
        return _with_none(array, contains, others, combine)
    kinds = {*array.prefix[contains.start :]}
    if array.high is None or array.high > max(len(array.prefix), contains.start):
        kinds.add(array.rest)
    if all(combine.intersect(kind, contains.node).is_never for kind in kinds):
        return replace(array, contains=others) if contains.low == 0 else None
    wrong = combine.negate(contains.node)
    if not all(combine.intersect(kind, wrong).is_never for kind in kinds):
        return array
    low, high = array.low, array.high
    if contains.low > 0:
        low = max(low, contains.start + contains.low)
    if contains.high is not None:
        most = contains.start + contains.high
        high = most if high is None else min(high, most)
    return replace(array, low=low, high=high, contains=others)


def _with_none(
    array: Array, contains: Contains, others: tuple[Contains, ...], combine: Combine
) -> Array | None:
    """No item from the start of ``contains`` on matches it: each is its opposite."""
    wrong = combine.negate(contains.node)
    length = max(len(array.prefix), contains.start)
    prefix = [item(array, index) for index in range(length)]
    prefix[contains.start :] = [combine.intersect(node, wrong) for node in prefix[contains.start :]]
    rest = combine.intersect(array.rest, wrong)
    plain = simplify(replace(array, prefix=tuple(prefix), rest=rest, contains=others), combine)
    return plain[0] if plain else None
