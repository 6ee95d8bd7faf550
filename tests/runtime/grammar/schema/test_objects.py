"""Objects: names, patterns and counts."""

from ramet.runtime.grammar.schema import objects
from ramet.runtime.grammar.schema.algebra import Algebra
from ramet.runtime.grammar.schema.regex_syntax import literal, parse_pattern
from ramet.runtime.grammar.schema.shapes import ANY, NEVER, NUMBER, STRING, Node, Object, Some

TEXT, NUMERIC = Node((STRING,)), Node((NUMBER,))
A, B = (parse_pattern(text).required[0] for text in ("^a", "b"))
OBJECTS: list[dict[str, object]] = [
    {}, {"a": 1}, {"a": "x"}, {"b": 1}, {"ab": 1}, {"ab": "x"}, {"a": 1, "b": "x"}, {"c": None},
    {"a": 1, "c": 2, "d": 3},
]  # fmt: skip


def rules() -> Algebra:
    return Algebra(lambda name: NEVER, 10_000)


def test_overlapping_patterns_become_disjoint() -> None:
    classes = objects.partition([(A, TEXT), (B, NUMERIC)], rules())
    value = Object(patterns=classes)
    for name, node in (("a", TEXT), ("b", NUMERIC), ("ab", NEVER), ("c", ANY)):
        assert objects.property_node(value, name) == node


def test_simplification() -> None:
    assert objects.simplify(Object(props=(("a", NEVER),), required=frozenset("a")), rules()) == ()
    assert objects.simplify(Object(rest=NEVER, low=1), rules()) == ()
    (named,) = objects.simplify(Object(patterns=((literal("x"), TEXT),), rest=NEVER), rules())
    assert named.props == (("x", TEXT),)
    (closed,) = objects.simplify(Object(props=(("a", TEXT), ("b", NEVER)), rest=NEVER, high=2), rules())
    assert (closed.props, closed.high) == ((("a", TEXT),), None)


def test_an_early_contradiction_ends_it() -> None:
    left = Object(props=(("k", TEXT), ("big", ANY)), required=frozenset("k"))
    assert objects.intersect(left, Object(props=(("k", NUMERIC),)), rules()) == ()


def test_complements() -> None:
    for value in (
        Object(props=(("a", TEXT),), required=frozenset("a")),
        Object(props=(("a", NUMERIC),), rest=NEVER),
        Object(patterns=((A, TEXT),), rest=NUMERIC),
        Object(low=1, high=2),
        Object(some=(Some(frozenset("a"), (), B, NUMERIC),)),
        Object(some=(Some(frozenset(), (A,), None, NUMERIC),)),
    ):
        algebra = rules()
        others = objects.negate(value, algebra)
        for members in OBJECTS:
            inside = objects.accepts(value, members, algebra)
            outside = any(isinstance(o, Object) and objects.accepts(o, members, algebra) for o in others)
            assert inside != outside, (value, members)
