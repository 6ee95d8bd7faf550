"""What stands for values that are not known."""

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from ramet.lang import gen
from ramet.lang.compiler.placeholders import Marks, TraceEnd
from ramet.lang.ir import Sequence, Text

MARKS = Marks()
TEXT: Any = MARKS.text("the text", "what 'x' is")
VALUE: Any = MARKS.value("the value", "what 'n' is")


@pytest.mark.parametrize(
    "write",
    [
        lambda x: f"a {x} b",
        lambda x: "a " + x + " b",
        lambda x: "a %s b" % x,  # noqa: UP031
        lambda x: "a {} b".format(x),  # noqa: UP032
        lambda x: " ".join(["a", x, "b"]),
        lambda x: f"a {x.strip()} b",
        lambda x: f"a {x.upper().removeprefix('-').ljust(3)} b",
    ],
)
def test_texts_have_a_mark_in_the_place_of_the_value(write: Callable[[Any], str]) -> None:
    assert MARKS.split(str.__str__(write(TEXT))) == ["a ", "the text", " b"]


@pytest.mark.parametrize(
    "write",
    [lambda n: f"a {n} b", lambda n: f"a {n:>5} b", lambda n: f"a {n.name} b", lambda n: f"a {n['name'][0]} b"],
)
def test_values_too(write: Callable[[Any], str]) -> None:
    assert MARKS.split(write(VALUE)) == ["a ", "the value", " b"]
    assert MARKS.split(repr(VALUE)) == ["the value"]


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x == "a",
        lambda x: "a" == x,  # noqa: SIM300
        lambda x: x != "a",
        lambda x: x in ("a", "b"),
        lambda x: x in {"a": 1},
        lambda x: "a" in x,
        lambda x: bool(x),
        lambda x: "" if x else "b",
        lambda x: len(x),
        lambda x: list(x),
        lambda x: x[0],
        lambda x: x < "a",
        lambda x: sorted([x, "a"]),
        lambda x: {x},
        lambda x: x.split(),
        lambda x: x.startswith("a"),
        lambda x: x.replace("a", "b"),
        lambda x: x.isdigit(),
        lambda x: x.encode(),
        json.loads,
        lambda x: ("a" + x) == "ab",
        lambda x: (x + "a").split(),
    ],
)
def test_whoever_looks_at_a_text_ends_the_trace(look: Callable[[Any], object]) -> None:
    with pytest.raises(TraceEnd, match="depends on what 'x' is"):
        look(TEXT)


@pytest.mark.parametrize(
    "look",
    [
        lambda n: n == 1,
        lambda n: n > 1,
        lambda n: n + 1,
        lambda n: 1 + n,
        lambda n: range(n),
        lambda n: int(n),
        lambda n: list(n),
        lambda n: n(),
        lambda n: [0][n],
        lambda n: not n,
        lambda n: math.floor(n * 2),
        lambda n: "a" in n.names,
    ],
)
def test_whoever_looks_at_a_value_ends_the_trace(look: Callable[[Any], object]) -> None:
    with pytest.raises(TraceEnd, match="depends on what 'n' is"):
        look(VALUE)


@pytest.mark.parametrize("convert", [int, float, lambda x: {"a": 1}[str(x)]])
def test_a_text_converts_to_nothing(convert: Callable[[Any], object]) -> None:
    with pytest.raises((ValueError, KeyError)):
        convert(TEXT)


def test_marks_are_nobody_elses() -> None:
    other = Marks()
    foreign = other.of("foreign")
    assert MARKS.split(foreign) == [foreign]
    assert other.of("thing") == other.of("thing") != other.of("another")
    assert other.split(other.of("thing") + other.of("another")) == ["thing", "another"]
    assert re.fullmatch("[^a-z]+", other.of("thing"))


def test_a_text_joins_expressions() -> None:
    node = TEXT + gen("a")
    assert isinstance(node, Sequence)
    assert isinstance(node.parts[0], Text)
    assert MARKS.split(node.parts[0].text) == ["the text"]
    with pytest.raises(TypeError):
        TEXT + 1
    with pytest.raises(TypeError):
        1 + TEXT
