"""The measurement of schema coverage, and a few schemas of each kind that have to hold through an engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.schema_coverage import Case, Checker, KeyOrder, cases, main, metrics
from benchmarks.workloads import shared_folder


@pytest.fixture(scope="module")
def checker() -> Checker:
    return Checker()


HELD: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("if", {"type": "object", "properties": {"k": {"enum": ["a", "b"]}, "v": {}}, "required": ["k", "v"],
            "if": {"properties": {"k": {"const": "a"}}}, "then": {"properties": {"v": {"type": "integer"}}},
            "else": {"properties": {"v": {"type": "string"}}}},
     [{"k": "a", "v": 1}, {"v": "x", "k": "b"}], [{"k": "a", "v": "x"}, {"k": "b", "v": 1}]),
    ("not", {"type": "string", "not": {"enum": ["a", "ab", 'q"']}}, ["", "b", "abc", "q"],
     ["a", "ab", 'q"', 1]),
    ("oneOf", {"oneOf": [{"type": "integer"}, {"minimum": 2, "type": "integer"}]}, [1, 0, -5], [2, 30, "a"]),
    ("unique", {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
     [[], ["b", "a"]], [["a", "a"]]),
    ("contains", {"type": "array", "contains": {"const": 1}, "maxItems": 3},
     [[1], [0, 1], [2, 2, 1]], [[], [0, 2]]),
    ("dependent", {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
     [{}, {"b": 1}, {"b": 1, "a": 2, "z": 0}], [{"a": 1}]),
    ("counted", {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1},
     [{"a": 1}, {"z": 1}], [{}]),
    ("named", {"type": "object", "propertyNames": {"pattern": "^x"}}, [{}, {"x1": 1}], [{"y": 1}]),
    ("pattern", {"type": "string", "pattern": "^(?!a)\\w+$", "maxLength": 3},
     ["b", "ba", "bcd"], ["a", "ab", "bcde", ""]),
    ("date", {"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "2024-13-01", "24-01-01"]),
    ("recursive", {"$ref": "#/$defs/t", "$defs": {"t": {
      "type": "object", "properties": {"n": {"$ref": "#/$defs/t"}},
      "additionalProperties": False}}}, [{}, {"n": {"n": {}}}], [{"n": 1}, {"m": {}}]),
    ("numbers", {"type": "number", "minimum": 0.5, "exclusiveMaximum": 10, "multipleOf": 0.5}, [0.5, 9.5, 2],
     [0.25, 10, 0.6]),
    ("order", {"allOf": [{"properties": {"b": {"type": "integer"}}}],
               "properties": {"a": {"const": {"y": 1, "x": [2]}}}},
     [{"a": {"x": [2], "y": 1}, "b": 2, "c": 3}], [{"b": "x"}, {"a": {"x": [2]}}]),
    ("tuple", {"type": "array", "prefixItems": [{"type": "integer"}], "items": False, "minItems": 1},
     [[1]], [[], [1, 2], ["a"]]),
    ("quotes", {"type": "string", "pattern": '^[^"\\\\]*$'}, ["", "a\n", "é\x01"], ['"', "\\", 'a"b']),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"), [held[1:] for held in HELD], ids=[held[0] for held in HELD]
)
def test_what_is_planned_holds_in_the_engine(checker: Checker, schema: Any, valid: Any, invalid: Any) -> None:
    instances = tuple([(value, True) for value in valid] + [(value, False) for value in invalid])
    verdict = checker.judge(Case("case", schema, instances))
    assert verdict.passes, verdict
    assert verdict.num_instances == len(instances)


def test_a_wrong_expectation_is_counted(checker: Checker) -> None:
    verdicts = [
        checker.judge(Case("a", {"type": "integer"}, ((1, False), ("x", True)))),
        checker.judge(Case("b", {"type": "array", "uniqueItems": True}, (([], True),))),
        checker.judge(Case("c", False, ((1, False),))),
    ]
    assert verdicts[0].wrong_accepts == ("1",)
    assert verdicts[0].wrong_rejects == ('"x"',)
    assert "uniqueItems" in str(verdicts[1].refused)
    assert verdicts[2].passes
    figures = metrics(verdicts)
    assert figures["pass_share"] == pytest.approx(1 / 3)
    assert (figures["accept_an_invalid"], figures["reject_a_valid"], figures["refused"]) == (1, 1, 1)


def test_keys_follow_the_schema() -> None:
    schema: dict[str, Any] = {"properties": {"b": {}, "a": {"items": {"properties": {"y": {}, "x": {}}}}}}
    arranged = KeyOrder(schema).arrange({"z": 1.0, "a": [{"x": 1, "y": 2}], "b": 0.5})
    assert json.dumps(arranged) == '{"b": 0.5, "a": [{"y": 2, "x": 1}], "z": 1}'


def test_a_run_leaves_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shared_folder() is None:
        pytest.skip("no shared folder")
    main(["--data", "maskbench", "--limit", "5", "--out", str(tmp_path)])
    assert (tmp_path / "schema_coverage.json").is_file()
    assert "pass_share" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("data", ["maskbench", "suite"])
def test_no_invalid_instance_is_accepted(checker: Checker, data: str) -> None:
    if shared_folder() is None:
        pytest.skip("no shared folder")
    verdicts = [checker.judge(case) for case in list(cases(data))[::4]]
    assert not [verdict.name for verdict in verdicts if verdict.wrong_accepts]
