"""Load on an OpenAI-compatible server: `ramet serve`, which this starts, or any other one.

    python -m benchmarks.serving --out benchmarks/results
    python -m benchmarks.serving --overhead --workloads unique --loads closed
    python -m benchmarks.serving --url http://127.0.0.1:30000 --model org/name --rate 8

Workloads: "unique" prompts, "shared" prefixes, recorded "agents" scaled down (left out where they are not
there). Loads: "closed", so many clients that each wait for their answer, and "poisson", arrivals that wait for
nobody. All calls are streamed chat completions. Clocks are the clients': TTFT runs from sending a call, time in
the queue included. Goodput counts the calls that kept both objectives. --overhead runs the same calls on an
engine in process and on the server, in turns.
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks import http_overhead
from benchmarks.choices import some_of
from benchmarks.load_client import ServedCall, Target, open_client
from benchmarks.load_driver import QUANTILES, LoadRun, Objectives, closed_loop, load_metrics, poisson_arrivals
from benchmarks.load_shapes import Chain, TraceScale, recorded_agents, shared_prefixes, unique_prompts
from benchmarks.record import Record, Sample, bar_plots, new_record, print_table, table_console, write
from benchmarks.workers import Worker
from benchmarks.workloads import SharedDataMissingError
from ramet import Runtime

WORKLOADS = ("unique", "shared", "agents")
LOADS = ("closed", "poisson")
IN_PROCESS, OVER_HTTP = "in process", "over HTTP"
STREAMS = 32
"""At once, where HTTP is compared with the engine in process."""
QUICK_SCALE = TraceScale(sessions=2, calls=3)

RATES = [
    ("requests", "calls", ".0f"),
    ("failed", "failed", ".0f"),
    ("requests_per_s", "calls/s", ".2f"),
    ("output_tokens_per_s", "output tokens/s", ".0f"),
    ("total_tokens_per_s", "all tokens/s", ".0f"),
    ("goodput_per_s", "goodput/s", ".2f"),
    ("good_share", "good", ".0%"),
    ("cached_share", "cached", ".1%"),
    ("same_answers", "same answers", ".0%"),
    ("wall_s", "s", ".1f"),
    ("cpu_s", "CPU s", ".1f"),
    ("engine_cpu_s", "engine", ".1f"),
    ("server_cpu_s", "server", ".1f"),
    ("client_cpu_s", "client", ".1f"),
]
TIMES = [
    (
        f"{name}_{at}_ms",
        f"{name.upper()} {at}" if at == "p50" else at,
        ".0f" if name in ("ttft", "e2e") else ".1f",
    )
    for name in ("ttft", "tpot", "itl", "e2e")
    for at in QUANTILES
]


@dataclass(slots=True)
class Benchmark:
    """One run of this module. ``samples`` and ``notes`` grow as it goes."""

    options: argparse.Namespace
    console: Console
    samples: list[Sample]
    notes: list[str]

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            target, server_pid = self._target(stack)
            asyncio.run(self._warm_up(target))
            for repetition in range(self.options.reps):
                for workload in self.options.workloads:
                    for load in self.options.loads:
                        self._load(target, workload, load, repetition)
            if self.options.overhead and server_pid is not None:
                self._overhead(target, server_pid)

    def _target(self, stack: contextlib.ExitStack) -> tuple[Target, int | None]:
        """With the process id of the server, where this started it."""
        options = self.options
        if options.url is not None:
            return Target(options.url, options.model, options.api_key, options.ignore_eos), None
        with self.console.status(f"starting ramet serve with {options.model}"):
            runtime = stack.enter_context(Runtime(options.model, **dict(options.setting)))
        target = Target(runtime.base_url, runtime.info.model, runtime.api_key, options.ignore_eos)
        return target, runtime.process_id

    async def _warm_up(self, target: Target) -> None:
        """Raises RuntimeError where a call fails: the address, the model or the key is wrong."""
        async with open_client(target, self.options.timeout) as client:
            run = await closed_loop(unique_prompts(4, 8, f"warm-up {self.options.seed}"), 4, client.call)
        if failed := [call.error for call in run.calls if call.error is not None]:
            raise RuntimeError(f"{target.chat_url} does not answer: {failed[0]}")

    def _load(self, target: Target, workload: str, load: str, repetition: int) -> None:
        seed = f"{self.options.seed} {workload} {load} {repetition}"
        try:
            chains = self._chains(workload, seed)
        except SharedDataMissingError as missing:
            self._note(f"{workload} left out: {missing}")
            return
        with self.console.status(f"{workload}, {self._title(load)}, repetition {repetition + 1}"):
            run = asyncio.run(self._send(target, chains, load, seed))
        self._add(workload, self._title(load), repetition, load_metrics(run, self._objectives()))
        self._note_failures(workload, run)

    def _chains(self, workload: str, seed: str) -> list[Chain]:
        options = self.options
        match workload:
            case "unique":
                return unique_prompts(options.requests, options.max_tokens, seed)
            case "shared":
                return shared_prefixes(options.requests, options.max_tokens, seed)
            case _:
                scale = QUICK_SCALE if options.quick else TraceScale(max_tokens=options.max_tokens)
                return recorded_agents(scale, seed)

    async def _send(self, target: Target, chains: list[Chain], load: str, seed: str) -> LoadRun:
        options = self.options
        async with open_client(target, options.timeout) as client:
            if load == "closed":
                return await closed_loop(chains, options.concurrency, client.call)
            return await poisson_arrivals(chains, options.rate, seed, client.call)

    def _overhead(self, target: Target, server_pid: int) -> None:
        """In turns, each repetition with prompts that neither has seen, and the order changed each time."""
        options, settings = self.options, dict(self.options.setting)
        with Worker(IN_PROCESS, http_overhead.make, model=options.model, settings=settings) as engine:
            engine.call("run", unique_prompts(4, 8, f"warm-up {options.seed}"), 4)
            for repetition in range(options.overhead_reps):
                chains = unique_prompts(
                    options.streams, options.max_tokens, f"{options.seed} http {repetition}"
                )
                with self.console.status(f"HTTP and the engine in process, repetition {repetition + 1}"):
                    if repetition % 2:
                        over, over_cpu = self._over_http(target, server_pid, chains)
                        inside, inside_cpu = engine.call("run", chains, options.streams)
                    else:
                        inside, inside_cpu = engine.call("run", chains, options.streams)
                        over, over_cpu = self._over_http(target, server_pid, chains)
                self._note_failures("overhead", over)
                title = f"{options.streams} streams"
                found = {"cpu_s": inside_cpu, "same_answers": 1.0}
                self._add(title, IN_PROCESS, repetition, {**load_metrics(inside, self._objectives()), **found})
                found = {**over_cpu, "same_answers": http_overhead.same_answers(inside, over)}
                self._add(title, OVER_HTTP, repetition, {**load_metrics(over, self._objectives()), **found})

    def _over_http(
        self, target: Target, server_pid: int, chains: list[Chain]
    ) -> tuple[LoadRun, dict[str, float]]:
        """With the CPU seconds that it took, by part and in all; where they cannot be read, without."""
        before = http_overhead.cpu_seconds(server_pid)
        run = asyncio.run(http_overhead.run_over_http(target, chains, self.options.timeout))
        parts = {name: now - before[name] for name, now in http_overhead.cpu_seconds(server_pid).items()}
        return run, {**parts, "cpu_s": sum(parts.values())} if parts else {}

    def _title(self, load: str) -> str:
        options = self.options
        return f"{options.concurrency} clients" if load == "closed" else f"poisson {options.rate:g}/s"

    def _objectives(self) -> Objectives:
        return Objectives(self.options.slo_ttft_ms / 1e3, self.options.slo_tpot_ms / 1e3)

    def _add(self, case: str, system: str, repetition: int, metrics: dict[str, float | None]) -> None:
        self.console.print(f"{case}, {system}: {metrics['wall_s']:.1f} s", style="dim")
        self.samples.append(Sample(case=case, system=system, repetition=repetition, metrics=metrics))

    def _note_failures(self, case: str, run: LoadRun) -> None:
        failed: list[ServedCall] = [call for call in run.calls if call.error is not None]
        if failed:
            self._note(f"{case}: {len(failed)} calls failed, the first with {failed[0].error}")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.console.print(text, markup=False)


def http_share(record: Record, metric: str) -> float | None:
    """What HTTP takes more of ``metric`` than the engine in process: the ratio of their medians, less 1. None
    where it was not measured.
    """
    rows = {
        row.system: row.metrics.get(metric) for row in record.medians if row.system in (IN_PROCESS, OVER_HTTP)
    }
    over, inside = rows.get(OVER_HTTP), rows.get(IN_PROCESS)
    return over / inside - 1 if over and inside else None


def paired_shares(record: Record) -> list[float]:
    """As ``http_share`` of ``wall_s``, for each repetition by itself."""
    walls = {
        (sample.system, sample.repetition): sample.metrics["wall_s"] or 0.0
        for sample in record.samples
        if sample.system in (IN_PROCESS, OVER_HTTP)
    }
    count = len(walls) // 2
    return [walls[OVER_HTTP, index] / walls[IN_PROCESS, index] - 1 for index in range(count)]


def report(record: Record, console: Console) -> None:
    objectives = (
        f"{record.settings['slo_ttft_ms']} ms to the first token, {record.settings['slo_tpot_ms']} a token"
    )
    print_table(console, f"Load, medians; good: {objectives}", record.medians, RATES)
    print_table(console, "Times of the calls, ms", record.medians, TIMES)
    whole, first = http_share(record, "wall_s"), http_share(record, "ttft_mean_ms")
    if whole is not None and first is not None:
        cpu_share = http_share(record, "cpu_s")
        cpu = "" if cpu_share is None else f", {cpu_share:+.1%} of the CPU time, the client's included"
        paired, streams = paired_shares(record), record.settings["streams"]
        console.print(
            f"HTTP over the engine in process, {streams} streams: {whole:+.1%} of the whole time "
            f"(by repetition {min(paired):+.1%} to {max(paired):+.1%}), "
            f"{first:+.1%} of the time to the first token{cpu}",
            markup=False,
        )
    for note in record.notes:
        console.print(f"note: {note}", markup=False)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--out", type=Path, help="folder for serving.json and serving.png; absent: print only")
    add("--model", default="smollm2", help="as ramet serve takes it, or what the peer calls it")
    add("--url", help="of a server that runs already; absent: ramet serve is started and ended")
    add("--api-key", help="of that server")
    add("--setting", type=_setting, action="append", default=[], help="of ramet serve: name=value")
    add("--workloads", type=some_of(WORKLOADS), default=list(WORKLOADS), help=", ".join(WORKLOADS))
    add("--loads", type=some_of(LOADS), default=list(LOADS), help=", ".join(LOADS))
    add("--requests", type=int, help="calls of unique and shared (default: 64; 16 if quick)")
    add("--max-tokens", type=int, help="of an answer (default: 64; 16 if quick)")
    add("--concurrency", type=int, default=16, help="clients of the closed loop (default: 16)")
    add("--rate", type=float, default=4.0, help="calls a second of poisson (default: 4)")
    add("--slo-ttft-ms", type=float, default=1000.0, help="to the first token (default: 1000)")
    add("--slo-tpot-ms", type=float, default=100.0, help="per token behind it (default: 100)")
    add("--no-ignore-eos", dest="ignore_eos", action="store_false", help="for servers that refuse ignore_eos")
    add("--overhead", action="store_true", help="also: the same calls over HTTP and in process")
    add("--streams", type=int, default=STREAMS, help=f"at once, for that (default: {STREAMS})")
    add("--overhead-reps", type=int, help="repetitions of it (default: 6; 2 if quick)")
    add("--reps", type=int, default=1, help="repetitions of the loads (default: 1)")
    add("--timeout", type=float, default=300.0, help="seconds without a byte until a call has failed")
    add("--quick", action="store_true", help="a quarter of the work: a look, not a figure")
    add("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.url is not None and options.overhead:
        parser.error("--overhead compares with the server that it starts; leave out --url")
    options.requests = options.requests or (16 if options.quick else 64)
    options.max_tokens = options.max_tokens or (16 if options.quick else 64)
    options.overhead_reps = options.overhead_reps or (2 if options.quick else 6)
    return options


def _setting(text: str) -> tuple[str, str | int]:
    """``kv_tokens=8192`` -> ("kv_tokens", 8192)."""
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    return name, int(value) if value.isdigit() else value


def main(arguments: Sequence[str] | None = None) -> Record:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    console = table_console()
    benchmark = Benchmark(options, console, samples=[], notes=[])
    if options.quick:
        benchmark.notes.append("--quick: shortened loads; not comparable with full ones")
    benchmark.run()
    settings = {name: str(value) for name, value in vars(options).items() if name != "api_key"}
    record = new_record(
        "serving", samples=benchmark.samples, seed=options.seed, settings=dict(settings), notes=benchmark.notes
    )
    report(record, console)
    if options.out is not None:
        path = write(record, options.out)
        bar_plots(
            record,
            path.with_suffix(".png"),
            [
                ("output_tokens_per_s", "output tokens/s", False),
                ("goodput_per_s", "goodput, calls/s", False),
                ("ttft_p50_ms", "TTFT median, ms", True),
                ("tpot_p50_ms", "TPOT median, ms", True),
                ("cached_share", "cached share of the prompts", False),
            ],
        )
        console.print(f"wrote {path} and {path.with_suffix('.png')}", markup=False)
    return record


if __name__ == "__main__":
    main()
