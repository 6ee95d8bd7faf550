"""JSON schemas enforced: what is refused, what is wrongly accepted or rejected, and what compiling and masking
cost.

    python -m benchmarks.structured --quick
    python -m benchmarks.structured --systems ramet,llguidance,llguidance-lenient,xgrammar --out
    benchmarks/results
    python -m benchmarks.structured --end-to-end --tools

Each schema of MaskBench, and of the test suite of draft 2020-12, comes with values that it accepts and values
that it does not. A value is written as JSON, tokenised, and led through the grammar; it is accepted if every
token, and a stop token behind the last, is in the mask. Properties are generated in the order in which they are
declared, so a value whose text is not accepted is tried once more in that order. ``ramet`` is what requests
get; the others are engines alone, as libraries. Every system runs in a child process, which is replaced if a
schema takes it longer than the limit.

``--end-to-end``: a model samples answers under MaskBench's schemas, see benchmarks.structured_outputs.
``--throughput``: the same, short, for what a constraint costs: tokens a second as a share of those without it.
``--tools``: it calls the tools of BFCL's requests, see benchmarks.structured_tools.
"""

import argparse
import gzip
import json
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.key_orders import orders
from benchmarks.record import Record, Sample, new_record, print_table, quantile, table_console, write
from benchmarks.structured_outputs import COMPARED
from benchmarks.structured_outputs import SYSTEMS as OUTPUT_SYSTEMS
from benchmarks.structured_parts import COST_COLUMNS, OUTPUT_COLUMNS, end_to_end, tools
from benchmarks.workloads import SharedDataMissingError, shared_file
from ramet.runtime.grammar import CompiledGrammar, GrammarMatcher
from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.grammar.engines.guidance import GuidanceBackend, schema_policy
from ramet.runtime.grammar.engines.lark_text import HEADER
from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.grammar.engines.xgr import XgrammarBackend
from ramet.runtime.grammar.schema import SchemaPlan
from ramet.runtime.models.loading import load_model
from ramet.runtime.protocol import InvalidRequestError, JsonSchema, RequestFailedError
from ramet.runtime.tokenizer import FastTokenizer

DATA = Path("data/maskbench_400.jsonl.gz")
SUITE = Path("data/json_schema_test_suite_2020-12.jsonl.gz")
SETS = ("maskbench", "suite")
QUICK_CASES = 40
LIMIT_SECONDS = 20.0
START_SECONDS = 120.0
THROUGHPUT_REQUESTS, THROUGHPUT_TOKENS = 64, 128
NOTHING = "no value can satisfy"
"""How a schema is refused that rightly has no grammar."""
SYSTEMS = ("ramet", "llguidance", "llguidance-lenient", "xgrammar")
COLUMNS = (
    ("schemas", "schemas", ".0f"),
    ("passed", "all as expected", ".1%"),
    ("refused", "refused", ".1%"),
    ("rejects_valid", "rejects a valid value", ".1%"),
    ("accepts_invalid", "accepts an invalid value", ".1%"),
    ("stopped", "stopped or died", ".1%"),
    ("compile_p50", "compile ms p50", ".1f"),
    ("compile_p95", "p95", ".1f"),
    ("compile_max", "max", ".0f"),
    ("mask_p50", "mask µs p50", ".0f"),
    ("mask_p99", "p99", ".0f"),
    ("forced", "text forced", ".1%"),
)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one schema. A refusal is right where nothing can satisfy it, and no value is said to."""

    refusal: str | None = None
    is_empty: bool = False
    """Nothing can satisfy it, as it should be."""
    rejected_valid: int = 0
    accepted_invalid: int = 0
    stopped: bool = False
    compile_seconds: float = 0.0
    mask_seconds: list[float] = []
    num_bytes: int = 0
    num_forced_bytes: int = 0
    """Of the valid values' text: where there was no choice."""


