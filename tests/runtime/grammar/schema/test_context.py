"""Values of keywords: read, or refused with their place."""

from typing import Any

import pytest

from ramet.runtime.grammar.schema import context
from ramet.runtime.protocol import InvalidRequestError


def test_counts_and_numbers() -> None:
    assert context.count({"minItems": 2.0}, "minItems", "", 10) == 2
    assert context.count({}, "minItems", "", 10) is None
    assert context.number({"minimum": -1.5}, "minimum", "") == -1.5
    assert context.is_alone({"unevaluatedItems": False}, "unevaluatedItems")
    assert not context.is_alone({"unevaluatedItems": False, "contains": {}}, "unevaluatedItems")


@pytest.mark.parametrize("value", [-1, 1.5, "1", True, None])
def test_wrong_counts(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"#/a/minItems is .* must be an integer"):
        context.count({"minItems": value}, "minItems", "/a", 10)


def test_wrong_values() -> None:
    with pytest.raises(InvalidRequestError, match="the limit is 10"):
        context.count({"minItems": 11}, "minItems", "", 10)
    with pytest.raises(InvalidRequestError, match="a number"):
        context.number({"minimum": True}, "minimum", "")
    with pytest.raises(InvalidRequestError, match="array of strings"):
        context.strings([1], "", "required")
    with pytest.raises(InvalidRequestError, match="not empty"):
        context.schemas([], "", "anyOf")
    with pytest.raises(InvalidRequestError, match="an object"):
        context.named([], "", "properties")
