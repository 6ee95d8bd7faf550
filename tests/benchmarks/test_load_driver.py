"""Loads against callers that answer by the clock of an event loop, and the figures by hand."""

import asyncio

import pytest

from benchmarks.load_client import ServedCall
from benchmarks.load_driver import LoadRun, Objectives, closed_loop, load_metrics, poisson_arrivals
from benchmarks.load_shapes import LoadRequest


class CountingCaller:
    """Answers after a few turns of the event loop; counts how many calls run at once."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.asked: list[str] = []

    async def __call__(self, prompt: str, max_tokens: int) -> ServedCall:
        self.running += 1
        self.most = max(self.most, self.running)
        self.asked.append(prompt)
        for _ in range(3):
            await asyncio.sleep(0)
        self.running -= 1
        return ServedCall(sent=0.0, text=prompt, num_output_tokens=max_tokens)


CHAINS = [[LoadRequest(f"{chain} {call}", 2) for call in range(3)] for chain in "abcd"]


def test_a_closed_loop_keeps_its_width_and_the_order_of_chains() -> None:
    caller = CountingCaller()
    run = asyncio.run(closed_loop(CHAINS, 2, caller))
    assert caller.most == 2
    assert len(run.calls) == 12
    for chain in "abcd":
        assert [prompt for prompt in caller.asked if prompt[0] == chain] == [f"{chain} {n}" for n in range(3)]


def test_poisson_arrivals_wait_for_nobody() -> None:
    caller = CountingCaller()
    run = asyncio.run(poisson_arrivals(CHAINS, 1e6, "seed", caller))
    assert len(run.calls) == 12
    assert caller.most >= 2


def call(ttft: float, *gaps: float, error: str | None = None) -> ServedCall:
    last = 10.0 + ttft + sum(gaps)
    return ServedCall(10.0, 10.0 + ttft, last, list(gaps), "text", 8, len(gaps) + 1, 4, error)


def test_metrics() -> None:
    run = LoadRun([call(0.5, 0.1, 0.3), call(1.5, 0.1), call(0.1), call(0.0, error="status 503: full")], 2.0)
    found = load_metrics(run, Objectives(ttft=1.0, tpot=0.25))
    assert found["requests"] == 4
    assert found["failed"] == 1
    assert found["requests_per_s"] == 1.5
    assert found["output_tokens_per_s"] == 3.0
    assert found["total_tokens_per_s"] == 15.0
    assert found["goodput_per_s"] == 1.0, "one is late, one failed"
    assert found["good_share"] == 0.5
    assert found["ttft_p50_ms"] == pytest.approx(500.0)
    assert found["tpot_mean_ms"] == pytest.approx(150.0)
    assert found["itl_p99_ms"] == pytest.approx(300.0)
    assert found["e2e_p99_ms"] == pytest.approx(1600.0)
    assert found["cached_share"] == 0.5


def test_metrics_of_failures_only() -> None:
    found = load_metrics(LoadRun([call(0.0, error="gone")], 1.0), Objectives())
    assert found["ttft_p50_ms"] is None
    assert found["cached_share"] is None
    assert found["goodput_per_s"] == 0
