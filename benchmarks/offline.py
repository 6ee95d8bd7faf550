"""Serving workloads in process: ramet with and without its prefix cache, and transformers, in the same run.

    python -m benchmarks.offline --out benchmarks/results
    python -m benchmarks.offline --quick --baseline none --workloads W1,W2

Every system runs in a process of its own, one at a time, in the order A B C A B C; each repetition has
prompts that no cache has seen. All systems get the same token ids: chat turns are continued with ramet's
answers. Clocks are the caller's: TTFT runs from sending a request, time in the queue included.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import ramet_runner, transformers_runner
from benchmarks.choices import some_of
from benchmarks.phases import PHASES, PhaseSplit
from benchmarks.record import Record, Sample, bar_plots, new_record, print_table, table_console, write
from benchmarks.rounds import Run, metrics, same_outputs
from benchmarks.workers import Worker, WorkerError
from benchmarks.workloads import (
    NUM_VARIANTS,
    SHAPES,
    SharedDataMissingError,
    Workload,
    generate_workload,
    read_workload,
    shorten,
)

RAMET, UNCACHED = "ramet", "ramet, cache off"
GENERATE, CONTINUOUS = "transformers generate", "transformers continuous"
TIMES_AS_LONG = 15
"""A baseline is stopped where it takes this many times as long as ramet (and longer than --patience)."""
RUNNING = (1, 32)
"""Numbers of running requests at which a step is taken apart."""

COLUMNS = [
    ("output_tokens_per_s", "tokens/s", ".1f"),
    ("ttft_mean_ms", "TTFT ms", ".0f"),
    ("ttft_p99_ms", "p99", ".0f"),
    ("ttft_later_turns_ms", "later turns", ".0f"),
    ("tpot_median_ms", "TPOT ms", ".1f"),
    ("cached_share", "cached", ".1%"),
    ("same_tokens_as_ramet", "same answers", ".0%"),
    ("wall_s", "s", ".1f"),
    ("peak_memory_mb", "peak MB", ".0f"),
    ("others_cores", "others, cores", ".2f"),
]
PHASE_COLUMNS = [
    ("step_ms", "step ms", ".2f"),
    *((f"{name}_share", name, ".1%") for name in PHASES),
    ("bookkeeping_share", "all but forward", ".1%"),
]


@dataclass(slots=True)
class System:
    """One competitor: a function of a worker of its own, which is started when it is first needed."""

    name: str
    function: str
    start: Callable[[], Worker]
    is_baseline: bool = False
    worker: Worker | None = None
    gave_up: set[str] = field(default_factory=set)
    """Workloads that it could not do, or not in time."""

    def run(self, workload: Workload, reference: Run | None, timeout: float | None) -> Run:
        """Raises WorkerError; after a death the next call starts a new process."""
        if self.worker is None or not self.worker.is_alive:
            self.worker = self.start()
        run: Run = self.worker.call(self.function, workload, reference, timeout=timeout)
        return run

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()


@dataclass(slots=True)
class Benchmark:
    """One run of this module. ``samples`` and ``notes`` grow as it goes."""

    options: argparse.Namespace
    console: Console
    samples: list[Sample]
    notes: list[str]

    def workload(self, name: str, variant: int) -> Workload:
        if self.options.synthetic:
            workload = generate_workload(name, variant, self.options.seed)
        else:
            workload = read_workload(name, variant)
        return shorten(workload) if self.options.quick else workload

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            systems = self._systems()
            for system in systems:
                stack.callback(system.close)
            self._warm_up(systems)
            for repetition in range(self.options.reps):
                for name in self.options.workloads:
                    self._repetition(systems, name, repetition)
            ramet = systems[0].worker
            assert ramet is not None
            self._phases(ramet)

    def _systems(self) -> list[System]:
        """ramet comes first: the others replay its prompts."""
        options, settings = self.options, dict(self.options.setting)
        uncached = {**settings, "enable_prefix_cache": False}
        systems = [
            System(RAMET, "run", self._starter(RAMET, ramet_runner.make, settings=settings)),
            System(UNCACHED, "run", self._starter(UNCACHED, ramet_runner.make, settings=uncached)),
        ]
        if options.baseline == "transformers":
            for name, function in ((GENERATE, "generate"), (CONTINUOUS, "continuous")):
                start = self._starter(name, transformers_runner.make, threads=settings.get("threads"))
                systems.append(System(name, function, start, is_baseline=True))
        return systems

    def _starter(self, name: str, factory: Any, **settings: Any) -> Callable[[], Worker]:
        return partial(Worker, name, factory, model=self.options.model, **settings)

    def _warm_up(self, systems: Sequence[System]) -> None:
        """A few calls of variant 0: the first ones allocate, compile and page in what later ones find ready."""
        batch = self.workload("W2", 0)
        workload = replace(batch, name="warm-up", prompts=batch.prompts[:8], max_tokens=4)
        reference: Run | None = None
        for system in systems:
            with self.console.status(f"starting {system.name}"):
                run = self._call(system, workload, reference)
            reference = reference or run
            if system.name == RAMET and system.worker is not None:
                about = system.worker.call("info")
                names = ("model", "dtype", "quantization", "kv_tokens")
                self.console.print(", ".join(f"{name} {about[name]}" for name in names), markup=False)

    def _repetition(self, systems: Sequence[System], name: str, repetition: int) -> None:
        workload = self.workload(name, 1 + repetition % (NUM_VARIANTS - 1))
        reference: Run | None = None
        for system in systems:
            with self.console.status(f"{name}, repetition {repetition + 1}: {system.name}"):
                run = self._call(system, workload, reference)
            if run is None:
                continue
            self.console.print(f"{name} {repetition + 1} {system.name}: {run.wall:.1f} s", style="dim")
            values = metrics(run)
            if reference is not None:
                values["same_tokens_as_ramet"] = same_outputs(reference, run)
            reference = reference or run
            self.samples.append(Sample(case=name, system=system.name, repetition=repetition, metrics=values))

    def _call(self, system: System, workload: Workload, reference: Run | None) -> Run | None:
        """None where a baseline failed or was stopped; it is noted, and not tried on that workload again.

        ramet's own failure ends the benchmark.
        """
        if {workload.name, "warm-up"} & system.gave_up:
            return None
        timeout = None
        if system.is_baseline and reference is not None:
            timeout = max(self.options.patience, TIMES_AS_LONG * reference.wall)
        try:
            return system.run(workload, reference, timeout)
        except WorkerError as error:
            if not system.is_baseline:
                raise
            system.gave_up.add(workload.name)
            self._note(f"{workload.name}, {system.name}: {error}")
            return None

    def _phases(self, ramet: Worker) -> None:
        prompts = self.workload("W2", 0).prompts
        steps = 16 if self.options.quick else 64
        for num_running in RUNNING:
            with self.console.status(f"taking a step apart at {num_running} running"):
                split: PhaseSplit = ramet.call("phases", num_running, prompts, steps)
            self.samples.append(
                Sample(case=f"step, {num_running} running", system=RAMET, metrics=split.metrics())
            )

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.console.print(f"[yellow]{text}", markup=True)


def report(record: Record, console: Console) -> None:
    """The two tables."""
    serving = [row for row in record.medians if row.case in SHAPES]
    titles = ", ".join(f"{name} {SHAPES[name].title}" for name in dict.fromkeys(row.case for row in serving))
    print_table(console, f"Serving, medians. {titles}", serving, COLUMNS)
    steps = [row for row in record.medians if row.case not in SHAPES]
    print_table(console, "Where the time of a decode step goes", steps, PHASE_COLUMNS)
    for note in record.notes:
        console.print(f"note: {note}", markup=False)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.offline", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--out", type=Path, help="folder for offline.json and offline.png; absent: print only")
    parser.add_argument("--model", default="smollm2", help="as Engine takes it (default: smollm2)")
    parser.add_argument(
        "--workloads", type=some_of(list(SHAPES)), default=list(SHAPES), help="such as W1,W2 (default: all)"
    )
    parser.add_argument("--reps", type=int, help="repetitions, medians are reported (default: 3; 1 if quick)")
    parser.add_argument("--baseline", choices=("transformers", "none"), default="transformers")
    parser.add_argument(
        "--setting", type=_setting, action="append", default=[], help="of the engine: name=value"
    )
    parser.add_argument("--patience", type=float, help="seconds that a baseline has at least (default: 120)")
    parser.add_argument("--quick", action="store_true", help="about a tenth of the work: a look, not a figure")
    parser.add_argument(
        "--synthetic", action="store_true", help="generated prompts, also where recorded ones exist"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the generated prompts")
    options = parser.parse_args(arguments)
    options.reps = options.reps or (1 if options.quick else 3)
    options.patience = options.patience or (30.0 if options.quick else 120.0)
    return options


def _setting(text: str) -> tuple[str, object]:
    """``threads=2`` -> ("threads", 2); true, false and none are what they are in Python."""
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words and name != "quantization":
        return name, words[value.lower()]
    return name, int(value) if value.lstrip("-").isdigit() else value


def main(arguments: Sequence[str] | None = None) -> Record:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    console = table_console()
    benchmark = Benchmark(options, console, samples=[], notes=[])
    if options.quick:
        benchmark.notes.append("--quick: shortened workloads; not comparable with full ones")
    if not options.synthetic:
        try:
            benchmark.workload("W2", 0)
        except SharedDataMissingError as missing:
            options.synthetic = True
            benchmark.notes.append(f"generated prompts instead of the recorded ones: {missing}")
            console.print(benchmark.notes[-1], markup=False)
    benchmark.run()
    record = new_record(
        "offline",
        samples=benchmark.samples,
        seed=options.seed,
        settings={name: str(value) for name, value in vars(options).items()},
        notes=benchmark.notes,
    )
    report(record, console)
    if options.out is not None:
        path = write(record, options.out)
        bar_plots(
            record,
            path.with_suffix(".png"),
            [
                ("output_tokens_per_s", "output tokens/s", False),
                ("ttft_mean_ms", "TTFT, ms", True),
                ("tpot_median_ms", "TPOT, ms", True),
                ("cached_share", "cached share of the prompt", False),
            ],
        )
        console.print(f"wrote {path} and {path.with_suffix('.png')}", markup=False)
    return record


if __name__ == "__main__":
    main()
