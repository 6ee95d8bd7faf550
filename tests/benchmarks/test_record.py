"""Medians, spreads, quantiles, and a record that survives the way to disk."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.record import (
    Sample,
    bar_plots,
    medians,
    new_record,
    print_table,
    quantile,
    read,
    write,
)


def sample(case: str, system: str, repetition: int, **metrics: float | None) -> Sample:
    return Sample(case=case, system=system, repetition=repetition, metrics=metrics)


SAMPLES = [
    sample("W1", "ramet", 0, speed=10.0, ttft=None),
    sample("W1", "other", 0, speed=4.0, ttft=7.0),
    sample("W1", "ramet", 1, speed=30.0, ttft=None),
    sample("W1", "ramet", 2, speed=20.0, ttft=5.0),
]


def test_medians_are_taken_per_case_and_system() -> None:
    ramet, other = medians(SAMPLES)
    assert (ramet.case, ramet.system, ramet.repetitions) == ("W1", "ramet", 3)
    assert ramet.metrics == {"speed": 20.0, "ttft": 5.0}
    assert ramet.spread == {"speed": 1.0, "ttft": 0.0}
    assert other.metrics == {"speed": 4.0, "ttft": 7.0}


def test_a_metric_that_never_applied_has_no_median() -> None:
    (row,) = medians([sample("a", "b", 0, x=None), sample("a", "b", 1, x=None)])
    assert row.metrics == {"x": None}
    assert row.spread == {"x": None}


def test_spread_of_zero_is_none_instead_of_a_division() -> None:
    (row,) = medians([sample("a", "b", 0, x=0.0), sample("a", "b", 1, x=0.0)])
    assert row.spread == {"x": None}


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 3.0), (0.99, 4.0), (1.0, 4.0)])
def test_quantile(share: float, expected: float) -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], share) == expected


def test_quantile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="of nothing"):
        quantile([], 0.5)


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    record = new_record("demo", samples=SAMPLES, seed=3, settings={"reps": 3}, notes=["a note"])
    path = write(record, tmp_path / "new" / "folder")
    assert path.name == "demo.json"
    assert read(path) == record
    raw = json.loads(path.read_text())
    assert raw["seed"] == 3
    assert raw["command"][:3] == ["python", "-m", "benchmarks.demo"]
    assert raw["versions"]["torch"]
    assert len(raw["samples"]) == 4
    assert raw["machine"]["cores"] >= 1


def test_a_table_leaves_out_columns_without_a_value() -> None:
    console = Console(file=io.StringIO(), width=120)
    columns = [("speed", "tokens/s", ".0f"), ("nothing", "never", ".0f"), ("ttft", "TTFT ms", ".1f")]
    print_table(console, "Title", medians(SAMPLES), columns)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "tokens/s" in text
    assert "TTFT ms" in text
    assert "5.0" in text
    assert "never" not in text
    assert text.count("W1") == 1


def test_a_plot_is_written(tmp_path: Path) -> None:
    record = new_record("demo", samples=SAMPLES, seed=0, settings={}, notes=[])
    path = tmp_path / "demo.png"
    bar_plots(
        record, path, [("speed", "tokens/s", False), ("ttft", "TTFT, ms", True), ("none", "nothing", True)]
    )
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
