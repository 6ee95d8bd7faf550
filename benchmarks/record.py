"""What a benchmark leaves behind: one JSON record with every raw sample, the table of its medians, and a plot.

A figure without its machine, commit, command and seed cannot be compared with anything, so they travel with it.
"""

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from ramet.runtime.cli.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("ramet", "torch", "numpy", "tokenizers", "transformers")


class MachineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where it ran. ``load``: the load average of the last minute when the record was made."""

    cpu: str
    cores: int
    memory_bytes: int | None
    platform: str
    python: str
    load: float


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One repetition: ``metrics`` of what ``system`` did in ``case``. A metric that does not apply is None."""

    case: str
    system: str
    repetition: int = 0
    metrics: dict[str, float | None]


class Median(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the repetitions of one case and system; ``spread`` is (max - min) / median."""

    case: str
    system: str
    repetitions: int
    metrics: dict[str, float | None]
    spread: dict[str, float | None]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a benchmark, as it is written to disk."""

    benchmark: str
    date: str
    command: list[str]
    commit: str | None
    """None: not a git checkout. Ends in -dirty where tracked files were changed."""
    seed: int
    machine: MachineRecord
    versions: dict[str, str]
    settings: dict[str, object]
    notes: list[str]
    medians: list[Median]
    samples: list[Sample]


def new_record(
    benchmark: str, *, samples: Sequence[Sample], seed: int, settings: dict[str, object], notes: Sequence[str]
) -> Record:
    """The record of this process's run; the machine is described as it is now."""
    return Record(
        benchmark=benchmark,
        date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        command=["python", "-m", f"benchmarks.{benchmark}", *sys.argv[1:]],
        commit=_commit(),
        seed=seed,
        machine=_machine(),
        versions=_versions(),
        settings=settings,
        notes=list(notes),
        medians=medians(samples),
        samples=list(samples),
    )


def medians(samples: Iterable[Sample]) -> list[Median]:
    """One entry per case and system, in the order in which they first appear."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.case, sample.system), []).append(sample)
    return [
        Median(
            case=case,
            system=system,
            repetitions=len(group),
            metrics={name: _over(group, name, statistics.median) for name in _metric_names(group)},
            spread={name: _over(group, name, _spread) for name in _metric_names(group)},
        )
        for (case, system), group in groups.items()
    ]


def quantile(values: Sequence[float], share: float) -> float:
    """The value at index ``int(share * n)`` of the sorted values, at most the last; nothing is interpolated.

    Raises ValueError where there is no value.
    """
    if not values:
        raise ValueError("a quantile of nothing")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def write(record: Record, folder: Path) -> Path:
    """Write ``folder/<benchmark>.json`` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record.benchmark}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    return path


def read(path: Path) -> Record:
    return msgspec.json.decode(path.read_bytes(), type=Record)


def table_console() -> Console:
    """stdout; tables are wide, so that a pipe or a file gets 160 columns instead of 80."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=160, highlight=False)


def print_table(
    console: Console, title: str, rows: Sequence[Median], columns: Sequence[tuple[str, str, str]]
) -> None:
    """``columns``: (metric, heading, format), such as ("ttft_mean", "TTFT ms", ".0f").

    A column without any value is left out.
    """
    shown = [column for column in columns if any(row.metrics.get(column[0]) is not None for row in rows)]
    table = Table(title=title, title_justify="left")
    table.add_column("case", no_wrap=True)
    table.add_column("system", no_wrap=True)
    for _, heading, _ in shown:
        table.add_column(heading, justify="right")
    previous = None
    for row in rows:
        cells = [_cell(row.metrics.get(metric), style) for metric, _, style in shown]
        table.add_row(row.case if row.case != previous else "", row.system, *cells)
        previous = row.case
    console.print(table)


def bar_plots(record: Record, path: Path, panels: Sequence[tuple[str, str, bool]]) -> None:
    """Grouped bars as PNG: a panel per (metric, label, logarithmic), a group per case, a colour per system."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    systems = list(dict.fromkeys(row.system for row in record.medians))
    for axis, (metric, label, logarithmic) in zip(axes, panels, strict=True):
        rows = [row for row in record.medians if row.metrics.get(metric) is not None]
        cases = list(dict.fromkeys(row.case for row in rows))
        width = 0.8 / max(1, len(systems))
        for position, system in enumerate(systems):
            mine = {row.case: row.metrics[metric] for row in rows if row.system == system}
            heights = [mine.get(case) or 0.0 for case in cases]
            places = [index + (position - (len(systems) - 1) / 2) * width for index in range(len(cases))]
            axis.bar(places, heights, width, label=system)
        axis.set_xticks(range(len(cases)), cases)
        axis.set_ylabel(label)
        if logarithmic and any(row.metrics[metric] for row in rows):
            axis.set_yscale("log")
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)


def _metric_names(group: Sequence[Sample]) -> list[str]:
    return list(dict.fromkeys(name for sample in group for name in sample.metrics))


def _over(group: Sequence[Sample], name: str, function: Callable[[list[float]], float | None]) -> float | None:
    values = [value for sample in group if (value := sample.metrics.get(name)) is not None]
    return function(values) if values else None


def _spread(values: list[float]) -> float | None:
    middle = statistics.median(values)
    return (max(values) - min(values)) / abs(middle) if middle else None


def _cell(value: float | None, style: str) -> str:
    return "" if value is None else format(value, style)


def _machine() -> MachineRecord:
    machine = describe_machine()
    return MachineRecord(
        cpu=machine.cpu,
        cores=machine.cores,
        memory_bytes=machine.memory_bytes,
        platform=machine.platform,
        python=platform.python_version(),
        load=round(os.getloadavg()[0], 2),
    )


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
