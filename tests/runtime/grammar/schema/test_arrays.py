"""Arrays: lengths, places and counts."""

from ramet.runtime.grammar.schema import arrays
from ramet.runtime.grammar.schema.algebra import Algebra
from ramet.runtime.grammar.schema.shapes import ANY, NEVER, STRING, Array, Contains, Node, literal_of

TEXT = Node((STRING,))
ONE = literal_of([1])
LISTS: list[list[object]] = [[], [1], ["a"], [1, 1], ["a", "b"], [1, "a"], ["a", "a", 1]]


def rules() -> Algebra:
    return Algebra(lambda name: NEVER, 10_000)


def test_what_says_nothing_is_dropped() -> None:
    assert arrays.simplify(Array(prefix=(ONE, NEVER), rest=TEXT), rules()) == (Array((ONE,), NEVER, 0, 1),)
    assert arrays.simplify(Array(low=2, high=1), rules()) == ()
    assert arrays.simplify(Array(unique=True, high=1), rules()) == (Array(high=1),)
    assert arrays.simplify(Array(unique=True, repeated=True), rules()) == ()


def test_contains_is_settled_where_all_items_are_alike() -> None:
    (settled,) = arrays.simplify(Array(rest=TEXT, contains=(Contains(TEXT, low=2, high=3),)), rules())
    assert (settled.low, settled.high, settled.contains) == (2, 3, ())
    assert arrays.simplify(Array(rest=TEXT, contains=(Contains(ONE),)), rules()) == ()
    (without,) = arrays.simplify(Array(contains=(Contains(TEXT, low=0, high=0),)), rules())
    assert not arrays.accepts(without, ["a"], rules())
    assert arrays.accepts(without, [1, []], rules())


def test_complements() -> None:
    for array in (
        Array(prefix=(ONE,), rest=TEXT, low=1, high=2),
        Array(rest=TEXT),
        Array(unique=True),
        Array(contains=(Contains(ONE, low=1, high=1),)),
        Array(prefix=(ANY, TEXT)),
    ):
        algebra = rules()
        others = arrays.negate(array, algebra)
        for values in LISTS:
            inside = arrays.accepts(array, values, algebra)
            outside = any(
                isinstance(other, Array) and arrays.accepts(other, values, algebra) for other in others
            )
            assert inside != outside
