"""Programs of many calls: compiled, interpreted, without the prefix cache, as requests that know nothing of
each other, on a server, and as requests of OpenAI's API.

    python -m benchmarks.programs --out benchmarks/results
    python -m benchmarks.programs --quick --cases judge,react

All on the real model, one after another, each on an empty cache; "endpoint" is compiled, on ``ramet serve`` in
a process of its own, and "OpenAI requests" the same programs on the same server call by call, over its
OpenAI-compatible API. "of bound" is the share of
prompt tokens that came from the cache, by what a cache without limits would have found in the same requests in
the order in which they were made (the engine may take them in a better one). "computed" are the prompt tokens
that went through the model. A program's latency does not count its wait for a place.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.choices import some_of
from benchmarks.program_cases import ProgramCase, case_names, make_case
from benchmarks.program_runner import PARALLEL, ProgramRun, replay_requests, run_programs
from benchmarks.program_servers import ServedModel, run_on_endpoint, run_over_openai
from benchmarks.record import Record, Sample, new_record, print_table, table_console, write
from ramet import Engine, Runtime, UnsupportedError

COMPILED, INTERPRETED, UNCACHED, PLAIN = "compiled", "interpreted", "cache off", "plain requests"
ENDPOINT, OPENAI = "endpoint", "OpenAI requests"
QUICK_SCALE = 0.34
WARMING = "react"
"""A case with all kinds of calls, that is run first and not counted."""

COLUMNS = [
    ("calls", "calls", ".0f"),
    ("prompt_tokens", "prompt tokens", ",.0f"),
    ("computed_tokens", "computed", ",.0f"),
    ("hit_share", "hit", ".1%"),
    ("of_bound", "of bound", ".1%"),
    ("latency_mean_s", "latency s", ".2f"),
    ("latency_p99_s", "p99", ".2f"),
    ("programs_per_s", "programs/s", ".2f"),
    ("output_tokens_per_s", "tokens/s", ".0f"),
    ("same_texts", "same texts", ".0%"),
]


@dataclass(slots=True)
class Benchmark:
    """One run of this module. ``samples`` and ``notes`` grow as it goes."""

    options: argparse.Namespace
    console: Console
    samples: list[Sample]
    notes: list[str]

    def run(self) -> None:
        settings = {"kv_tokens": self.options.kv_tokens, "threads": self.options.threads}
        with (
            Engine(self.options.model, **settings) as engine,
            Engine(self.options.model, enable_prefix_cache=False, **settings) as uncached,
            Runtime(self.options.model, **settings) as runtime,
        ):
            served = ServedModel(runtime)
            warming_case = make_case(WARMING, QUICK_SCALE, self.options.seed)
            for warming in (engine, uncached):
                run_programs(warming_case, warming, compiled=True)
            run_on_endpoint(warming_case, served)
            for name in self.options.cases:
                case = make_case(name, QUICK_SCALE if self.options.quick else 1.0, self.options.seed)
                missing = case.grammars - set(engine.info.grammars)
                if missing:
                    self.notes.append(f"{name} left out: this engine does not enforce {', '.join(missing)}")
                    continue
                for repetition in range(self.options.reps):
                    self._run_case(case, engine, uncached, repetition)
                    self._run_served(case, served, engine.stats().page_size, repetition)

    def _run_case(self, case: ProgramCase, engine: Engine, uncached: Engine, repetition: int) -> None:
        page_size = engine.stats().page_size
        compiled = self._status(case, COMPILED, lambda: run_programs(case, engine, compiled=True))
        interpreted = self._status(case, INTERPRETED, lambda: run_programs(case, engine, compiled=False))
        without = self._status(case, UNCACHED, lambda: run_programs(case, uncached, compiled=True))
        plain = self._status(case, PLAIN, lambda: replay_requests(interpreted, engine))
        for system, run in (
            (COMPILED, compiled),
            (INTERPRETED, interpreted),
            (UNCACHED, without),
            (PLAIN, plain),
        ):
            found = run.metrics(page_size, has_cache=system != UNCACHED)
            alike = [text == other for text, other in zip(run.texts, compiled.texts, strict=True)]
            found["same_texts"] = None if system == PLAIN else sum(alike) / len(alike)
            self.samples.append(Sample(case=case.title, system=system, repetition=repetition, metrics=found))

    def _run_served(self, case: ProgramCase, served: ServedModel, page_size: int, repetition: int) -> None:
        runs = {ENDPOINT: self._status(case, ENDPOINT, lambda: run_on_endpoint(case, served))}
        try:
            runs[OPENAI] = self._status(case, OPENAI, lambda: run_over_openai(case, served))
        except UnsupportedError as error:
            self.notes.append(f"{case.title} over OpenAI's API left out: {error.message}")
        for system, run in runs.items():
            found = run.metrics(page_size, has_cache=True)
            self.samples.append(Sample(case=case.title, system=system, repetition=repetition, metrics=found))

    def _status(self, case: ProgramCase, system: str, run: Callable[[], ProgramRun]) -> ProgramRun:
        with self.console.status(f"{case.title}, {system}"):
            return run()


def report(record: Record, console: Console) -> None:
    print_table(console, f"Programs, {PARALLEL} at a time", record.medians, COLUMNS)
    bounds = [row.metrics["of_bound"] for row in record.medians if row.system == COMPILED]
    shares = [share for share in bounds if share is not None]
    if shares:
        console.print(
            f"compiled: {min(shares):.1%} to {max(shares):.1%} of what a cache without limits finds",
            markup=False,
        )
    for note in record.notes:
        console.print(f"note: {note}", markup=False)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.programs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--out", type=Path, help="folder for programs.json; absent: print only")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--cases", type=some_of(case_names()), default=case_names(), help=", ".join(case_names())
    )
    parser.add_argument("--kv-tokens", type=int, default=16384, help="size of each engine's KV pool")
    parser.add_argument("--threads", type=int, help="CPU threads of one operation (default: one a core)")
    parser.add_argument("--reps", type=int, default=1, help="repetitions (default: 1)")
    parser.add_argument("--quick", action="store_true", help="a third of the work: a look, not a figure")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> Record:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    console = table_console()
    benchmark = Benchmark(options, console, samples=[], notes=[])
    benchmark.run()
    record = new_record(
        "programs",
        samples=benchmark.samples,
        seed=options.seed,
        settings={name: str(value) for name, value in vars(options).items()},
        notes=benchmark.notes,
    )
    report(record, console)
    if options.out is not None:
        console.print(f"wrote {write(record, options.out)}", markup=False)
    return record


if __name__ == "__main__":
    main()
