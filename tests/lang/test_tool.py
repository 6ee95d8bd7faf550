"""Tools: schemas from type hints, checked arguments, and what a model is told."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from ramet.lang import Tool, describe_tools
from ramet.lang.tool import check_on_error, described, error_text, result_text, tools_by_name
from ramet.runtime.protocol import InvalidRequestError


@dataclass
class Place:
    city: str
    country: str = "Italy"


def weather(
    place: Place,
    days: Annotated[int, "how many days"] = 1,
    unit: Literal["C", "F"] = "C",
    tags: list[str] = [],  # noqa: B006
) -> dict[str, Any]:
    """The weather
    in a place.

    Args:
        place: where
    """
    return {"place": place.city, "days": days, "unit": unit, "tags": tags}


def test_an_error_is_described_whatever_it_is() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert described(KeyError("x")) == "KeyError: 'x'"
    assert described(SilentError()) == "SilentError, whose text could not be made: ValueError"


def test_a_function_becomes_a_tool() -> None:
    tool = Tool.of(weather)
    assert Tool.of(tool) is tool
    described = tool.as_json()
    assert described["type"] == "function"
    assert (described["function"]["name"], described["function"]["description"]) == (
        "weather",
        "The weather in a place.",
    )
    parameters = described["function"]["parameters"]
    assert parameters["required"] == ["place"]
    assert parameters["additionalProperties"] is False
    assert parameters["properties"]["days"] == {"type": "integer", "description": "how many days", "default": 1}
    assert parameters["properties"]["unit"]["enum"] == ["C", "F"]
    assert parameters["properties"]["place"]["description"] == "where"
    assert parameters["$defs"]["Place"]["required"] == ["city"]
    json.dumps(parameters)


def test_arguments_are_checked_and_converted() -> None:
    tool = Tool.of(weather)
    assert tool.run({"place": {"city": "Rome"}, "days": 2}) == {
        "place": "Rome",
        "days": 2,
        "unit": "C",
        "tags": [],
    }
    for wrong, words in (
        ({}, "missing required field `place`"),
        ({"place": {"city": "Rome"}, "days": "2"}, "Expected `int`, got `str`"),
        ({"place": {"city": "Rome"}, "unit": "K"}, "Invalid enum value 'K'"),
        ({"place": {"city": "Rome"}, "extra": 1}, "unknown field `extra`"),
        ([], "Expected `object`, got `array`"),
    ):
        with pytest.raises(ValueError, match=words):
            tool.run(wrong)


def no_hint(a) -> None:  # type: ignore[no-untyped-def]
    """a has no hint."""


def star(*args: int) -> None:
    """A model calls by name."""


def odd(a: Callable[[], int]) -> None:
    """There is no JSON for a function."""


@pytest.mark.parametrize(
    ("tool", "words"), [(no_hint, "no type hint for 'a'"), (star, r"\*args"), (odd, "without schema")]
)
def test_functions_that_cannot_be_tools(tool: Callable[..., Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        Tool.of(tool)


class Trip(BaseModel):
    to: str
    nights: int = 1


def test_a_parameter_may_be_a_pydantic_model() -> None:
    def book(trip: Trip, guests: list[Trip]) -> str:
        """Books a trip."""
        return f"{trip.to} {trip.nights} {guests}"

    tool = Tool.of(book)
    Draft202012Validator.check_schema(tool.parameters)
    assert tool.run({"trip": {"to": "Rome"}, "guests": []}) == "Rome 1 []"
    with pytest.raises(ValueError, match="nights"):
        tool.run({"trip": {"to": "Rome", "nights": "two"}, "guests": []})


def unknown_hint(a: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Its hint is no type."""


def test_a_hint_that_is_not_known_is_named() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"unknown_hint has a type hint that is not known .*'Nowhere'"
    ):
        Tool.of(unknown_hint)


@pytest.mark.parametrize("nameless", [lambda: 1, functools.partial(lambda: 1), "weather", 3])
def test_what_has_no_name_is_no_tool(nameless: Any) -> None:
    with pytest.raises(InvalidRequestError, match="no name that a model could call"):
        Tool.of(nameless)


def test_the_description_names_each_tool_and_the_form_of_a_call() -> None:
    text = describe_tools([weather])
    assert '"name":"weather"' in text
    assert '{"name": "...", "arguments": {...}}' in text
    assert '{"answer": "..."}' in text


def test_tools_have_names_of_their_own_and_there_is_one() -> None:
    assert list(tools_by_name([weather])) == ["weather"]
    with pytest.raises(InvalidRequestError, match="two of the name 'weather'"):
        tools_by_name([weather, Tool.of(weather)])
    nothing: tuple[Any, ...] = ([], "weather", None)
    for wrong in nothing:
        with pytest.raises(InvalidRequestError, match="at least one function"):
            tools_by_name(wrong)


def test_what_a_model_is_told() -> None:
    assert result_text("as it is") == "as it is"
    assert result_text({"a": [1, None]}) == '{"a":[1,null]}'
    assert result_text(complex(1, 2)) == "(1+2j)"
    assert result_text({"a": {"b": (1, {2})}}) == '{"a":{"b":[1,[2]]}}'
    assert error_text(KeyError("x")) == """{"error":"KeyError: 'x'"}"""
    with pytest.raises(InvalidRequestError, match="on_tool_error is 'ignore'"):
        check_on_error("ignore", "on_tool_error")


def test_results_that_hold_themselves_or_are_nested_without_end() -> None:
    cyclic: dict[str, Any] = {}
    cyclic["again"] = [cyclic]
    assert result_text(cyclic) == "a dict that is nested too deeply to be written"
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    assert result_text(deep) == "a list that is nested too deeply to be written"
    shared: list[Any] = [1]
    for _ in range(10):
        shared = [shared, shared]
    assert result_text(shared).count("1") == 2**10
