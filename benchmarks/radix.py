"""The radix cache and the scheduler by themselves: hit rates against their bound, and what both cost.

    python -m benchmarks.radix --out benchmarks/results
    python -m benchmarks.radix --quick --workloads few_shot,conversation

Hit rates come from the real scheduler and cache with an executor that computes nothing. The bound is what a
cache without limits would find. Costs are the fastest or the median of many calls, on one thread.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.cache_cost import match_costs
from benchmarks.choices import some_of
from benchmarks.overhead import tree_overhead
from benchmarks.prefixes import (
    PrefixRequest,
    chats,
    few_shot,
    from_trace,
    infinite_hit_share,
    no_reuse,
    thought_trees,
)
from benchmarks.radix_plot import plot
from benchmarks.record import Record, Sample, new_record, print_table, table_console, write
from benchmarks.simulation import EVICTIONS, POLICIES, CacheSetup, ordering_cost, simulate, step_costs
from benchmarks.workloads import SharedDataMissingError, read_trace

PAGE_SIZE = 16
SYNTHETIC: dict[str, Callable[[int, float], list[PrefixRequest]]] = {
    "few_shot": few_shot,
    "chats": chats,
    "thought_trees": thought_trees,
    "no_reuse": no_reuse,
}
TRACES = ("conversation", "synthetic")
SYNTHETIC_CACHES = (20_000, 100_000)
TRACE_CACHES = (200_000, 1_000_000, 4_000_000)
TRACE_OUTPUT_TOKENS = 4
"""Outputs of the traces are cut: they are in no later prompt, and only keep the simulation busy."""

HIT_COLUMNS = [
    ("hit_share", "hit", ".1%"),
    ("bound_share", "bound", ".1%"),
    ("of_bound", "of bound", ".1%"),
    ("preemptions", "preempted", ".0f"),
    ("evicted_tokens", "evicted", ".0f"),
    ("seconds", "s", ".2f"),
]
MATCH_COLUMNS = [
    ("match_hit_us", "1,024 found µs", ".1f"),
    ("match_half_us", "512 found µs", ".1f"),
    ("match_miss_us", "none found µs", ".1f"),
    ("tree_nodes", "nodes", ".0f"),
]
STEP_COLUMNS = [
    ("step_median_us", "step µs", ".0f"),
    ("step_per_request_us", "per request", ".2f"),
    ("first_us", "first with queue", ".0f"),
    ("add_us", "add one", ".1f"),
    ("admit_ms", "admit ms", ".2f"),
    ("whole_ms", "order all ms", ".1f"),
]
OVERHEAD_COLUMNS = [
    ("cache_on_ms", "scheduling, cache on ms", ".1f"),
    ("cache_off_ms", "off ms", ".1f"),
    ("tree_ms", "tree ms", ".1f"),
    ("model_s", "real model s", ".2f"),
    ("tree_share", "tree's share", ".2%"),
]


@dataclass(slots=True)
class Benchmark:
    """One run of this module. ``samples`` and ``notes`` grow as it goes."""

    options: argparse.Namespace
    console: Console
    samples: list[Sample]
    notes: list[str]

    def run(self) -> None:
        for name in self.options.workloads:
            self._hit_rates(name)
        self._match_costs()
        self._scheduling_costs()
        if self.options.model != "none":
            self._overhead()

    def _hit_rates(self, name: str) -> None:
        scale = 0.25 if self.options.quick else 1.0
        caches: Sequence[int]
        if name in SYNTHETIC:
            requests, caches = SYNTHETIC[name](self.options.seed, scale), SYNTHETIC_CACHES
        else:
            try:
                trace = read_trace(name, round(self.options.requests * scale))
            except SharedDataMissingError as missing:
                self.notes.append(f"{name} left out: {missing}")
                return
            requests, caches = from_trace(trace, TRACE_OUTPUT_TOKENS), TRACE_CACHES
        bound = infinite_hit_share(requests, PAGE_SIZE)
        for cache_tokens, policy, eviction in self._setups(caches):
            setup = CacheSetup(cache_tokens, PAGE_SIZE, policy, eviction)
            with self.console.status(f"{name}, {cache_tokens} tokens, {policy}, {eviction}"):
                done = simulate(requests, setup)
            metrics: dict[str, float | None] = {
                "hit_share": done.hit_share,
                "bound_share": bound,
                "of_bound": done.hit_share / bound if bound else None,
                "preemptions": float(done.num_preemptions),
                "evicted_tokens": float(done.num_evicted_tokens),
                "cache_tokens": float(cache_tokens),
                "seconds": done.seconds,
            }
            self._add(f"{name}, {cache_tokens:,}", f"{policy}, {eviction}", metrics)

    def _setups(self, caches: Sequence[int]) -> Iterator[tuple[int, str, str]]:
        for cache_tokens in caches:
            for policy in POLICIES:
                for eviction in EVICTIONS:
                    yield cache_tokens, policy, eviction

    def _match_costs(self) -> None:
        sizes = (10, 100, 1000) if self.options.quick else (10, 100, 1000, 4000)
        for repetition in range(self.options.reps):
            for page_size in (1, PAGE_SIZE):
                for num_prompts in sizes:
                    with self.console.status(f"match in a tree of {num_prompts} prompts"):
                        found = match_costs(num_prompts, page_size, self.options.seed)
                    self._add(f"tree of {num_prompts:,}", f"page size {page_size}", found, repetition)

    def _scheduling_costs(self) -> None:
        for repetition in range(self.options.reps):
            for num_running in (1, 32, 256):
                for num_waiting in (0, 10_000):
                    with self.console.status(f"{num_running} running, {num_waiting} waiting"):
                        found = step_costs(num_running, num_waiting, 100)
                    self._add(f"{num_running} running", f"{num_waiting:,} waiting", found, repetition)
            self._add("ordering", "10,000 waiting", ordering_cost(10_000), repetition)

    def _overhead(self) -> None:
        with self.console.status("overhead of the tree without reuse"):
            found = tree_overhead(self.options.model, self.options.seed, quick=self.options.quick)
        self._add("no reuse", self.options.model, found)

    def _add(self, case: str, system: str, metrics: dict[str, float | None], repetition: int = 0) -> None:
        self.samples.append(Sample(case=case, system=system, repetition=repetition, metrics=metrics))


def report(record: Record, console: Console) -> None:
    """A table for each question."""
    tables = [
        ("Hit rates: share of the prompts' tokens found in the cache", "hit_share", HIT_COLUMNS),
        ("One look into the tree, by its size (prompts of 1,024 tokens)", "match_hit_us", MATCH_COLUMNS),
        ("Scheduling a decode step, schedule and update together", "step_median_us", STEP_COLUMNS),
        ("Ordering the queue, 16 kinds of prompt", "whole_ms", STEP_COLUMNS),
        ("What the tree costs where nothing is shared", "tree_share", OVERHEAD_COLUMNS),
    ]
    for title, metric, columns in tables:
        rows = [row for row in record.medians if metric in row.metrics]
        if rows:
            print_table(console, title, rows, columns)
    for note in record.notes:
        console.print(f"note: {note}", markup=False)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.radix", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--out", type=Path, help="folder for radix.json and radix.png; absent: print only")
    parser.add_argument(
        "--model", default="smollm2", help="for the tree's share of the time; none: leave it out"
    )
    parser.add_argument(
        "--workloads",
        type=some_of([*SYNTHETIC, *TRACES]),
        default=[*SYNTHETIC, *TRACES],
        help="of the hit rates",
    )
    parser.add_argument(
        "--requests", type=int, default=1000, help="leading requests of each trace (default: 1000)"
    )
    parser.add_argument("--reps", type=int, help="repetitions of the costs (default: 3; 1 if quick)")
    parser.add_argument("--quick", action="store_true", help="a quarter of the work: a look, not a figure")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    options.reps = options.reps or (1 if options.quick else 3)
    return options


def main(arguments: Sequence[str] | None = None) -> Record:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    console = table_console()
    benchmark = Benchmark(options, console, samples=[], notes=[])
    benchmark.run()
    record = new_record(
        "radix",
        samples=benchmark.samples,
        seed=options.seed,
        settings={name: str(value) for name, value in vars(options).items()},
        notes=benchmark.notes,
    )
    report(record, console)
    if options.out is not None:
        path = write(record, options.out)
        plot(record, path.with_suffix(".png"))
        console.print(f"wrote {path} and {path.with_suffix('.png')}", markup=False)
    return record


if __name__ == "__main__":
    main()
