"""The algebra on unions, references and budgets. Its laws are tested with whole schemas in test_planner."""

import pytest

from ramet.runtime.grammar.schema.algebra import Algebra, TooComplexError
from ramet.runtime.grammar.schema.shapes import (
    ANY,
    NEVER,
    Array,
    Literal,
    Node,
    Number,
    Object,
    Ref,
    String,
    literal_of,
    node_of,
    value_of,
)  # fmt: skip

LIST = Node((Literal((value_of(None),)), Object(props=(("next", Node((Ref("/list"),))),), rest=NEVER)))
VALUES: list[object] = [None, True, 0, 1.5, "a", [], [1], {}, {"next": None}, {"next": {"next": 1}}]


def algebra(max_steps: int = 10_000) -> Algebra:
    definitions = {"/list": LIST, "/loop": Node((Ref("/loop"),))}
    return Algebra(lambda name: definitions[name], max_steps)


def test_complements_of_recursive_definitions() -> None:
    rules = algebra()
    other = rules.negate(Node((Ref("/list"),)))
    for value in VALUES:
        assert rules.accepts(other, value) != rules.accepts(LIST, value)
    assert rules.intersect(other, Node((Ref("/list"),))) is not None
    both = rules.intersect(Node((Ref("/list"),)), literal_of([{"next": None}, {"x": 1}]))
    assert both == literal_of([{"next": None}])


def test_complements_of_values() -> None:
    rules = algebra()
    for value in VALUES:
        others = rules.negate(literal_of([value]))
        assert [item for item in VALUES if not rules.accepts(others, item)] == [value]


def test_units() -> None:
    rules = algebra()
    some = node_of(Number(integer=True), String(low=1))
    assert rules.intersect(ANY, some) == some == rules.intersect(some, ANY)
    assert rules.intersect(NEVER, some) == NEVER
    assert rules.negate(ANY) == NEVER
    assert rules.negate(NEVER) == ANY
    assert rules.negate(rules.negate(literal_of([None]))).options == literal_of([None]).options


def test_budgets_are_errors() -> None:
    deep = ANY
    for _ in range(200):
        deep = Node((Array(prefix=(deep,), low=1),))
    with pytest.raises(TooComplexError):
        algebra().negate(deep)
    wide = node_of(*(String(low=bound) for bound in range(1, 99)))
    with pytest.raises(TooComplexError):
        algebra(100).intersect(wide, node_of(*(String(high=i) for i in range(99))))
    with pytest.raises(TooComplexError):
        algebra().accepts(Node((Ref("/loop"),)), 1)
