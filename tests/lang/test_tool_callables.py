"""What can be a tool besides a function."""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import msgspec
import pydantic
import pytest

from ramet.lang import ProgramState, assistant, function, gen, user
from ramet.lang.backends.scripted import Reply, ScriptedBackend
from ramet.lang.tool import Tool
from ramet.lang.tool_callables import tool_callable
from ramet.runtime.protocol import InvalidRequestError


def weather(city: str, unit: Annotated[str, "C or F"] = "C") -> str:
    """The weather in a city."""
    return f"20 {unit} in {city}"


async def later(city: str, unit: str = "C") -> str:
    """The weather, later."""
    return f"20 {unit} in {city}"


class Station:
    """A weather station."""

    def __init__(self, place: Any) -> None:
        self.place = place

    def __call__(self, hour: int) -> str:
        """The weather at an hour."""
        return f"{self.place} at {hour}"

    def at(self, hour: int) -> str:
        return f"{self.place}, {hour}"

    @staticmethod
    def scale(degrees: float) -> float:
        return degrees * 2

    @classmethod
    def named(cls, place: str) -> str:
        return cls.__name__ + place


class LaterStation:
    """No docstring of its own on what is called."""

    async def __call__(self, hour: int) -> str:
        return f"later than {hour}"


@dataclasses.dataclass
class Trip:
    to: str
    nights: int = 1


class Visit(pydantic.BaseModel):
    to: str
    nights: int = 1


class Stay(msgspec.Struct):
    to: str
    nights: int = 1


class Stop(NamedTuple):
    to: str
    nights: int = 1


@pytest.mark.parametrize(
    ("given", "name", "parameters"),
    [
        (weather, "weather", ["city", "unit"]),
        (functools.partial(weather), "weather", ["city", "unit"]),
        (functools.partial(weather, unit="F"), "weather", ["city"]),
        (functools.partial(weather, "Rome"), "weather", ["unit"]),
        (functools.partial(functools.partial(weather, "Rome"), unit="F"), "weather", []),
        (functools.partial(Station("Bern").at, 3), "at", []),
        (functools.lru_cache(weather), "weather", ["city", "unit"]),
        (Station("Bern"), "Station", ["hour"]),
        (Station("Bern").at, "at", ["hour"]),
        (Station.scale, "scale", ["degrees"]),
        (Station.named, "named", ["place"]),
        (LaterStation(), "LaterStation", ["hour"]),
        *[(record, record.__name__, ["to", "nights"]) for record in (Trip, Visit, Stay, Stop)],
    ],
)
def test_what_is_called_has_a_name_and_parameters(
    given: Callable[..., Any], name: str, parameters: list[str]
) -> None:
    called = tool_callable(given)
    assert called.name == name
    assert [parameter.name for parameter in called.parameters] == parameters
    tool = Tool.of(given)
    assert (tool.name, list(tool.parameters["properties"])) == (name, parameters)


def test_docstrings_are_of_what_is_called() -> None:
    assert Tool.of(Station("Bern")).description == "The weather at an hour."
    assert Tool.of(LaterStation()).description == "No docstring of its own on what is called."
    assert Tool.of(functools.partial(weather, unit="F")).description == "The weather in a city."
    unit = Tool.of(functools.partial(weather, "Rome")).parameters["properties"]["unit"]
    assert unit["description"] == "C or F"


def test_they_run_with_what_a_model_gives() -> None:
    assert Tool.of(functools.partial(weather, unit="F")).run({"city": "Rome"}) == "20 F in Rome"
    assert Tool.of(functools.partial(weather, "Rome")).run({"unit": "K"}) == "20 K in Rome"
    assert Tool.of(Station("Bern")).run({"hour": 3}) == "Bern at 3"
    for record in (Trip, Visit, Stay, Stop):
        assert Tool.of(record).run({"to": "Rome", "nights": 2}) == record(to="Rome", nights=2)
    with pytest.raises(ValueError, match="unit"):
        Tool.of(functools.partial(weather, unit="F")).arguments({"city": "Rome", "unit": "K"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (Station, r"tools has the class Station; give an object of it that can be called \(Station\(...\)"),
        (int, "tools has the class int; give"),
        (Station.at, r"at is the method Station.at without an object; .* tools=\[the_object.at\]"),
        (max, "max does not say what parameters it has"),
        (print, r"print has the parameter \*args"),
        (operator.itemgetter(1), "itemgetter"),
        (functools.partial(weather, *"abc"), "weather cannot be called as it is given"),
        (lambda city: city, "no name that a model could call"),
        (functools.partial(lambda city: city), "no name that a model could call"),
        (3, "no name that a model could call"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_with_the_remedy(given: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says) as raised:
        Tool.of(given)
    assert raised.value.field == "tools"


@pytest.mark.parametrize(
    ("given", "arguments", "told"),
    [
        (functools.partial(later, unit="F"), {"city": "Rome"}, "20 F in Rome"),
        (Station("Bern"), {"hour": 3}, "Bern at 3"),
        (LaterStation(), {"hour": 3}, "later than 3"),
        (Trip, {"to": "Rome"}, '{"to":"Rome","nights":1}'),
    ],
)
def test_a_model_calls_them(given: Any, arguments: dict[str, Any], told: str) -> None:
    name = Tool.of(given).name
    backend = ScriptedBackend([Reply("", calls=[(name, arguments)]), Reply("done")])

    @function
    def program(s: ProgramState) -> None:
        s += user("go") + assistant(gen("x", tools=[given]))

    state = program.run(backend=backend)
    assert state["x"] == "done"
    assert told in str(backend.calls[-1].messages)
