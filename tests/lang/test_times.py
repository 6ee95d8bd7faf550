"""Times as types: the schema lets through what the type reads, and nothing else."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest

from ramet.lang.times import with_times
from ramet.lang.values import json_constraint
from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.protocol import JsonSchema
from tests.runtime.grammar.engines.walking import TINY, tiny_takes

T = TypeVar("T")
ZONED = ["2024-02-29T10:00:00Z", "0001-01-01T00:00:00+01:00", "2023-12-31T23:59:59.5-23:59"]
LOCAL = ["2024-02-29T10:00:00", "2023-12-31T23:59:59.123456"]
NO_DATETIME = ["A Book", "", "x", "2023-02-29T10:00:00Z", "2024-01-01", "2024-01-01T24:00:00", "9999999999"]
NO_TIME = ["", "x", "24:00:00", "10:00", "10:60:00Z", "10:00:00+24:00"]
NAIVE = msgspec.Meta(tz=False)
AWARE = msgspec.Meta(tz=True)


def _accepts(constraint_of: Any) -> Callable[[str], bool]:
    constraint = json_constraint(constraint_of)
    assert isinstance(constraint.grammar, JsonSchema)
    return tiny_takes(EngineRouter(TINY).compile(constraint.grammar))


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (datetime, ZONED, NO_DATETIME),
        (Annotated[datetime, AWARE], ZONED, [*NO_DATETIME, *LOCAL]),
        (Annotated[datetime, NAIVE], LOCAL, [*NO_DATETIME, *ZONED]),
        (time, ["10:00:00Z", "23:59:59.25+05:30"], NO_TIME),
        (Annotated[time, NAIVE], ["10:00:00", "23:59:59.25"], [*NO_TIME, "10:00:00Z"]),
        (date, ["2024-02-29"], ["2023-02-29", "x", "2024-1-1"]),
    ],
)
def test_what_is_allowed_can_be_read(kind: Any, right: list[str], wrong: list[str]) -> None:
    accepts, parse = _accepts(kind), json_constraint(kind).parse
    for text in right:
        assert accepts(json.dumps(text)), text
        assert isinstance(parse(json.dumps(text)), datetime | time | date)
    assert not [text for text in wrong if accepts(json.dumps(text))]


class Point(NamedTuple):
    at: datetime
    label: str


class Entry(TypedDict):
    at: datetime | None


@dataclass
class Box(Generic[T]):
    value: T


class Opened(msgspec.Struct, tag=True):
    at: datetime


class Named(msgspec.Struct, tag=True):
    at: str


class Row(msgspec.Struct, array_like=True, tag=True):
    label: str
    at: datetime


@dataclass
class Tree:
    at: datetime
    note: str
    inner: "list[Tree]"


WHEN = "2024-02-29T10:00:00Z"
NESTED: list[tuple[Any, str]] = [
    (list[datetime], '["WHEN"]'),
    (tuple[str, datetime], '["x", "WHEN"]'),
    (dict[str, datetime | None], '{"x": "WHEN"}'),
    (Point, '["WHEN", "x"]'),
    (Entry, '{"at": "WHEN"}'),
    (Box[datetime], '{"value": "WHEN"}'),
    (Opened | Named | None, '{"type": "Opened", "at": "WHEN"}'),
    (Opened | Named | int, '{"type": "Opened", "at": "WHEN"}'),
    (Row, '["Row", "x", "WHEN"]'),
    (Tree, '{"at": "WHEN", "note": "x", "inner": [{"at": "WHEN", "note": "", "inner": []}]}'),
    (Annotated[list[datetime], msgspec.Meta(min_length=1)] | int, '["WHEN"]'),
]


@pytest.mark.parametrize(("kind", "text"), NESTED)
def test_times_are_found_wherever_they_are(kind: Any, text: str) -> None:
    accepts = _accepts(kind)
    document = text.replace("WHEN", WHEN)
    assert accepts(document)
    json_constraint(kind).parse(document)
    assert not accepts(text)


def test_texts_stay_texts() -> None:
    assert _accepts(Opened | Named)('{"type": "Named", "at": "soon"}')
    assert _accepts(Tree)('{"at": "WHEN", "note": "soon", "inner": []}'.replace("WHEN", WHEN))
    assert _accepts(Row)(f'["Row", "soon", "{WHEN}"]')
    schema = msgspec.json.schema(list[str])
    assert with_times(schema, list[str]) == msgspec.json.schema(list[str])
