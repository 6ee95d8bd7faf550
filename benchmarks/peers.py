"""ramet's server and its peers', in turns in one run: llama.cpp's, and vLLM's of another environment.

    python -m benchmarks.peers --llama-server PATH --llama-model Q4_0=FILE.gguf \\
        --vllm PATH --vllm-model fp32=FOLDER --vllm-model int8=FOLDER --reps 5 --out benchmarks/results

Every peer is optional: what is missing is named, with what installs it. Each server is started once, alone,
and then suspended; each workload is run on one after the other, the order changed each repetition, while all
others stay suspended (SIGSTOP), so that no thread pool of theirs takes a core. ``--fresh`` starts and ends them
instead for every repetition, one at a time. No server sees a prompt twice. Linux only.
"""

import argparse
import asyncio
import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.choices import some_of
from benchmarks.lean_client import LeanClient
from benchmarks.load_client import Target
from benchmarks.peer_loads import NAMES, TITLES, Load, make_load, run_load, run_metrics, warm_up
from benchmarks.peer_servers import (
    PeerFailedError,
    PeerMissingError,
    PeerServer,
    RunningServer,
    llama_server,
    ramet_server,
    vllm_server,
)
from benchmarks.peer_targets import RAMET, SERVER, verdicts
from benchmarks.record import Record, Sample, new_record, print_table, table_console, write
from benchmarks.rounds import machine_cpu_seconds
from benchmarks.workloads import NUM_VARIANTS, SharedDataMissingError

_T = TypeVar("_T")

COLUMNS = [
    ("output_tokens_per_s", "tokens/s", ".1f"),
    ("ttft_mean_ms", "TTFT ms", ".0f"),
    ("ttft_p99_ms", "p99", ".0f"),
    ("ttft_later_turns_ms", "later turns", ".0f"),
    ("tpot_median_ms", "TPOT ms", ".1f"),
    ("cached_share", "cached", ".1%"),
    ("valid_share", "valid", ".0%"),
    ("wrong", "wrong", ".0f"),
    ("failed", "failed", ".0f"),
    ("wall_s", "s", ".1f"),
    ("client_cpu_s", "client, CPU s", ".1f"),
    ("others_cores", "others, cores", ".2f"),
]
SERVER_COLUMNS = [("start_s", "start to first answer, s", ".1f"), ("peak_memory_mb", "peak memory, MB", ".0f")]


@dataclass(slots=True)
class Benchmark:
    """One run of this module. ``samples`` and ``notes`` grow as it goes."""

    options: argparse.Namespace
    console: Console
    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, servers: Sequence[PeerServer]) -> None:
        if self.options.fresh:
            for repetition in range(self.options.reps):
                for server in _turn(servers, repetition):
                    with self._started([server], repetition) as running:
                        self._repetition(running, repetition)
            return
        with self._started(servers, 0) as running:
            for repetition in range(self.options.reps):
                self._repetition(running, repetition)

    @contextlib.contextmanager
    def _started(self, servers: Sequence[PeerServer], repetition: int) -> Iterator[list[RunningServer]]:
        """Warm and suspended. One that fails leaves the list; what they cost in all is noted at the end."""
        with contextlib.ExitStack() as stack:
            running: list[RunningServer] = []
            for server in servers:
                one = self._start(server, stack)
                if one is not None:
                    running.append(one)
            yield running
            for one in running:
                costs: dict[str, float | None] = {
                    "start_s": one.start_seconds,
                    "peak_memory_mb": one.peak_memory() / 1e6,
                }
                name = one.server.name
                self.samples.append(Sample(case=SERVER, system=name, repetition=repetition, metrics=costs))

    def _start(self, server: PeerServer, stack: contextlib.ExitStack) -> RunningServer | None:
        """None where a peer failed. ramet's own failure ends the benchmark."""
        try:
            with self.console.status(f"starting {server.name}"):
                running = RunningServer(server, self.options.start_timeout)
                stack.callback(running.close)
                with running.awake() as target:
                    asyncio.run(self._warm_up(target, server.name))
        except PeerFailedError as error:
            self._failed(server.name, error)
            return None
        self.console.print(f"{server.name}: answered after {running.start_seconds:.1f} s", style="dim")
        return running

    async def _warm_up(self, target: Target, name: str) -> None:
        options = self.options
        client = LeanClient(target, options.timeout)
        calls = await warm_up(client, options.prompts_seed, options.quick)
        if failed := [call.error for call in calls if call.error is not None]:
            raise PeerFailedError(f"{name} does not answer as it should: {failed[0]}")

    def _repetition(self, running: list[RunningServer], repetition: int) -> None:
        options = self.options
        for name in options.workloads:
            variant = 1 + repetition % (NUM_VARIANTS - 1)
            load = make_load(name, variant, seed=options.prompts_seed, quick=options.quick)
            for one in _turn(list(running), repetition):
                try:
                    with self.console.status(f"{name}, repetition {repetition + 1}: {one.server.name}"):
                        self._measure(one, load, repetition)
                except PeerFailedError as error:
                    self._failed(one.server.name, error)
                    running.remove(one)

    def _measure(self, running: RunningServer, load: Load, repetition: int) -> None:
        load = replace(load, own_fields=running.server.schema_fields)
        with running.awake() as target:
            before, machine = running.cpu_seconds(), machine_cpu_seconds()
            client, started = time.process_time(), time.perf_counter()
            run = asyncio.run(run_load(load, LeanClient(target, self.options.timeout)))
            seconds = time.perf_counter() - started
            cpu = {
                "server_cpu_s": running.cpu_seconds() - before,
                "client_cpu_s": time.process_time() - client,
            }
            now = machine_cpu_seconds()
        others = None
        if now is not None and machine is not None:
            others = max(0.0, now - machine - sum(cpu.values())) / seconds
        metrics = {
            **run_metrics(load, run),
            **cpu,
            "others_cores": others,
            "peak_memory_mb": running.peak_memory() / 1e6,
        }
        name = running.server.name
        self.samples.append(Sample(case=load.name, system=name, repetition=repetition, metrics=metrics))
        self.console.print(f"{load.name} {repetition + 1} {name}: {run.wall:.1f} s", style="dim")
        if failed := [call.error for one in run.rounds for call in one if call.error is not None]:
            self.note(f"{load.name}, {name}: {len(failed)} calls failed, the first with {failed[0]}")

    def _failed(self, name: str, error: PeerFailedError) -> None:
        if name == RAMET:
            raise error
        self.note(f"{name} left out from here on: {error}")

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.console.print(text, style="yellow", markup=False)


