"""Values are equal as JSON Schema has it, and unions drop what is covered."""

import pytest

from ramet.runtime.grammar.schema.shapes import (
    ANY,
    ARRAY,
    FALSE,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    Literal,
    Node,
    String,
    literal_of,
    node_of,
    type_of,
    value_of,
)  # fmt: skip


def test_equality_of_values() -> None:
    assert value_of(1) == value_of(1.0)
    assert value_of(True) != value_of(1)
    assert value_of({"a": 1, "b": [0.5]}) == value_of({"b": [0.5], "a": 1.0})
    assert value_of("1") != value_of(1)
    assert value_of(0.1) != value_of(0.1 + 1e-17 + 1e-16)
    with pytest.raises(TypeError):
        value_of(object())


def test_unions() -> None:
    examples: list[object] = [None, 1.5, "a", [], {}]
    assert node_of(STRING, String(low=1), *literal_of(["a", 1]).options) == Node(
        (STRING, *literal_of([1]).options)
    )
    assert node_of(Literal((NULL, TRUE, FALSE)), NUMBER, STRING, ARRAY, OBJECT) == ANY
    assert node_of().is_never
    assert node_of(STRING, *ANY.options).is_any
    assert literal_of([]).is_never
    assert [type_of(value_of(value)) for value in examples] == [
        Literal, type(NUMBER), type(STRING), type(ARRAY), type(OBJECT),
    ]  # fmt: skip
