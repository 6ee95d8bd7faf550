"""Arrays with contains and unique items, written out."""

from itertools import product

import pytest

from ramet.runtime.grammar.schema import arrays
from ramet.runtime.grammar.schema.algebra import Algebra
from ramet.runtime.grammar.schema.emit_arrays import expand_array
from ramet.runtime.grammar.schema.records import Unsupported
from ramet.runtime.grammar.schema.shapes import NEVER, STRING, Array, Contains, Node, literal_of

LISTS: list[list[object]] = [
    list(items) for length in range(5) for items in product((1, 2, "a"), repeat=length)
]
TEXT, SMALL = Node((STRING,)), literal_of([1, 2, "a"])


@pytest.mark.parametrize(
    "array",
    [
        Array(rest=SMALL, unique=True),
        Array(rest=SMALL, unique=True, low=2, high=2),
        Array(prefix=(TEXT, literal_of([1])), rest=NEVER, high=2, unique=True),
        Array(high=4, contains=(Contains(TEXT, low=1),)),
        Array(high=4, contains=(Contains(TEXT, low=1, high=2), Contains(literal_of([1]), low=1))),
        Array(high=3, contains=(Contains(TEXT, start=1, low=0, high=1),)),
    ],
)
def test_the_union_is_the_array(array: Array) -> None:
    algebra, found = Algebra(lambda name: NEVER, 100_000), list[Unsupported]()
    plain = expand_array(array, algebra, found.append)
    assert not found
    assert not any(item.contains or item.unique for item in plain)
    for values in LISTS:
        inside = arrays.accepts(array, values, algebra)
        assert inside == any(arrays.accepts(item, values, algebra) for item in plain)


@pytest.mark.parametrize(
    ("array", "keyword"),
    [
        (Array(rest=TEXT, unique=True), "uniqueItems"),
        (Array(contains=(Contains(TEXT),)), "contains"),
        (Array(repeated=True), "not"),
        (Array(rest=literal_of(list(range(9))), unique=True), "uniqueItems"),
    ],
)
def test_what_is_too_large_is_reported_and_left_out(array: Array, keyword: str) -> None:
    found = list[Unsupported]()
    plain = expand_array(array, Algebra(lambda name: NEVER, 100_000), found.append)
    assert [issue.keyword for issue in found] == [keyword]
    assert not any(item.contains or item.unique or item.repeated for item in plain)
