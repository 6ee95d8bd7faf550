"""The metrics of a run, computed by hand."""

import pytest

from benchmarks.rounds import CallRecord, Meter, Run, metrics, prompts_of, same_outputs


def call(
    sent: float, first: float, last: float, outputs: list[int], cached: int = 0, turn: int = 0
) -> CallRecord:
    return CallRecord([1, 2, 3, 4], outputs, cached, sent, first, last, turn)


def test_metrics() -> None:
    run = Run(
        rounds=[[call(0.0, 0.1, 0.3, [5, 6, 7])], [call(1.0, 1.3, 1.3, [8], cached=4, turn=1)]],
        wall=2.0,
        cpu=3.0,
        peak_memory_bytes=1_000_000,
        others_cpu=1.0,
    )
    found = metrics(run)
    assert found["output_tokens_per_s"] == 2.0
    assert found["total_tokens_per_s"] == 6.0
    assert found["ttft_mean_ms"] == pytest.approx(200.0)
    assert found["ttft_p99_ms"] == pytest.approx(300.0)
    assert found["ttft_later_turns_ms"] == pytest.approx(300.0)
    assert found["tpot_mean_ms"] == pytest.approx(100.0)
    assert found["cached_share"] == 0.5
    assert found["peak_memory_mb"] == 1.0
    assert found["others_cores"] == 0.5


def test_metrics_that_do_not_apply_are_none() -> None:
    found = metrics(Run(rounds=[[call(0.0, 0.1, 0.1, [5])]], wall=1.0, cpu=1.0, peak_memory_bytes=1))
    assert found["tpot_mean_ms"] is None
    assert found["ttft_later_turns_ms"] is None


def test_same_outputs_counts_calls() -> None:
    def run(*outputs: list[int]) -> Run:
        return Run([[call(0.0, 0.0, 0.0, item) for item in outputs]], 1.0, 1.0, 1)

    assert same_outputs(run([1], [2]), run([1], [3])) == 0.5
    with pytest.raises(ValueError, match="longer"):
        same_outputs(run([1]), run([1], [2]))


def test_prompts_are_kept_by_round() -> None:
    run = Meter().stop([[call(0, 0, 0, [1]), call(0, 0, 0, [1])], [call(0, 0, 0, [1])]])
    assert [len(one) for one in prompts_of(run)] == [2, 1]
    assert run.wall >= 0
    assert run.peak_memory_bytes > 1_000_000
    assert run.others_cpu is None or run.others_cpu >= 0
