"""Ratios to the best peer, and when a target is reached."""

import pytest

from benchmarks.peer_targets import SERVER, verdicts
from benchmarks.record import Median


def row(case: str, system: str, **metrics: float) -> Median:
    return Median(case=case, system=system, repetitions=1, metrics=dict(metrics), spread={})


def test_the_best_peer_counts_and_the_family_bounds_it() -> None:
    found = verdicts(
        [
            row("W1", "ramet", tpot_median_ms=10.0),
            row("W1", "llama.cpp Q4_0", tpot_median_ms=13.0),
            row("W1", "llama.cpp Q4_1", tpot_median_ms=15.0),
            row("W1", "vllm int8", tpot_median_ms=11.0),
            row("W2", "ramet", output_tokens_per_s=500.0),
            row("W2", "llama.cpp Q4_0", output_tokens_per_s=100.0),
            row("W2", "vllm int8", output_tokens_per_s=200.0),
        ]
    )
    assert [(one.target.case, one.best_peer, one.reached) for one in found] == [
        ("W1", "llama.cpp Q4_0", True),
        ("W2", "vllm int8", False),
    ]
    assert [one.ratio for one in found] == pytest.approx([1.3, 2.5])


def test_what_cannot_be_compared_is_neither_reached_nor_missed() -> None:
    alone = verdicts([row("W2", "ramet", output_tokens_per_s=500.0), row(SERVER, "ramet", start_s=2.0)])
    assert [(one.ratio, one.reached) for one in alone] == [(None, None), (None, None)]
    assert verdicts([row("W2", "vllm int8", output_tokens_per_s=200.0)]) == []
    rows = [row("W2", "ramet", output_tokens_per_s=500.0)]
    rows += [row("W2", "vllm int8", output_tokens_per_s=200.0, failed=1.0)]
    assert verdicts(rows)[0].best_peer is None, "a peer whose calls failed has no figure"
    start = verdicts([row(SERVER, "ramet", start_s=2.0), row(SERVER, "vllm int8", start_s=100.0)])
    assert [(one.ratio, one.reached) for one in start] == [(50.0, None)]


@pytest.mark.parametrize(
    ("ours", "reached"),
    [
        ({"wrong": 0.0, "failed": 0.0}, True),
        ({"wrong": 0.5}, False),
        ({}, False),
        ({"wrong": 0.0, "failed": 1.0}, False),
    ],
)
def test_speed_alone_does_not_reach_a_target(ours: dict[str, float], reached: bool) -> None:
    rows = [row("W5", "ramet", output_tokens_per_s=400.0, **ours)]
    assert verdicts([*rows, row("W5", "vllm int8", output_tokens_per_s=100.0)])[0].reached is reached


@pytest.mark.parametrize(("megabytes", "reached"), [(999.0, True), (1000.0, False), (1001.0, False)])
def test_memory_has_to_be_below(megabytes: float, reached: bool) -> None:
    rows = [row(SERVER, "ramet", peak_memory_mb=megabytes), row(SERVER, "vllm fp32", peak_memory_mb=1000.0)]
    assert verdicts(rows)[0].reached is reached
