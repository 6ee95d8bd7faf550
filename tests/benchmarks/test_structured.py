"""The command line of the benchmark of constraints, its parts, and a small run of it."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.record import read
from benchmarks.structured import (
    DATA,
    SUITE,
    Bench,
    Outcome,
    main,
    parse,
    read_cases,
    read_suite,
    run_system,
    summary,
    verdict_of,
)
from ramet.runtime.tokenizer import FastTokenizer
from tests.runtime.tokenizer.conftest import smollm2, smollm2_fields, smollm2_path, smollm2_spec  # noqa: F401

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
CASES: list[dict[str, Any]] = [
    {
        "name": "one",
        "schema": SCHEMA,
        "tests": [
            {"valid": True, "data": {"b": "x", "a": 1}},
            {"valid": False, "data": {"b": "x"}},
        ],
    },
    {"name": "two", "schema": {"type": "string", "pattern": "(a)\\1"}, "tests": []},
    {
        "name": "wrong",
        "schema": {"type": "integer"},
        "tests": [{"valid": True, "data": "a"}, {"valid": False, "data": 1}],
    },
]


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([]).cases is None
    assert parse(["--quick"]).cases == 40
    assert parse(["--quick", "--cases", "3"]).cases == 3
    with pytest.raises(SystemExit):
        parse(["--systems", "ramet,nothing"])
    assert "unknown nothing; there are ramet" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["--sets", "nothing"])
    assert "there are maskbench, suite" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["--outputs", "free; nothing"])
    assert parse([]).sets == ["maskbench"]
    assert parse(["--tools"]).sets == []
    assert parse(["--tools", "--sets", "suite"]).sets == ["suite"]


def test_each_system_says_what_became_of_a_schema(smollm2: FastTokenizer) -> None:  # noqa: F811
    for system in ("ramet", "llguidance", "llguidance-lenient"):
        bench = Bench(system, smollm2)
        one, two, wrong = (bench.run(case) for case in CASES)
        assert verdict_of(one) is None
        assert one.num_forced_bytes > 0
        assert len(one.mask_seconds) > 10
        assert (verdict_of(two) or "").startswith("refused: ")
        assert verdict_of(wrong) == "accepts 1 invalid values"
        assert (wrong.rejected_valid, wrong.accepted_invalid) == (1, 1)


def test_a_schema_that_nothing_meets_is_rightly_refused(smollm2: FastTokenizer) -> None:  # noqa: F811
    bench = Bench("ramet", smollm2)
    schema = {"type": "integer", "minimum": 2, "maximum": 1}
    right = bench.run({"name": "", "schema": schema, "tests": [{"valid": False, "data": 1}]})
    assert right.is_empty
    assert verdict_of(right) is None
    wrong = bench.run({"name": "", "schema": schema, "tests": [{"valid": True, "data": 1}]})
    assert (verdict_of(wrong) or "").startswith("refused: no value")


def test_the_summary_counts_schemas() -> None:
    found = summary([Outcome(), Outcome(refusal="x"), Outcome(stopped=True), Outcome(rejected_valid=3)])
    assert (found["passed"], found["refused"], found["stopped"], found["rejects_valid"]) == (
        0.25,
        0.25,
        0.25,
        0.25,
    )
    assert found["mask_p50"] is None


def write_cases(folder: Path) -> None:
    (folder / DATA.parent).mkdir()
    with gzip.open(folder / DATA, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(case) + "\n" for case in CASES)


def test_the_suite_has_a_case_for_each_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_SHARED", str(tmp_path))
    (tmp_path / SUITE.parent).mkdir()
    group = {"description": "numbers", "schema": True, "tests": []}
    with gzip.open(tmp_path / SUITE, "wt", encoding="utf-8") as file:
        file.write(json.dumps({"file": "a.json", "groups": [group, group]}) + "\n")
    assert [case["name"] for case in read_suite(None)] == ["a.json: numbers"] * 2
    assert len(read_suite(1)) == 1


def test_without_the_data_there_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAMET_SHARED", str(tmp_path / "nowhere"))
    record = main(["--sets", "maskbench,suite"])
    assert record.medians == []
    assert any("maskbench left out" in note for note in record.notes)
    assert "left out" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_leaves_a_record(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    smollm2: FastTokenizer,  # noqa: F811
) -> None:
    write_cases(tmp_path)
    monkeypatch.setenv("RAMET_SHARED", str(tmp_path))
    assert len(read_cases(2)) == 2
    record = main(["--systems", "ramet", "--out", str(tmp_path)])
    assert read(tmp_path / "structured.json") == record
    (row,) = record.medians
    assert row.metrics["refused"] == pytest.approx(1 / 3)
    assert record.notes[-1] == "ramet wrong: accepts 1 invalid values"


@pytest.mark.slow
def test_a_child_that_takes_too_long_is_replaced(smollm2: FastTokenizer) -> None:  # noqa: F811
    endless = {**CASES[0], "tests": CASES[0]["tests"] * 20_000}
    outcomes = run_system("ramet", "smollm2", [endless, endless], 0.05)
    assert all(outcome.stopped for outcome in outcomes)
