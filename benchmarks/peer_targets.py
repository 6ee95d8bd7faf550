"""How many times better ramet has to be than the best of its peers, and how many times better it was."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.record import Median

RAMET = "ramet"
SERVER = "server"
"""The case that has the start and the memory of a server, over all that it was asked."""


@dataclass(frozen=True, slots=True)
class Target:
    """``times``: None where the ratio is reported only."""

    case: str
    metric: str
    title: str
    times: float | None
    lower_is_better: bool = False
    family: str = ""
    """Only peers whose names begin so are compared with."""
    needs_none: str | None = None
    """Another metric of ramet's in that case, which has to be 0."""


TARGETS = (
    Target("W1", "tpot_median_ms", "TPOT, ms", 1.2, lower_is_better=True, family="llama.cpp"),
    Target("W2", "output_tokens_per_s", "tokens/s", 3.0),
    Target("W3", "output_tokens_per_s", "tokens/s", 4.0),
    Target("W4", "output_tokens_per_s", "tokens/s", 3.0),
    Target("W4", "ttft_later_turns_ms", "TTFT of later turns, ms", 5.0, lower_is_better=True),
    Target("W5", "output_tokens_per_s", "tokens/s, no whole answer invalid", 2.5, needs_none="wrong"),
    Target("W5u", "output_tokens_per_s", "tokens/s", None),
    Target("W6", "ttft_median_ms", "TTFT, ms", 2.0, lower_is_better=True),
    Target(SERVER, "peak_memory_mb", "peak memory, MB", 1.0, lower_is_better=True),
    Target(SERVER, "start_s", "start to first answer, s", None, lower_is_better=True),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``ratio``: how many times better than the best peer, None without one. ``reached``: None: no target, or
    nothing to compare with."""

    target: Target
    ramet: float
    best_peer: str | None = None
    best: float | None = None
    ratio: float | None = None
    reached: bool | None = None


def verdicts(medians: Sequence[Median]) -> list[Verdict]:
    """One for each target that ramet has a figure for. A peer with failed calls in a case is left out."""
    return [verdict for target in TARGETS if (verdict := _verdict(target, medians)) is not None]


def _verdict(target: Target, medians: Sequence[Median]) -> Verdict | None:
    rows = {row.system: row.metrics for row in medians if row.case == target.case}
    ours = rows.pop(RAMET, {})
    value = ours.get(target.metric)
    if value is None:
        return None
    found = {
        system: figure
        for system, metrics in rows.items()
        if system.startswith(target.family)
        and not metrics.get("failed")
        and (figure := metrics.get(target.metric))
    }
    if not found or not value:
        return Verdict(target, value)
    best_peer = (min if target.lower_is_better else max)(found, key=lambda system: found[system])
    best = found[best_peer]
    ratio = best / value if target.lower_is_better else value / best
    reached = None
    if target.times is not None:
        # Memory is to be below: a ratio of 1 is not.
        enough = ratio >= target.times if target.times > 1 else ratio > target.times
        reached = enough and not ours.get("failed") and _has_no(ours, target.needs_none)
    return Verdict(target, value, best_peer, best, ratio, reached)


def _has_no(ours: dict[str, float | None], metric: str | None) -> bool:
    return metric is None or ours.get(metric) == 0