def found_servers(options: argparse.Namespace, note: Callable[[str], None]) -> list[PeerServer]:
    """ramet first, then every peer that is there; of those that are not, a note each says what is missing.

    Raises PeerMissingError where it is ramet.
    """
    threads = options.threads
    makers: dict[str, Callable[[], PeerServer]] = {
        RAMET: partial(ramet_server, options.model, threads, options.ramet, dict(options.setting)),
        **{
            f"llama.cpp {name}": partial(llama_server, name, options.llama_server, path, threads)
            for name, path in options.llama_model
        },
        **{
            f"vllm {name}": partial(vllm_server, name, options.vllm, path, threads)
            for name, path in options.vllm_model
        },
    }
    if not options.llama_model:
        note("llama.cpp left out: no --llama-model NAME=FILE.gguf (llama-quantize makes Q4_0 of another GGUF)")
    if not options.vllm_model:
        note(
            "vllm left out: no --vllm-model NAME=FOLDER (python -m benchmarks.peer_models writes fp32 and int8)"
        )
    servers = []
    for name, make in makers.items():
        if options.only and not name.startswith(tuple(options.only)):
            continue
        try:
            servers.append(make())
        except PeerMissingError as missing:
            if name == RAMET:
                raise
            note(f"{name} left out: {missing}")
    return servers


