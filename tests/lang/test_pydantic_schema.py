"""Decimals of pydantic models: what the schema lets through, the model reads."""

import json
from decimal import Decimal
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, ValidationError, create_model

from ramet.lang.pydantic_schema import decimal_numbers, pydantic_schema
from ramet.lang.values import json_constraint, type_schema
from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.protocol import JsonSchema
from tests.runtime.grammar.engines.walking import TINY, tiny_takes

NUMBERS = [
    "0",
    "7",
    "-7",
    "99",
    "100",
    "-100",
    "1.5",
    "-1.25",
    "0.05",
    "0.001",
    "999.99",
    "1000",
    "12345",
    "123456",
]

FIELDS: list[Any] = [
    (Decimal, ...),
    (Decimal, Field(decimal_places=2)),
    (Decimal, Field(max_digits=5, decimal_places=2)),
    (Decimal, Field(max_digits=3)),
    (Decimal, Field(ge=0, lt=100, decimal_places=2)),
    (Decimal, Field(gt=0, max_digits=4, decimal_places=0)),
    (Decimal | None, Field(max_digits=4, decimal_places=3)),
]


@pytest.mark.parametrize("field", FIELDS)
def test_a_number_is_allowed_exactly_if_the_model_reads_it(field: Any) -> None:
    model = create_model("Priced", x=field)
    constraint = json_constraint(model)
    assert isinstance(constraint.grammar, JsonSchema)
    accepts = tiny_takes(EngineRouter(TINY).compile(constraint.grammar))
    for text in [*NUMBERS, '"x"', '"1.5"']:
        document = f'{{"x": {text}}}'
        try:
            read = model.model_validate_json(document)
        except ValidationError:
            assert not accepts(document), text
            continue
        if not text.startswith('"'):
            assert accepts(document), text
            assert constraint.parse(document) == read
            assert read.x == Decimal(text)  # type: ignore[attr-defined]
        else:
            assert not accepts(document), "a decimal is written as a number"


def test_digits_become_bounds_and_multiples() -> None:
    number = {"type": "number", "minimum": 0}
    assert decimal_numbers(number, None, None) == number
    assert decimal_numbers(number, None, 0) == {**number, "multipleOf": 1}
    assert decimal_numbers(number, 5, 2) == {**number, "multipleOf": 0.01, "exclusiveMaximum": 1000}
    assert decimal_numbers({**number, "maximum": 10}, 5, 2)["maximum"] == 10
    assert decimal_numbers({**number, "multipleOf": 0.05}, None, 2)["multipleOf"] == 0.05
    wide = decimal_numbers({"type": "number"}, 38, None)
    assert [part["multipleOf"] for part in wide["anyOf"][:3]] == [1, 0.1, 0.01]
    Draft202012Validator.check_schema(wide)


def test_other_fields_are_as_pydantic_writes_them() -> None:
    class Inner(BaseModel):
        price: Decimal

    class Outer(BaseModel):
        inner: list[Inner]
        name: str

    schema = pydantic_schema(Outer.model_json_schema, "#/$defs/{model}")
    assert schema["$defs"]["Inner"]["properties"]["price"]["type"] == "number"
    plain = Outer.model_json_schema()
    assert json.dumps(schema["properties"]) == json.dumps(plain["properties"])
    assert '"string"' not in json.dumps(type_schema(list[Inner]))
