"""The plot of benchmarks.radix: hit rates by cache size, a look by tree size, a step by running requests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import Median, Record


def plot(record: Record, path: Path) -> None:
    """Written as PNG; a panel for each workload with hits, one for the tree, one for the scheduler."""
    from matplotlib.figure import Figure

    hits = [row for row in record.medians if row.metrics.get("bound_share")]
    names = list(dict.fromkeys(row.case.split(",")[0] for row in hits))
    panels = len(names) + 2
    figure = Figure(figsize=(3.6 * panels, 3.4), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for axis, name in zip(axes, names, strict=False):
        _hits(axis, name, [row for row in hits if row.case.split(",")[0] == name])
    _lines(axes[-2], [row for row in record.medians if "match_hit_us" in row.metrics])
    _steps(axes[-1], [row for row in record.medians if "step_median_us" in row.metrics])
    figure.savefig(path, dpi=110)


def _hits(axis: Any, name: str, rows: Sequence[Median]) -> None:
    for system in dict.fromkeys(row.system for row in rows):
        mine = [row.metrics for row in rows if row.system == system]
        axis.plot(
            [row["cache_tokens"] for row in mine], [row["hit_share"] for row in mine], marker="o", label=system
        )
    axis.axhline(rows[0].metrics["bound_share"], color="black", linestyle="--", label="bound")
    axis.set(title=name, xlabel="cache, tokens", ylabel="hit share", xscale="log", ylim=(0, None))
    axis.legend(fontsize="x-small")


def _lines(axis: Any, rows: Sequence[Median]) -> None:
    for system in dict.fromkeys(row.system for row in rows):
        for metric, style in (("match_hit_us", "-"), ("match_miss_us", ":")):
            mine = [row.metrics for row in rows if row.system == system]
            label = f"{system}, {'found' if style == '-' else 'missed'}"
            axis.plot(
                [row["tree_tokens"] for row in mine],
                [row[metric] for row in mine],
                style,
                marker=".",
                label=label,
            )
    axis.set(
        title="match, 1,024 tokens", xlabel="tokens in the tree", ylabel="µs", xscale="log", ylim=(0, None)
    )
    axis.legend(fontsize="x-small")


def _steps(axis: Any, rows: Sequence[Median]) -> None:
    for system in dict.fromkeys(row.system for row in rows):
        mine = [row for row in rows if row.system == system]
        axis.plot(
            [int(row.case.split()[0]) for row in mine],
            [row.metrics["step_median_us"] for row in mine],
            marker="o",
            label=system,
        )
    axis.set(title="scheduling a step", xlabel="running requests", ylabel="µs", xscale="log", yscale="log")
    axis.legend(fontsize="x-small")
