"""Does the server stay up? Minutes of clients that leave, abort, send nonsense and kill the engine.

    python -m benchmarks.soak --minutes 30 --out benchmarks/results

Meanwhile requests with one right answer are made all the time: none may be lost or wrong. In the first half the
engine's process is killed again and again; in the second half one engine has to last, so that what it holds can
be compared. Between the periods all clients rest: then pages have to add up, and nothing may have grown. Linux
only: the processes are looked at through /proc. The exit status is 1 where the verdict is bad.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from benchmarks.record import Record, Sample, new_record, table_console, write
from benchmarks.soak_kept import KeptTraffic
from benchmarks.soak_traffic import Ledger, Traffic
from benchmarks.soak_vitals import (
    ENGINE_GROWTH,
    IDLE_SECONDS,
    SERVER_GROWTH,
    Vitals,
    engine_of,
    growth,
    read_vitals,
    unrest,
)
from ramet import Runtime

PERIODS = 12
SHORTEST_PERIOD = 4.0
"""Seconds; a short soak has fewer periods."""
BETWEEN_KILLS = (5.0, 10.0)
READY_SECONDS = 120.0
ACT_SECONDS = 180.0
"""No act of a client may take longer: what does is a fault."""
KV_TOKENS, CONTEXT_LENGTH = 2048, 1024

Act = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Soak:
    """One run against one server. ``rests`` has what was held at the end of each period."""

    runtime: Runtime
    report: Path
    http: httpx.AsyncClient
    options: argparse.Namespace
    console: Console
    ledger: Ledger = field(default_factory=Ledger)
    rests: list[Vitals] = field(default_factory=list)
    num_kills: int = 0

    async def run(self) -> None:
        """Raises RuntimeError where the server does not answer to begin with."""
        total = 60.0 * self.options.minutes
        count = max(4, min(PERIODS, int(total / SHORTEST_PERIOD))) // 2 * 2
        traffic = Traffic(self.http, self.runtime.info.model, self.ledger, self.options.seed)
        kept = KeptTraffic(self.http, self.runtime.info.model, self.ledger, self.options.seed)
        await traffic.learn()
        await kept.learn()
        acts = self._acts(traffic, kept)
        for index in range(count):
            if index == count // 2:
                await traffic.fill(KV_TOKENS)
            await self._period(acts, total / count, index, kills=index < count // 2)
            await self._rest(f"period {index + 1} of {count}")
        await self._flush()

    def verdict(self) -> list[str]:
        """What is wrong; nothing: the server has kept what it promises."""
        wrong = list(self.ledger.faults)
        if self.ledger.num_faults > len(wrong):
            wrong.append(f"and {self.ledger.num_faults - len(wrong)} more faults")
        if not self.ledger.done["right or wrong answers"]:
            wrong.append("no answer was compared")
        if len(self.rests) > 1:
            wrong += growth(self.rests[0], self.rests[-1], SERVER_GROWTH)
            wrong += growth(self.rests[len(self.rests) // 2], self.rests[-1], ENGINE_GROWTH)
        return wrong

    def _acts(self, traffic: Traffic, kept: KeptTraffic) -> list[Act]:
        return [
            *(traffic.ask for _ in range(self.options.clients)),
            traffic.leave,
            traffic.leave,
            traffic.abort,
            traffic.harm,
            traffic.break_off,
            traffic.hold_session,
            traffic.leave_program,
            kept.keep_response,
            kept.use_tool,
            kept.forsake_tool,
            kept.run_behind,
        ]

    async def _period(self, acts: Sequence[Act], seconds: float, index: int, *, kills: bool) -> None:
        """Ends when each client has ended what it was doing."""
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            for number, act in enumerate(acts):
                tasks.create_task(self._repeat(act, until, random.Random(f"{index} {number}")))
            if kills:
                tasks.create_task(self._kill(until, random.Random(f"kills {index}")))

    async def _repeat(self, act: Act, until: float, source: random.Random) -> None:
        name = getattr(act, "__name__", "act")
        while time.monotonic() < until:
            try:
                async with asyncio.timeout(ACT_SECONDS):
                    await act()
            except (httpx.HTTPError, OSError, TimeoutError, KeyError, ValueError) as error:
                # The server itself is never killed: it has to answer, and in its own form.
                self.ledger.fault(f"{name}: {type(error).__name__}: {error}")
                await asyncio.sleep(1.0)
            await asyncio.sleep(source.random() * 0.3)

    async def _kill(self, until: float, source: random.Random) -> None:
        """Ends engine after engine, each when it has been ready for a while."""
        while True:
            pause = source.uniform(*BETWEEN_KILLS) if self.num_kills else 1.0
            if time.monotonic() + pause > until:
                return
            await asyncio.sleep(pause)
            os.kill(engine_of(self.runtime.process_id), signal.SIGKILL)
            self.num_kills += 1
            if not await self._is_ready():
                self.ledger.fault(f"the server is not ready {READY_SECONDS:g} s after a kill")
                return

    async def _is_ready(self) -> bool:
        deadline = time.monotonic() + READY_SECONDS
        was_away = False
        while time.monotonic() < deadline:
            status = (await self.http.get("/ready")).status_code
            was_away = was_away or status != 200
            if was_away and status == 200:
                return True
            await asyncio.sleep(0.02)
        return False

    async def _rest(self, title: str) -> None:
        """Waits until nothing runs, and looks at what is held."""
        deadline = time.monotonic() + IDLE_SECONDS
        while left := unrest(stats := await self._stats()):
            if time.monotonic() > deadline:
                self.ledger.fault(f"{title}: after {IDLE_SECONDS:g} s without requests there are {left}")
                break
            await asyncio.sleep(0.1)
        vitals = await read_vitals(self.runtime.process_id, self.report, stats)
        self.rests.append(vitals)
        if vitals.lost_pages:
            self.ledger.fault(
                f"{title}: {vitals.lost_pages} pages are neither free nor cached: {stats['engine']}"
            )
        self.console.print(
            f"{title}: {sum(self.ledger.done.values())} acts, {self.num_kills} kills, "
            f"{self.ledger.num_faults} faults; "
            f"server {vitals.server_memory / 1e6:.0f} MB, {vitals.server_files} files, "
            f"{vitals.server_threads} threads, {vitals.server_tasks} tasks, {vitals.server_objects:,} objects; "
            f"engine {vitals.engine_memory / 1e6:.0f} MB, {vitals.engine_files} files, "
            f"{vitals.engine_threads} threads",
            style="dim",
            markup=False,
        )

    async def _flush(self) -> None:
        """Without its cache the engine holds no page."""
        await self.http.post("/flush_cache")
        engine = (await self._stats())["engine"]
        if engine["free_pages"] != engine["total_pages"]:
            self.ledger.fault(
                f"after a flush {engine['total_pages'] - engine['free_pages']} pages are not free"
            )

    async def _stats(self) -> dict[str, Any]:
        response = await self.http.get("/stats")
        response.raise_for_status()
        found: dict[str, Any] = response.json()
        return found


async def soak(options: argparse.Namespace, console: Console) -> Soak:
    """Starts a server, runs the soak on it, and ends it."""
    server = Path(__file__).with_name("watched_server.py")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = (sys.executable, "-P", str(server), str(report))
        settings: dict[str, Any] = {
            "kv_tokens": KV_TOKENS,
            "context_length": CONTEXT_LENGTH,
            "threads": options.threads,
            "response_store": str(Path(folder) / "responses.sqlite"),
        }
        with console.status(f"starting ramet serve with {options.model}"):
            runtime = await asyncio.to_thread(Runtime, options.model, command=command, **settings)
        try:
            headers = {"authorization": f"Bearer {runtime.api_key}"}
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(
                base_url=runtime.base_url, headers=headers, timeout=ACT_SECONDS, limits=limits, trust_env=False
            ) as http:
                run = Soak(runtime, report, http, options, console)
                await run.run()
        finally:
            await runtime.aclose()
    return run


def report(run: Soak, wrong: Sequence[str], console: Console) -> None:
    done = ", ".join(f"{count} {name}" for name, count in run.ledger.done.items())
    console.print(f"{run.options.minutes:g} minutes: {done}, {run.num_kills} kills of the engine", markup=False)
    for text in wrong:
        console.print(f"wrong: {text}", markup=False)
    console.print("verdict: " + ("it does not hold" if wrong else "no answer lost or wrong, nothing leaks"))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--out", type=Path, help="folder for soak.json; absent: print only")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--minutes", type=float, default=30.0, help="without the rests (default: 30)")
    parser.add_argument("--clients", type=int, default=4, help="that ask what is known (default: 4)")
    parser.add_argument("--threads", type=int, help="of the engine (default: as ramet serve)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> tuple[Record, list[str]]:
    """The record, and what is wrong."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    console = table_console()
    run = asyncio.run(soak(options, console))
    wrong = run.verdict()
    acts = {name: float(count) for name, count in run.ledger.done.items()}
    samples = [
        Sample(case="rest", system="ramet serve", repetition=index, metrics=vitals.metrics())
        for index, vitals in enumerate(run.rests)
    ]
    totals: dict[str, float | None] = {**acts, "kills": float(run.num_kills), "faults": float(len(wrong))}
    samples.append(Sample(case="whole", system="ramet serve", metrics=totals))
    settings: dict[str, object] = {name: str(value) for name, value in vars(options).items()}
    record = new_record("soak", samples=samples, seed=options.seed, settings=settings, notes=wrong)
    report(run, wrong, console)
    if options.out is not None:
        console.print(f"wrote {write(record, options.out)}", markup=False)
    return record, wrong


if __name__ == "__main__":
    sys.exit(1 if main()[1] else 0)