def report(record: Record, console: Console) -> None:
    """The figures, and the targets that were set for them."""
    loads = [row for row in record.medians if row.case != SERVER]
    titles = ", ".join(f"{name} {TITLES[name]}" for name in dict.fromkeys(row.case for row in loads))
    print_table(console, f"Medians. {titles}", sorted(loads, key=lambda row: NAMES.index(row.case)), COLUMNS)
    servers = [row for row in record.medians if row.case == SERVER]
    print_table(console, "Servers, all processes of each", servers, SERVER_COLUMNS)
    table = Table(title="ramet against the best peer", title_justify="left")
    for heading in ("case", "figure", "ramet", "best peer", "its", "times better", "target", "reached"):
        table.add_column(heading)
    for one in verdicts(record.medians):
        table.add_row(
            one.target.case,
            one.target.title,
            f"{one.ramet:.1f}",
            one.best_peer or "",
            "" if one.best is None else f"{one.best:.1f}",
            "" if one.ratio is None else f"{one.ratio:.2f}",
            "" if one.target.times is None else f"{one.target.times:g}",
            "" if one.reached is None else "yes" if one.reached else "no",
        )
    console.print(table)
    for note in record.notes:
        console.print(f"note: {note}", markup=False)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--out", type=Path, help="folder for peers.json; absent: print only")
    add(
        "--workloads",
        type=some_of(NAMES),
        default=list(NAMES),
        help=f"such as W1,W2 (default: {','.join(NAMES)})",
    )
    add("--only", type=_words, default=[], help="servers whose names begin so, such as ramet,llama.cpp")
    add("--reps", type=int, help="repetitions, medians are reported (default: 5; 1 if quick)")
    add("--threads", type=int, default=2, help="of every server (default: 2)")
    add("--model", default="smollm2", help="as ramet serve takes it (default: smollm2)")
    add("--ramet", type=Path, help="another ramet command than this one")
    add("--setting", type=_pair, action="append", default=[], help="of ramet serve: kv-tokens=65536")
    add("--llama-server", type=Path, help="its path (default: the one on the PATH)")
    add("--llama-model", type=_named_path, action="append", default=[], help="NAME=FILE.gguf; several times")
    add("--vllm", type=Path, help="its path, or that of its environment's python (default: on the PATH)")
    add("--vllm-model", type=_named_path, action="append", default=[], help="NAME=FOLDER; several times")
    add("--fresh", action="store_true", help="start and end the servers for every repetition, one at a time")
    add(
        "--start-timeout", type=float, default=600.0, help="seconds until a server has to answer (default: 600)"
    )
    add("--timeout", type=float, default=600.0, help="seconds after which a call has failed (default: 600)")
    add("--quick", action="store_true", help="about a tenth of the work: a look, not a figure")
    add("--synthetic", action="store_true", help="generated prompts, also where recorded ones exist")
    add("--seed", type=int, default=0, help="of the generated prompts")
    options = parser.parse_args(arguments)
    options.reps = options.reps or (1 if options.quick else 5)
    if options.reps > NUM_VARIANTS - 1 and not options.fresh:
        parser.error(f"--reps {options.reps}: there are {NUM_VARIANTS - 1} sets of prompts; use --fresh")
    return options


def _words(text: str) -> list[str]:
    return text.split(",")


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _named_path(text: str) -> tuple[str, Path]:
    name, value = _pair(text)
    return name, Path(value)


def _turn(servers: Sequence[_T], repetition: int) -> list[_T]:
    """Every second repetition goes the other way round: who comes after whom is not always the same."""
    return list(reversed(servers)) if repetition % 2 else list(servers)


def main(arguments: Sequence[str] | None = None) -> Record:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    benchmark = Benchmark(options, table_console())
    console = benchmark.console
    if not sys.platform.startswith("linux"):
        raise SystemExit("benchmarks.peers looks at its servers through /proc: Linux only")
    if options.quick:
        benchmark.note("--quick: shortened workloads; not comparable with full ones")
    options.prompts_seed = options.seed if options.synthetic else None
    if not options.synthetic:
        try:
            make_load("W1", 0, seed=None, quick=False)
        except SharedDataMissingError as missing:
            options.prompts_seed = options.seed
            benchmark.note(f"generated prompts instead of the recorded ones: {missing}")
    servers = found_servers(options, benchmark.note)
    if not servers:
        raise SystemExit(f"no server is named by --only {','.join(options.only)}")
    benchmark.run(servers)
    record = _record(benchmark, servers)
    report(record, console)
    if options.out is not None:
        console.print(f"wrote {write(record, options.out)}", markup=False)
    return record


def _record(benchmark: Benchmark, servers: Sequence[PeerServer]) -> Record:
    """What was run, with names for paths: where things lie on a machine is nobody else's business."""
    options = benchmark.options
    models = [path for _, path in (*options.llama_model, *options.vllm_model)]
    given = [options.ramet, options.llama_server, options.vllm, options.out, Path(sys.executable), *models]
    paths = sorted({path for path in given if path and path.is_absolute()}, key=lambda path: -len(str(path)))

    def named(text: str) -> str:
        for path in paths:
            text = text.replace(str(path), path.name)
        return text

    commands = {server.name: named(shlex.join(server.command)) for server in servers}
    record = new_record(
        "peers",
        samples=benchmark.samples,
        seed=options.seed,
        settings={
            **{name: named(str(value)) for name, value in vars(options).items()},
            "commands": commands,
        },
        notes=[named(note) for note in benchmark.notes],
    )
    return msgspec.structs.replace(record, command=[named(part) for part in record.command])


def _end(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM ends the servers too, suspended ones included."""
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    main()
