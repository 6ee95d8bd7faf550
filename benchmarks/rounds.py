"""What it means to run a workload, whoever runs it: rounds of calls, their clocks, the metrics over them."""

import os
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.record import quantile


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call. Times are seconds on a clock of the process that ran it."""

    prompt_token_ids: list[int]
    output_token_ids: list[int]
    num_cached_tokens: int
    sent: float
    first_token: float
    last_token: float
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition of a workload: what was called round after round, and what it cost."""

    rounds: list[list[CallRecord]]
    wall: float
    cpu: float
    """CPU seconds of the process, all threads."""
    peak_memory_bytes: int
    """Of the process so far."""
    others_cpu: float | None = None
    """CPU seconds that everything else on the machine took meanwhile; None off Linux."""

    def calls(self) -> list[CallRecord]:
        return [call for one in self.rounds for call in one]


class Meter:
    """Wall and CPU time from its creation to ``stop``."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()
        self._machine = machine_cpu_seconds()

    def stop(self, rounds: list[list[CallRecord]]) -> Run:
        wall = time.perf_counter() - self._wall
        cpu = time.process_time() - self._cpu
        # Kilobytes on Linux, bytes on macOS: getrusage(2).
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        now, before = machine_cpu_seconds(), self._machine
        others = max(0.0, now - before - cpu) if now is not None and before is not None else None
        return Run(rounds=rounds, wall=wall, cpu=cpu, peak_memory_bytes=peak, others_cpu=others)


def metrics(run: Run) -> dict[str, float | None]:
    """Throughput in tokens/s, times in milliseconds, shares of 1. TPOT: from first to last token of a call.

    ``others_cores``: how many cores everything else kept busy meanwhile. Above 0.1 the times say little.
    """
    calls = run.calls()
    ttfts = [1e3 * (call.first_token - call.sent) for call in calls]
    later = [ttft for call, ttft in zip(calls, ttfts, strict=True) if call.turn > 0]
    tpots = [
        1e3 * (call.last_token - call.first_token) / (len(call.output_token_ids) - 1)
        for call in calls
        if len(call.output_token_ids) > 1
    ]
    num_prompt = sum(len(call.prompt_token_ids) for call in calls)
    num_output = sum(len(call.output_token_ids) for call in calls)
    return {
        "output_tokens_per_s": num_output / run.wall,
        "total_tokens_per_s": (num_prompt + num_output) / run.wall,
        "ttft_mean_ms": statistics.mean(ttfts),
        "ttft_p99_ms": quantile(ttfts, 0.99),
        "ttft_later_turns_ms": statistics.mean(later) if later else None,
        "tpot_mean_ms": statistics.mean(tpots) if tpots else None,
        "tpot_median_ms": statistics.median(tpots) if tpots else None,
        "cached_share": sum(call.num_cached_tokens for call in calls) / num_prompt,
        "prompt_tokens": float(num_prompt),
        "output_tokens": float(num_output),
        "wall_s": run.wall,
        "cpu_s": run.cpu,
        "peak_memory_mb": run.peak_memory_bytes / 1e6,
        "others_cores": run.others_cpu / run.wall if run.others_cpu is not None else None,
    }


def machine_cpu_seconds() -> float | None:
    """CPU seconds of all processes since boot: user, nice, system, interrupts, steal (proc_stat(5))."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _idle, _wait, hard, soft, steal = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + hard + soft + steal) / os.sysconf("SC_CLK_TCK")


def same_outputs(first: Run, second: Run) -> float:
    """Share of calls with the same tokens in both runs. Both must have run the same calls."""
    pairs = list(zip(first.calls(), second.calls(), strict=True))
    return sum(a.output_token_ids == b.output_token_ids for a, b in pairs) / len(pairs)


def prompts_of(run: Run) -> Sequence[Sequence[list[int]]]:
    """The prompts of each round, as token ids."""
    return [[call.prompt_token_ids for call in one] for one in run.rounds]