def main(arguments: Sequence[str] | None = None) -> Record:
    options = parse(arguments)
    samples: list[Sample] = []
    notes: list[str] = []
    if options.requests is not None and (options.end_to_end or options.tools):
        notes.append(f"a short run: the model got {options.requests} schemas, and requests of each kind")
    for name in options.sets:
        try:
            cases = read_cases(options.cases) if name == "maskbench" else read_suite(options.cases)
        except SharedDataMissingError as error:
            notes.append(f"{name} left out: {error}")
            continue
        for system in options.systems:
            outcomes = run_system(system, options.model, cases, options.limit)
            samples.append(Sample(case=name, system=system, metrics=summary(outcomes)))
            notes += [
                f"{system} {case['name']}: {verdict}"
                for case, outcome in zip(cases, outcomes, strict=True)
                if (verdict := verdict_of(outcome)) is not None
            ]
    num_walked = len(samples)
    if options.end_to_end:
        try:
            more, found = end_to_end(options, read_cases(options.requests))
        except SharedDataMissingError as error:
            more, found = [], [f"end to end left out: {error}"]
        samples, notes = samples + more, notes + found
    if options.tools:
        more, found = tools(options)
        samples, notes = samples + more, notes + found
    names = ("model", "cases", "requests", "limit", "seeds", "reps", "max_tokens", "max_whitespace", "threads")
    settings: dict[str, object] = {name: getattr(options, name) for name in names}
    record = new_record("structured", samples=samples, seed=0, settings=settings, notes=notes)
    console = table_console()
    if num_walked:
        walked = [row for row in record.medians if row.case in SETS]
        print_table(console, "JSON schemas", walked, COLUMNS)
    if len(samples) > num_walked:
        generated = [row for row in record.medians if row.case not in SETS]
        print_table(console, "Answers of a model, sampled", generated, OUTPUT_COLUMNS)
        print_table(console, "What they cost", generated, COST_COLUMNS)
    for note in notes if options.verbose or not samples else ():
        console.print(note, markup=False)
    if options.out is not None:
        write(record, options.out)
    return record


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    options.end_to_end = options.end_to_end or options.throughput
    short = options.throughput
    options.requests = options.requests or (THROUGHPUT_REQUESTS if short else None)
    options.seeds = options.seeds or (1 if short else 3)
    options.max_tokens = options.max_tokens or (THROUGHPUT_TOKENS if short else 256)
    options.outputs = options.outputs or ";".join(COMPARED if short else OUTPUT_SYSTEMS)
    sets = options.sets or ("none" if options.end_to_end or options.tools else "maskbench")
    options.systems, options.outputs = options.systems.split(","), options.outputs.split(";")
    options.sets = [] if sets == "none" else sets.split(",")
    for given, known in (
        (options.systems, SYSTEMS),
        (options.sets, SETS),
        (options.outputs, tuple(OUTPUT_SYSTEMS)),
    ):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"unknown {', '.join(unknown)}; there are {', '.join(known)}")
    if options.seconds is not None and options.journal is None:
        parser.error("--seconds needs --journal FOLDER, where the answers are kept")
    if options.quick:
        options.cases = options.cases or QUICK_CASES
        options.requests = options.requests or options.cases
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.structured", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--model", default="smollm2", help="whose tokenizer (default: smollm2)")
    parser.add_argument("--systems", default=",".join(SYSTEMS[:3]), help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument(
        "--sets",
        help=f"of {', '.join(SETS)} (draft 2020-12's own); none, the default where a model answers",
    )
    parser.add_argument("--end-to-end", action="store_true", help="a model samples answers under the schemas")
    parser.add_argument(
        "--throughput",
        action="store_true",
        help=f"--end-to-end with {THROUGHPUT_REQUESTS} schemas, one seed, {THROUGHPUT_TOKENS} tokens, and only "
        "the systems whose speeds are compared; --requests, --seeds and --max-tokens still count",
    )
    parser.add_argument("--tools", action="store_true", help="a model calls the tools of BFCL's requests")
    parser.add_argument("--outputs", help=f"end to end, semicolons between: {'; '.join(OUTPUT_SYSTEMS)}")
    parser.add_argument(
        "--requests",
        type=int,
        help="schemas, and requests of each of BFCL's files, for the model (default: all)",
    )
    parser.add_argument("--seeds", type=int, help="answers to each schema (default: 3)")
    parser.add_argument("--reps", type=int, default=1, help="repetitions of the end to end part (default: 1)")
    parser.add_argument("--max-tokens", type=int, help="of one answer (default: 256)")
    parser.add_argument(
        "--max-whitespace",
        type=int,
        default=JsonSchema("true").max_whitespace,
        help="between two tokens of the JSON text (default: that of requests)",
    )
    parser.add_argument(
        "--journal",
        type=Path,
        help="folder that keeps the answers as they come: run again with it, the end to end part goes on",
    )
    parser.add_argument("--seconds", type=float, help="of each system, with --journal: no part begins later")
    parser.add_argument("--threads", type=int, help="of the model (default: one a core)")
    parser.add_argument("--cases", type=int, help="schemas (default: all)")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds a schema may take")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_CASES} schemas and requests")
    parser.add_argument("--verbose", action="store_true", help="name every schema that is not as expected")
    parser.add_argument("--out", type=Path, help="folder for structured.json; absent: print only")
    return parser


