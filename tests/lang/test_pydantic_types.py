"""Constraints and validators of pydantic, wherever a type has them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType

import annotated_types
import msgspec
import pydantic
import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, HttpUrl, NaiveDatetime, StringConstraints
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from ramet.lang.pydantic_types import (
    PydanticModel,
    PydanticValue,
    is_pydantic_default,
    pydantic_adapter,
    stand_in,
)
from ramet.lang.tool import Tool
from ramet.lang.values import convert_inner, json_constraint, type_schema
from ramet.runtime.protocol import InvalidRequestError

Few = Annotated[int, Field(ge=3, le=5)]
UserId = NewType("UserId", Few)


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("odd")
    return value


@pydantic_dataclass
class Counted:
    a: Few
    b: str = Field(default="z", max_length=2)

    @pydantic.field_validator("a")
    @classmethod
    def is_no_five(cls, value: int) -> int:
        if value == 5:
            raise ValueError("five is too many")
        return value


@dataclass
class Plain:
    a: Few


@dataclass
class Defaulted:
    a: int = Field(default=3, ge=3, le=5)


class Typed(TypedDict):
    a: Few


class Inner(BaseModel):
    model_config = ConfigDict(strict=True)
    on: date


class Struct(msgspec.Struct):
    a: Few


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (Few, "4", "99"),
        (list[Few], "[3, 5]", "[3, 6]"),
        (dict[str, Few | None], '{"x": null, "y": 4}', '{"x": 2}'),
        (UserId, "3", "2"),
        (Counted, '{"a": 4, "b": "x"}', '{"a": 99}'),
        (Counted, '{"a": 4}', '{"a": 4, "b": "xyz"}'),
        (Plain, '{"a": 4}', '{"a": 99}'),
        (Defaulted, '{"a": 4}', '{"a": 99}'),
        (Typed, '{"a": 4}', '{"a": 99}'),
        (list[Counted], '[{"a": 3}]', '[{"a": 2}]'),
        (Annotated[int, annotated_types.Ge(3)], "3", "2"),
        (Annotated[list[int], annotated_types.Len(1, 2)], "[1]", "[]"),
        (Annotated[str, StringConstraints(pattern="^x+$")], '"xx"', '"y"'),
        (Annotated[Decimal, Field(max_digits=3, decimal_places=1)], "1.5", "1.55"),
        (NaiveDatetime, '"2024-02-29T10:00:00"', '"2024-02-29T10:00:00Z"'),
        (Annotated[datetime, Field(title="When")], '"2024-02-29T10:00:00Z"', '"A Book"'),
    ],
)
def test_what_pydantic_says_holds_in_the_schema_and_in_the_value(kind: Any, right: str, wrong: str) -> None:
    from jsonschema import Draft202012Validator

    schema = type_schema(kind)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema, format_checker=None)
    assert validator.is_valid(json.loads(right))
    constraint = json_constraint(kind)
    constraint.parse(right)
    with pytest.raises(ValueError, match=r"validation error"):
        constraint.parse(wrong)
    if "date-time" not in json.dumps(schema):
        assert not validator.is_valid(json.loads(wrong))


def test_validators_run() -> None:
    assert json_constraint(Counted).parse('{"a": 4}') == Counted(4, "z")
    with pytest.raises(ValueError, match="five is too many"):
        json_constraint(Counted).parse('{"a": 5}')
    with pytest.raises(ValueError, match="odd"):
        json_constraint(Annotated[int, AfterValidator(_even)]).parse("3")
    assert str(json_constraint(HttpUrl).parse('"https://a.example/"')) == "https://a.example/"


def test_what_msgspec_reads_itself_stays_with_it() -> None:
    for kind in (
        int,
        list[Inner],
        Inner,
        Annotated[int, "how many"],
        Annotated[int, msgspec.Meta(ge=3)],
        Literal["a"],
        dict[str, Any],
    ):
        assert pydantic_adapter(kind) is None
        assert stand_in(kind, "x") is kind
    models: list[Any] = [Inner, Counted]
    assert [isinstance(one, PydanticModel) for one in models] == [True, False]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Struct, "msgspec struct Struct next to what pydantic alone reads"),
        (tuple[Few, Annotated[int, msgspec.Meta(ge=1)]], "Meta.*write pydantic.Field"),
        (tuple[Few, Callable[[], int]], "JSON schema"),
        (
            tuple[Few, object()],  # type: ignore[misc]
            "cannot be read by pydantic",
        ),
    ],
)
def test_what_nobody_reads_is_refused_by_name(kind: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as raised:
        json_constraint(kind)
    assert raised.value.field == "json_schema"


def test_a_hint_that_is_not_known_is_refused_by_name() -> None:
    @dataclass
    class Lost:
        a: "Nowhere"  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(InvalidRequestError, match="Nowhere"):
        json_constraint(Lost)


def test_descriptions_alone_stand_next_to_pydantic() -> None:
    kind = tuple[Few, Annotated[int, msgspec.Meta(description="x")]]
    assert json_constraint(kind).parse("[3, 1]") == (3, 1)


def test_models_inside_are_read_as_from_json() -> None:
    assert json_constraint(list[Inner]).parse('[{"on": "2024-02-29"}]') == [Inner(on=date(2024, 2, 29))]
    assert convert_inner(Inner, {"on": "2024-02-29"}) == Inner(on=date(2024, 2, 29))
    value = convert_inner(stand_in(Few, "few"), 4)
    assert isinstance(value, PydanticValue)
    assert value.value == 4


def test_parameters_of_tools() -> None:
    def shop(
        number: Annotated[int, Field(ge=1, le=5, description="how many")],
        counted: Counted,
        rest: "list[Few] | None" = None,
        price: int = Field(default=7, gt=0),
        size: int = Field(le=9, description="how large"),
    ) -> str:
        """Buys.

        rest: what else
        """
        return f"{number} {counted} {rest} {price} {size}"

    tool = Tool.of(shop)
    properties = tool.parameters["properties"]
    assert properties["number"] == {"type": "integer", "minimum": 1, "maximum": 5, "description": "how many"}
    assert properties["price"]["default"] == 7
    assert properties["size"]["description"] == "how large"
    assert tool.parameters["required"] == ["number", "counted", "size"]
    given = {"number": 2, "counted": {"a": 4}, "rest": [3], "size": 1}
    assert tool.arguments(given) == {**given, "counted": Counted(4, "z"), "price": 7}
    assert tool.run(given).startswith("2 Counted(a=4")
    for wrong in ({"number": 9}, {"counted": {"a": 5}}, {"rest": [9]}, {"price": 0}, {"size": 10}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            tool.arguments({**given, **wrong})
    assert is_pydantic_default(Field(ge=1))
    assert not is_pydantic_default(3)


def test_a_parameter_that_nobody_reads_names_its_tool() -> None:
    def shop(number: tuple[Few, Annotated[int, msgspec.Meta(ge=1)]]) -> None: ...

    with pytest.raises(InvalidRequestError, match="tool shop") as raised:
        Tool.of(shop)
    assert raised.value.field == "tools"
