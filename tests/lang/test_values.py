"""Constraints and values: what the grammar lets through, up to the stop, the value can read."""

import json
import re
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict

from ramet.lang.values import Constraint, dtype_constraint, json_constraint, json_document, type_schema
from ramet.runtime.protocol import Choice, InvalidRequestError, JsonSchema, Regex
from ramet.runtime.tokenizer import StopMatcher


def allows(constraint: Constraint, text: str) -> bool:
    match constraint.grammar:
        case Regex(pattern):
            return re.fullmatch(pattern, text) is not None
        case Choice(options):
            return text in options
        case _:
            raise AssertionError(constraint.grammar)


def cut(constraint: Constraint, text: str) -> str:
    stops = StopMatcher((), constraint.stop_regex)
    shown, hit = stops.push(text)
    return shown if hit is not None else shown + stops.flush()[0]


@pytest.mark.parametrize("dtype", [int, float])
@given(data=st.data())
def test_every_number_that_the_grammar_allows_can_be_read(dtype: Any, data: st.DataObject) -> None:
    constraint = dtype_constraint(dtype)
    assert isinstance(constraint.grammar, Regex)
    text = data.draw(st.from_regex(re.compile(constraint.grammar.pattern, re.ASCII), fullmatch=True))
    value = constraint.parse(cut(constraint, text))
    assert isinstance(value, dtype)


@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [
        (int, "42", 42),
        (int, "-7 apples", -7),
        (int, "+3.5", 3),
        (int, "12,000", 12),
        (float, "2.5kg", 2.5),
        (float, "2. The", 2.0),
        (float, "2.", 2.0),
        (float, "-1,5", -1.0),
        (bool, "True", True),
        (bool, "False", False),
        (str, '"a, \\"b\\" – c!"', 'a, "b" – c!'),
        (str, '""', ""),
    ],
)
def test_values_of_the_plain_types(dtype: Any, text: str, value: object) -> None:
    constraint = dtype_constraint(dtype)
    assert allows(constraint, text)
    parsed = constraint.parse(cut(constraint, text))
    assert parsed == value
    assert type(parsed) is dtype


@pytest.mark.parametrize(
    ("dtype", "text"), [(int, "x"), (int, "5-10"), (bool, "true"), (str, "plain"), (str, '"a\nb"')]
)
def test_what_the_plain_types_do_not_allow(dtype: Any, text: str) -> None:
    constraint = dtype_constraint(dtype)
    assert not allows(constraint, text)
    if text != "5-10":
        with pytest.raises(ValueError):  # noqa: PT011
            constraint.parse(text)


def test_a_type_may_be_given_by_its_name() -> None:
    for dtype in (int, float, bool, str):
        assert dtype_constraint(dtype.__name__) is dtype_constraint(dtype)


@pytest.mark.parametrize("dtype", [list, "integer", None, 1])
def test_other_dtypes_are_refused(dtype: object) -> None:
    with pytest.raises(InvalidRequestError, match="it must be int, float, str or bool"):
        dtype_constraint(dtype)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Inner(BaseModel):
    b: str


class Outer(BaseModel):
    inner: list[Inner]


@dataclass
class Data:
    x: int
    inner: "Nested"


@dataclass
class Nested:
    y: float = 0.5


class Typed(TypedDict):
    kind: Literal["a", "b"]


class Colour(Enum):
    RED = "red"


def test_types_as_schemas() -> None:
    assert json_constraint(Outer).parse('{"inner": [{"b": "c"}]}') == Outer(inner=[Inner(b="c")])
    assert json_constraint(Data).parse('{"x": 1, "inner": {}}') == Data(1, Nested())
    assert json_constraint(Typed).parse('{"kind": "a"}') == {"kind": "a"}
    assert json_constraint(list[int]).parse("[1]") == [1]
    assert json_constraint(Colour).parse('"red"') is Colour.RED
    for type_, text in ((Outer, "{}"), (Data, '{"x": "1"}'), (list[int], "[1"), (Colour, '"blue"')):
        with pytest.raises(ValueError):  # noqa: PT011
            json_constraint(type_).parse(text)


def test_objects_of_types_are_closed_unless_they_keep_what_they_do_not_know() -> None:
    schema = type_schema(Outer)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Inner"]["additionalProperties"] is False
    assert type_schema(Open)["additionalProperties"] is True
    assert "additionalProperties" not in type_schema(dict[str, int]).get("properties", {})
    assert type_schema(dict[str, int])["additionalProperties"] == {"type": "integer"}


def test_documents_as_schemas() -> None:
    as_dict = json_constraint({"type": "object", "properties": {"ä": {"type": "integer"}}})
    assert as_dict.grammar == JsonSchema('{"type":"object","properties":{"ä":{"type":"integer"}}}')
    assert as_dict.parse('{"ä": 1}') == '{"ä": 1}'
    assert json_constraint('{"type":  "integer"}').grammar == JsonSchema('{"type":  "integer"}')
    assert json_constraint(True).grammar == JsonSchema("true")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "the JSON of a list"),
        ({"a": {1}}, "cannot be written as JSON"),
        (3, "has no JSON schema"),
        (complex, "has no JSON schema"),
    ],
)
def test_what_is_no_schema(schema: object, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as raised:
        json_constraint(schema)
    assert raised.value.field == "json_schema"


def test_json_document() -> None:
    assert json_document({"a": [1, "ü"]}, "x") == '{"a":[1,"ü"]}'


class Street(BaseModel):
    number: int


class Address(BaseModel):
    street: Street
    town: str


@dataclass
class Contact:
    name: str
    addresses: list[Address]


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (list[Address], '[{"street": {"number": 3}, "town": "Ulm"}]'),
        (Contact, '{"name": "Ada", "addresses": [{"street": {"number": 3}, "town": "Ulm"}]}'),
        (dict[str, Address] | None, '{"home": {"street": {"number": 3}, "town": "Ulm"}}'),
    ],
)
def test_pydantic_models_inside_of_other_types(type_: Any, text: str) -> None:
    schema = type_schema(type_)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert validator.is_valid(json.loads(text))
    wrong = text.replace("3", '"three"')
    assert not validator.is_valid(json.loads(wrong))
    constraint = json_constraint(type_)
    assert "Address(street=Street(number=3), town='Ulm')" in repr(constraint.parse(text))
    with pytest.raises(ValueError, match="number"):
        constraint.parse(wrong)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (Decimal, ["0", "-1.50", "12.345"], ["x", "1.", ".5", "1e5", "NaN"]),
        (bytes, ["", "YWI=", "YWJj", "YQ=="], ["a", "YWI", "é", "=YWI"]),
        (timedelta, ["P1D", "PT1H30M", "-PT3S", "P2DT5M"], ["P1Y", "P1W", "P", "PT", "1 day"]),
    ],
)
def test_texts_of_types_are_allowed_exactly_if_they_can_be_read(
    kind: Any, right: list[str], wrong: list[str]
) -> None:
    constraint = json_constraint(list[kind])
    assert isinstance(constraint.grammar, JsonSchema)
    items = Draft202012Validator(json.loads(constraint.grammar.schema))
    for text in right:
        assert items.is_valid([text]), text
        values: Any = constraint.parse(json.dumps([text]))
        assert [type(value) for value in values] == [kind]
    assert not [text for text in wrong if items.is_valid([text])]
