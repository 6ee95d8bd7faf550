"""A bound of time that is looked at between steps, and where planning looks at it."""

from typing import Any

import pytest

from ramet.runtime.grammar.schema import OverdueError, Pace, plan

SLOW: dict[str, Any] = {
    "texts against large patterns": {
        "oneOf": [
            {"enum": [f"v{index}" for index in range(2_000)]},
            {"type": "string", "pattern": r"^(\w{0,3000}\d){1,3}$"},
        ]
    },
    "branches against each other": {
        "oneOf": [{"type": "string", "pattern": f"^(.{{0,{300 + index}}}x)?{index}$"} for index in range(30)]
    },
}


def ticking(step: float) -> Any:
    """A clock that has gone on by ``step`` whenever it is looked at."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += step
        return now

    return clock


def test_without_a_bound_nothing_is_late() -> None:
    pace = Pace(None, ticking(1e9))
    for _ in range(100):
        pace.check()


def test_a_bound() -> None:
    pace = Pace(3.5, ticking(1.0))
    late = 0
    for _ in range(100):
        try:
            pace.check()
        except OverdueError:
            late += 1
    assert late > 10


@pytest.mark.parametrize("schema", SLOW.values(), ids=SLOW)
def test_planning_that_takes_long_is_given_up(schema: Any) -> None:
    with pytest.raises(OverdueError):
        plan(schema, pace=Pace(0.05))


def test_a_schema_that_contradicts_itself_is_searched_within_the_bound() -> None:
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "enum": [1]}}}
    with pytest.raises(OverdueError):
        plan(schema, pace=Pace(0.5, ticking(0.2)))
