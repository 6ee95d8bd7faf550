"""Tool calls of BFCL's requests: types, what is counted, and a small run."""

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.structured_tools import Calls, ToolRunner, json_types, read_tool_cases, tool_metrics

ENTRY = {
    "id": "simple_0",
    "question": [[{"role": "user", "content": "What is the weather in Oslo?"}]],
    "function": [
        {
            "name": "weather.get",
            "description": "The weather of a place",
            "parameters": {
                "type": "dict",
                "properties": {
                    "place": {"type": "string", "enum": ["Oslo", "Bergen"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["place", "days"],
            },
        }
    ],
}


def test_types_are_those_of_json_schema() -> None:
    given = {
        "type": "dict",
        "properties": {
            "type": {"type": "float"},
            "point": {"type": "tuple", "items": {"type": "any"}, "default": {"type": "dict"}},
        },
    }
    assert json_types(given) == {
        "type": "object",
        "properties": {
            "type": {"type": "number"},
            "point": {"type": "array", "items": {}, "default": {"type": "dict"}},
        },
    }


def test_metrics() -> None:
    found = tool_metrics(
        [
            Calls(name="a", end="finished", num_calls=3, num_tokens=10, num_forwards=5, problems=["x"]),
            Calls(name="b", end="length"),
            Calls(name="c", end="refused", problems=["nothing meets it"]),
        ],
        2.0,
    )
    assert found["valid_share"] == pytest.approx(2 / 3)
    assert (found["calls"], found["length"], found["forwards_per_token"], found["tokens_per_s"]) == (
        3,
        1,
        0.5,
        5,
    )
    assert tool_metrics([Calls(name="a", end="finished", problems=["no call"])], 1.0)["valid_share"] == 0
    assert tool_metrics([], 1.0)["valid_share"] is None


@pytest.mark.slow
def test_a_forced_call_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_SHARED", str(tmp_path))
    (tmp_path / "data").mkdir()
    with gzip.open(tmp_path / "data/bfcl_v4_multiple.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps(ENTRY) + "\n")
    cases = read_tool_cases("multiple", 5)
    assert [case.name for case in cases] == ["simple_0"]
    runner = ToolRunner("smollm2", 1)
    (calls,), wall = runner.run(cases, "required", 96)
    assert wall > 0
    assert calls.problems == []
    assert calls.end == "length" or calls.num_calls >= 1
    (free,), _ = runner.run(cases, "auto", 8)
    runner.close()
    assert free.problems == []
