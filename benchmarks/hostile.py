"""What constraints that were made to do harm do: to themselves, to others' tokens, to the process, its memory.

    python -m benchmarks.hostile [--limit 20] [--out benchmarks/results]

A real EngineProcess answers streams while one hostile request after the other is made. Each has to end: with an
error that has a name, or with an answer. Compared is the time between two tokens of the streams (ITL) meanwhile
with that while harmless requests of the same kind are made, and with none; and the memory after a first half of
the inputs with that after all of them were made again.
"""

import argparse
import statistics
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.hostile_inputs import HostileInput, hostile_inputs
from benchmarks.record import Sample, new_record, quantile, table_console, write
from ramet import EngineProcess, SamplingParams
from ramet.runtime.protocol import GrammarSpec, JsonSchema, RametError, Regex

NUM_STREAMS = 2
QUIET_SECONDS = 8.0
REST_SECONDS = 0.3
MAX_SECONDS = 75.0
"""A request that takes longer fails the benchmark: no compilation may take so long, waiting included."""
RESULTS = Path(__file__).parent / "results"


@dataclass(slots=True)
class Outcome:
    """What became of one hostile request. ``error``: its name, "" for an answer."""

    name: str
    seconds: float
    error: str
    message: str = ""


@dataclass(slots=True)
class Streams:
    """Endless answers in the background, and when each of their tokens came."""

    engine: EngineProcess
    gaps: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "Streams":
        self._threads = [
            threading.Thread(target=self._run, args=(index,), daemon=True) for index in range(NUM_STREAMS)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def take(self) -> list[float]:
        """The gaps between tokens since the last call, seconds."""
        taken, self.gaps = self.gaps, []
        return taken

    def _run(self, index: int) -> None:
        params = SamplingParams(max_tokens=500, ignore_eos=True, seed=index)
        try:
            while not self._stop.is_set():
                last = None
                for _ in self.engine.stream(f"Story {index}: once upon a time", params):
                    now = time.perf_counter()
                    if last is not None:
                        self.gaps.append(now - last)
                    last = now
                    if self._stop.is_set():
                        break
        except RametError as error:
            self.failures.append(f"{type(error).__name__}: {error}")


def attack(engine: EngineProcess, hostile: HostileInput, max_tokens: int = 8) -> Outcome:
    """Make one request, and wait for its end."""
    started = time.perf_counter()
    error, message = "", ""
    try:
        spec = hostile.make()
        engine.generate("Answer: ", SamplingParams(max_tokens=max_tokens, grammar=spec, seed=1), progress=False)
    except RametError as raised:
        error, message = type(raised).__name__, str(raised)[:200]
    return Outcome(hostile.name, time.perf_counter() - started, error, message)


def harmless_inputs(count: int) -> list[HostileInput]:
    """Requests of the same size that nobody minds, each with a grammar that was not compiled before."""
    return [HostileInput(f"harmless {i}", partial(_harmless, i)) for i in range(count)]


def _harmless(index: int) -> GrammarSpec:
    if index % 2:
        return Regex(f"[a-z]{{1,{index + 2}}}")
    return JsonSchema.of({"type": "object", "properties": {f"p{index}": {"type": "string"}}})


def resident_bytes(pid: int) -> int:
    """Of a process and those it started."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(_resident(one) for one in family)


def _resident(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), 0)


def measure(inputs: Sequence[HostileInput]) -> tuple[list[Outcome], list[Sample], list[str]]:
    """Outcomes, samples, and what went wrong (empty: nothing)."""
    with EngineProcess("smollm2", kv_tokens=8192, threads=1) as engine:
        attack(engine, harmless_inputs(1)[0])
        pid = engine.pid
        samples: list[Sample] = []
        with Streams(engine) as streams:
            time.sleep(1.0)
            streams.take()
            time.sleep(QUIET_SECONDS)
            samples.append(_itl("quiet", streams.take()))
            for one in harmless_inputs(40):
                attack(engine, one)
            samples.append(_itl("harmless", streams.take()))
            before = resident_bytes(pid)
            outcomes, during, between = _alternately(engine, streams, inputs)
            samples += [_itl("quiet, between hostile ones", between), _itl("hostile", during)]
            first = resident_bytes(pid)
            again = [attack(engine, one) for one in inputs]
            samples.append(_itl("hostile again", streams.take()))
            second = resident_bytes(pid)
        engine.check_integrity()
        stats = engine.stats()
        memory = {"before_mb": before / 1e6, "after_mb": first / 1e6, "again_mb": second / 1e6}
        samples.append(
            Sample(case="memory", system="ramet", metrics={**memory, "grammars_mb": stats.grammar_bytes / 1e6})
        )
        problems = [*streams.failures]
        problems += [
            f"{item.name}: took {item.seconds:.1f} s"
            for item in [*outcomes, *again]
            if item.seconds > MAX_SECONDS
        ]
        if engine.pid != pid:
            problems.append("the engine's process died")
    return outcomes, samples, problems


def _alternately(
    engine: EngineProcess, streams: Streams, inputs: Sequence[HostileInput]
) -> tuple[list[Outcome], list[float], list[float]]:
    """Outcomes, and the gaps during the requests and between them: another process on the machine disturbs both
    alike."""
    outcomes: list[Outcome] = []
    during: list[float] = []
    between: list[float] = []
    for one in inputs:
        outcomes.append(attack(engine, one))
        during += streams.take()
        time.sleep(REST_SECONDS)
        between += streams.take()
    return outcomes, during, between


def _itl(case: str, gaps: list[float]) -> Sample:
    return Sample(
        case=case,
        system="ramet",
        metrics={
            "itl_p50_ms": statistics.median(gaps) * 1e3,
            "itl_p95_ms": quantile(gaps, 0.95) * 1e3,
            "itl_p99_ms": quantile(gaps, 0.99) * 1e3,
            "itl_max_ms": max(gaps) * 1e3,
            "tokens": float(len(gaps)),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--limit", type=int, help="so many of the inputs, spread over all of them")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    inputs = hostile_inputs()
    if options.limit:
        inputs = inputs[:: max(1, len(inputs) // options.limit)]
    outcomes, samples, problems = measure(inputs)
    console = table_console()
    for item in sorted(outcomes, key=lambda outcome: -outcome.seconds):
        console.print(
            f"{item.seconds:7.2f} s  {item.error or 'answered':28} {item.name}: {item.message[:90]!a}",
            markup=False,
        )
    for sample in samples:
        console.print(sample.case, {name: round(value or 0, 2) for name, value in sample.metrics.items()})
    console.print(f"{len(outcomes)} inputs: {dict(Counter(item.error or 'answered' for item in outcomes))}")
    for problem in problems:
        console.print(f"problem: {problem}", markup=False)
    cases = [
        Sample(case=item.name, system=item.error or "answered", metrics={"seconds": item.seconds})
        for item in outcomes
    ]
    record = new_record(
        "hostile",
        samples=[*samples, *cases],
        seed=1,
        settings={"num_inputs": len(inputs), "num_streams": NUM_STREAMS, "threads": 1},
        notes=problems,
    )
    console.print(f"wrote {write(record, options.out)}")
    if problems:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
