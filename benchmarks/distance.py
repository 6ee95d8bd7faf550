"""Programs on a server that is some way off: sent whole, and called call by call.

    python -m benchmarks.distance --out benchmarks/results
    python -m benchmarks.distance --round-trip-ms 50 --reps 5

One program at a time, on the real model behind ``ramet serve``, through a proxy that delays every byte.
"whole": compiled, sent to the server as data. "call by call": the same program, each call a request. Both say
the same. "near s" is the latency through a proxy that does not delay, "round trips" is what the proxy counted,
one after the other or at once. The table has the least of all repetitions, which a busy machine disturbs least.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from benchmarks.record import Record, Sample, medians, new_record, print_table, table_console, write
from benchmarks.slow_way import SlowWay, slow_way
from examples.chat_turns import TURNS, converse
from examples.skeleton_of_thought import write_by_skeleton
from ramet import Program, ProgramState, Runtime, RuntimeEndpoint, assistant, function, gen, user

WHOLE, BY_CALLS = "whole", "call by call"
COLUMNS = [
    ("latency_s", "latency s", ".3f"),
    ("near_s", "near s", ".3f"),
    ("round_trips", "round trips", ".0f"),
]


@function
def short_answers(s: ProgramState, count: int) -> list[str]:
    """Calls in a row that take less time than the way to them."""
    for number in range(count):
        s += user(f"Say a word with {number + 3} letters.")
        s += assistant(gen(f"word{number}", max_tokens=2, temperature=0))
    return [s["word0"]]


@function
def votes(s: ProgramState, count: int) -> str:
    """Branches at once, and one answer behind them."""
    s += user("Is the sea salty?")
    branches = s.fork(count)
    for number, branch in enumerate(branches):
        branch += user(f"Answer as number {number}.") + assistant(gen("vote", max_tokens=4, temperature=0))
    branches.join("concate_and_append")
    s += user("And together?") + assistant(gen("together", max_tokens=4, temperature=0))
    return str(s["together"])


@dataclass(frozen=True, slots=True)
class Case:
    title: str
    program: Program
    arguments: dict[str, Any]


CASES = (
    Case("ten short answers in a row", short_answers, {"count": 10}),
    Case("eight votes at once", votes, {"count": 8}),
    Case("chat of short turns", converse, {"turns": TURNS, "max_tokens": 16}),
    Case("skeleton of thought", write_by_skeleton, {"question": "How does one bake bread?", "num_points": 3}),
)


def measure(options: argparse.Namespace) -> list[Sample]:
    samples: list[Sample] = []
    seconds = options.round_trip_ms / 1000
    with ExitStack() as stack:
        runtime = stack.enter_context(Runtime(options.model, threads=options.threads))
        port = urlparse(runtime.base_url).port
        assert port is not None
        near, far = (stack.enter_context(slow_way(port, time)) for time in (0.0, seconds))
        ways = {way: _endpoints(stack, way, runtime.api_key) for way in (near, far)}
        for case in options.cases:
            for repetition in range(-1, options.reps):
                found = {
                    (name, way): _run(case, endpoint, way)
                    for way, endpoints in ways.items()
                    for name, endpoint in endpoints.items()
                }
                if len({text for text, _, _ in found.values()}) > 1:
                    raise RuntimeError(f"{case.title}: the texts differ")
                if repetition < 0:
                    continue  # The first is to warm what is warmed.
                for name in (WHOLE, BY_CALLS):
                    _, latency, turns = found[name, far]
                    metrics: dict[str, float | None] = {
                        "latency_s": latency,
                        "near_s": found[name, near][1],
                        "round_trips": turns,
                    }
                    samples.append(Sample(case=case.title, system=name, repetition=repetition, metrics=metrics))
    return samples


def least(samples: Sequence[Sample]) -> list[Sample]:
    """Of each case and system one, with the least of each metric."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.case, sample.system), []).append(sample)
    found: list[Sample] = []
    for (case, system), group in groups.items():
        metrics = {
            name: min(value for one in group if (value := one.metrics[name]) is not None)
            for name, _, _ in COLUMNS
        }
        found.append(Sample(case=case, system=system, metrics={**metrics}))
    return found


def _endpoints(stack: ExitStack, way: SlowWay, api_key: str | None) -> dict[str, RuntimeEndpoint]:
    url = f"http://127.0.0.1:{way.port}"
    return {
        name: stack.enter_context(RuntimeEndpoint(url, api_key, whole_programs=name == WHOLE))
        for name in (WHOLE, BY_CALLS)
    }


def _run(case: Case, endpoint: RuntimeEndpoint, way: SlowWay) -> tuple[str, float, float]:
    """The text, seconds, and round trips."""
    turns, started = way.num_turns, time.perf_counter()
    state = case.program.compile().run(backend=endpoint, **case.arguments)
    seconds = time.perf_counter() - started
    return state.text(), seconds, float(way.num_turns - turns)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.distance", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--out", type=Path, help="folder for distance.json; absent: print only")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--round-trip-ms", type=float, default=20.0, help="way there and back (default: 20)")
    parser.add_argument("--threads", type=int, help="CPU threads of one operation (default: one a core)")
    parser.add_argument("--reps", type=int, default=5, help="repetitions (default: 5)")
    parser.add_argument("--cases", type=int, default=len(CASES), help="how many of the cases (default: all)")
    options = parser.parse_args(arguments)
    options.cases = CASES[: options.cases]
    return options


def main(arguments: Sequence[str] | None = None) -> Record:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    console = table_console()
    samples = measure(options)
    settings: dict[str, object] = {name: str(value) for name, value in vars(options).items() if name != "cases"}
    record = new_record("distance", samples=samples, seed=0, settings=settings, notes=[])
    print_table(console, f"A server {options.round_trip_ms:g} ms away", medians(least(samples)), COLUMNS)
    if options.out is not None:
        console.print(f"wrote {write(record, options.out)}", markup=False)
    return record


if __name__ == "__main__":
    main()