def read_cases(limit: int | None) -> list[dict[str, Any]]:
    """MaskBench's schemas with their values. Raises SharedDataMissingError without them."""
    with gzip.open(shared_file(DATA), "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file][:limit]


def read_suite(limit: int | None) -> list[dict[str, Any]]:
    """The tests that come with draft 2020-12, one case a schema. Raises SharedDataMissingError without them."""
    with gzip.open(shared_file(SUITE), "rt", encoding="utf-8") as file:
        files = [json.loads(line) for line in file]
    cases = [
        {
            "name": f"{entry['file']}: {group['description']}",
            "schema": group["schema"],
            "tests": group["tests"],
        }
        for entry in files
        for group in entry["groups"]
    ]
    return cases[:limit]


def run_system(system: str, model: str, cases: Sequence[Mapping[str, Any]], limit: float) -> list[Outcome]:
    """One outcome a schema. A child that takes too long, or dies, is replaced."""
    outcomes: list[Outcome] = []
    context = multiprocessing.get_context("spawn")
    while len(outcomes) < len(cases):
        ours, theirs = context.Pipe()
        child = context.Process(target=serve, args=(theirs, system, model), daemon=True)
        child.start()
        theirs.close()
        try:
            if not ours.poll(START_SECONDS):
                raise TimeoutError(f"{system} did not start within {START_SECONDS:g} s")
            ours.recv()
            for case in cases[len(outcomes) :]:
                ours.send(dict(case))
                if not ours.poll(limit):
                    outcomes.append(Outcome(stopped=True))
                    break
                outcomes.append(msgspec.msgpack.decode(ours.recv(), type=Outcome))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            outcomes.append(Outcome(stopped=True))
        finally:
            child.kill()
            child.join()
            ours.close()
    return outcomes


def serve(pipe: Connection, system: str, model: str) -> None:
    """In the child: an outcome for each case that comes."""
    tokenizer = FastTokenizer(load_model(model, quantization="int8", device="cpu").tokenizer_spec)
    bench = Bench(system, tokenizer)
    bench.run({"schema": {"type": "object"}, "tests": []})
    pipe.send("ready")
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        pipe.send(msgspec.msgpack.encode(bench.run(case)))


class Bench:
    """One system with one tokenizer."""

    def __init__(self, system: str, tokenizer: FastTokenizer) -> None:
        self._system = system
        self._tokenizer = tokenizer
        self._router = EngineRouter(tokenizer)
        spellings = Spellings(tokenizer)
        self._guidance = GuidanceBackend(spellings)
        self._xgrammar = XgrammarBackend(spellings)
        self._row = np.zeros(spellings.num_words, dtype=np.int32)
        self._tokens = spellings.tokens
        self._stop = spellings.stop_token_ids[0]

    def run(self, case: Mapping[str, Any]) -> Outcome:
        started = time.perf_counter()
        try:
            compiled = self._compile(case["schema"])
        except (InvalidRequestError, ValueError) as error:
            seconds_taken = time.perf_counter() - started
            if NOTHING in str(error) and not any(test["valid"] for test in case["tests"]):
                return Outcome(is_empty=True, compile_seconds=seconds_taken)
            return Outcome(refusal=str(error)[:300], compile_seconds=seconds_taken)
        compile_seconds = time.perf_counter() - started
        seconds: list[float] = []
        rejected = accepted = num_bytes = num_forced = 0
        for test in case["tests"]:
            texts = orders(test["data"], case["schema"], compiled.matcher(), self._tokens)
            text = next((text for text in texts if self._accepts(compiled.matcher(), text, seconds)), None)
            is_accepted = text is not None
            rejected += test["valid"] and not is_accepted
            accepted += is_accepted and not test["valid"]
            if test["valid"] and text is not None:
                num_bytes += len(text.encode())
                num_forced += self._forced(compiled.matcher(), text)
        return Outcome(
            rejected_valid=rejected,
            accepted_invalid=accepted,
            compile_seconds=compile_seconds,
            mask_seconds=seconds,
            num_bytes=num_bytes,
            num_forced_bytes=num_forced,
        )

    def _compile(self, schema: Any) -> CompiledGrammar:
        text = json.dumps(schema, ensure_ascii=False)
        match self._system:
            case "ramet":
                return self._router.compile(JsonSchema(text))
            case "xgrammar":
                return self._xgrammar.compile_schema(SchemaPlan(source=text, text=text), 8)
            case _:
                options = {**schema_policy(8), "lenient": self._system == "llguidance-lenient"}
                if schema is False:
                    raise ValueError("no value meets false")
                document = {} if schema is True else {**schema, "x-guidance": options}
                return self._guidance.compile_lark(f"{HEADER}start: %json {json.dumps(document)}\n")

    def _accepts(self, matcher: GrammarMatcher, text: str, seconds: list[float]) -> bool:
        row = self._row
        try:
            for token_id in [*self._tokenizer.encode(text, at_start=False), self._stop]:
                started = time.perf_counter()
                matcher.fill_bitmask(row)
                seconds.append(time.perf_counter() - started)
                if not (int(row[token_id // 32]) >> (token_id % 32)) & 1 or not matcher.accept(token_id):
                    return False
        except RequestFailedError:
            return False
        return True

    def _forced(self, matcher: GrammarMatcher, text: str) -> int:
        """Bytes of the text that the grammar forces, looked for at each token where the last run ended."""
        count = known = at = 0
        for token_id in self._tokenizer.encode(text, at_start=False):
            if at >= known:
                forced = len(getattr(matcher, "forced_bytes", bytes)())
                count += forced
                known = at + forced
            at += len(self._tokenizer.token_bytes(token_id) or b"")
            if not matcher.accept(token_id):
                break
        return min(count, len(text.encode()))


def verdict_of(outcome: Outcome) -> str | None:
    """What is not as expected; None: nothing."""
    if outcome.stopped:
        return "took too long, or died"
    if outcome.refusal is not None:
        return f"refused: {outcome.refusal}"
    if outcome.accepted_invalid:
        return f"accepts {outcome.accepted_invalid} invalid values"
    if outcome.rejected_valid:
        return f"rejects {outcome.rejected_valid} valid values"
    return None


def summary(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    total = len(outcomes)
    compiled = [outcome.compile_seconds * 1e3 for outcome in outcomes if not outcome.stopped]
    masks = [seconds * 1e6 for outcome in outcomes for seconds in outcome.mask_seconds]
    num_bytes = sum(outcome.num_bytes for outcome in outcomes)
    forced = sum(outcome.num_forced_bytes for outcome in outcomes)
    return {
        "schemas": float(total),
        "passed": sum(verdict_of(outcome) is None for outcome in outcomes) / total,
        "refused": sum(outcome.refusal is not None for outcome in outcomes) / total,
        "rejects_valid": sum(outcome.rejected_valid > 0 for outcome in outcomes) / total,
        "accepts_invalid": sum(outcome.accepted_invalid > 0 for outcome in outcomes) / total,
        "stopped": sum(outcome.stopped for outcome in outcomes) / total,
        "compile_p50": quantile(compiled, 0.5) if compiled else None,
        "compile_p95": quantile(compiled, 0.95) if compiled else None,
        "compile_max": max(compiled, default=None),
        "mask_p50": quantile(masks, 0.5) if masks else None,
        "mask_p99": quantile(masks, 0.99) if masks else None,
        "forced": forced / num_bytes if num_bytes else None,
    }


if __name__ == "__main__":
    main()
