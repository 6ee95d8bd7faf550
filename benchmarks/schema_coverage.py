"""How much of JSON Schema holds: what a schema compiles to accepts its valid instances, and no invalid one.

    python -m benchmarks.schema_coverage [--data maskbench|suite] [--limit N] [--out benchmarks/results]

Each schema is planned and compiled for a byte-level vocabulary; each instance is fed to the matcher as JSON
text, byte by byte, in the two usual spellings. Its keys are put into the order of the schema first, and floats
that are integers written as such: both are matters of spelling, in which a grammar fixes one of several.
"""

import argparse
import gzip
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from rich.table import Table

from benchmarks.record import Sample, new_record, quantile, table_console, write
from benchmarks.workloads import shared_file
from ramet.runtime.grammar import CompiledGrammar
from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.grammar.schema import plan
from ramet.runtime.grammar.schema.shapes import value_of
from ramet.runtime.protocol import InvalidRequestError, JsonSchema, RametError
from ramet.runtime.tokenizer.byte_tokenizer import EOS_ID, ByteTokenizer

FILES = {"maskbench": "maskbench_400.jsonl.gz", "suite": "json_schema_test_suite_2020-12.jsonl.gz"}
NOTE = "counts are of schemas; times are in milliseconds"
SEPARATORS = ((",", ":"), (", ", ": "))
ANNOTATION_ONLY = "is only an annotation by default"
"""Tests of the suite that expect formats not to be checked, which they are here."""


@dataclass(frozen=True, slots=True)
class Case:
    """A schema and what it should say of some instances."""

    name: str
    schema: Any
    instances: tuple[tuple[Any, bool], ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one case. ``refused``: why; None: it was compiled."""

    name: str
    refused: str | None = None
    wrong_accepts: tuple[str, ...] = ()
    wrong_rejects: tuple[str, ...] = ()
    num_instances: int = 0
    plan_seconds: float = 0.0
    compile_seconds: float = 0.0

    @property
    def passes(self) -> bool:
        return self.refused is None and not self.wrong_accepts and not self.wrong_rejects


@dataclass(slots=True)
class Checker:
    """Judges cases with one router, over a vocabulary of single bytes."""

    router: EngineRouter = field(default_factory=lambda: EngineRouter(ByteTokenizer()))

    def judge(self, case: Case) -> Verdict:
        """Refusing a schema that accepts none of the instances because nothing can satisfy it is right."""
        text = json.dumps(case.schema, ensure_ascii=False)
        began = time.perf_counter()
        try:
            planned = plan(text)
            planned_at = time.perf_counter()
            planned.choose()
            compiled = self.router.compile(JsonSchema(text))
        except InvalidRequestError as error:
            right = "no value can satisfy" in str(error) and not any(valid for _, valid in case.instances)
            return Verdict(case.name, None if right else str(error), plan_seconds=time.perf_counter() - began)
        compiled_at = time.perf_counter()
        order = KeyOrder(json.loads(planned.text))
        accepts: list[str] = []
        rejects: list[str] = []
        for value, valid in case.instances:
            if _accepted(compiled, order.arrange(value)) != valid:
                (rejects if valid else accepts).append(json.dumps(value, ensure_ascii=False))
        return Verdict(
            case.name,
            wrong_accepts=tuple(accepts),
            wrong_rejects=tuple(rejects),
            num_instances=len(case.instances),
            plan_seconds=planned_at - began,
            compile_seconds=compiled_at - planned_at,
        )


class KeyOrder:
    """Puts the keys of a value into the order in which a planned schema generates them."""

    def __init__(self, schema: Any) -> None:
        self._root = schema if isinstance(schema, dict) else {}
        self._definitions = self._root.get("$defs", {})

    def arrange(self, value: Any) -> Any:
        return self._arrange(value, self._root)

    def _arrange(self, value: Any, schema: Any) -> Any:
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        part = self._part(value, schema)
        if isinstance(value, list):
            prefix = part.get("prefixItems", [])
            rest = part.get("items", {})
            return [
                self._arrange(item, prefix[index] if index < len(prefix) else rest)
                for index, item in enumerate(value)
            ]
        if not isinstance(value, dict):
            return value
        wanted = value_of(value)
        same = [given for given in part.get("enum", [part.get("const")]) if value_of(given) == wanted]
        if same:
            return same[0]
        known = part.get("properties", {})
        by_pattern = {
            name: inner
            for text, inner in part.get("patternProperties", {}).items()
            for name in value
            if name not in known and re.search(text, name)
        }
        names = [name for name in known if name in value]
        names += sorted((name for name in value if name not in known), key=lambda name: name not in by_pattern)
        inside = {**by_pattern, **known}
        rest = part.get("additionalProperties", {})
        return {name: self._arrange(value[name], inside.get(name, rest)) for name in names}

    def _part(self, value: Any, schema: Any) -> dict[str, Any]:
        """The alternative that ``value`` meets, references followed; {}: none."""
        while isinstance(schema, dict) and "$ref" in schema:
            schema = self._definitions[schema["$ref"].rpartition("/")[2]]
        if isinstance(schema, dict) and "anyOf" in schema:
            for option in schema["anyOf"]:
                if Draft202012Validator({"$defs": self._definitions, "allOf": [option]}).is_valid(value):
                    return self._part(value, option)
            return {}
        return schema if isinstance(schema, dict) else {}


def cases(data: str, limit: int | None = None) -> Iterator[Case]:
    """The cases of ``maskbench`` or ``suite``."""
    with gzip.open(shared_file(Path("data") / FILES[data]), "rt", encoding="utf-8") as lines:
        found = _maskbench(lines) if data == "maskbench" else _suite(lines)
        for index, case in enumerate(found):
            if limit is not None and index >= limit:
                return
            yield case


def measure(data: str, limit: int | None, progress: Callable[[Verdict], None]) -> list[Verdict]:
    checker = Checker()
    verdicts = []
    for case in cases(data, limit):
        verdicts.append(checker.judge(case))
        progress(verdicts[-1])
    return verdicts


def metrics(verdicts: list[Verdict]) -> dict[str, float | None]:
    """Counts are of schemas; times in milliseconds, of those that were compiled."""
    planned = [verdict.plan_seconds * 1000 for verdict in verdicts]
    compiled = [verdict.compile_seconds * 1000 for verdict in verdicts if verdict.num_instances]
    return {
        "schemas": len(verdicts),
        "pass_share": sum(verdict.passes for verdict in verdicts) / max(len(verdicts), 1),
        "refused": sum(verdict.refused is not None for verdict in verdicts),
        "accept_an_invalid": sum(bool(verdict.wrong_accepts) for verdict in verdicts),
        "reject_a_valid": sum(bool(verdict.wrong_rejects) for verdict in verdicts),
        "plan_ms_p50": quantile(planned, 0.5) if planned else None,
        "plan_ms_p95": quantile(planned, 0.95) if planned else None,
        "compile_ms_p50": quantile(compiled, 0.5) if compiled else None,
        "compile_ms_p95": quantile(compiled, 0.95) if compiled else None,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", choices=sorted(FILES), action="append", help="both, if absent")
    parser.add_argument("--limit", type=int, help="only the first N schemas")
    parser.add_argument("--out", type=Path, help="a folder for the record")
    options = parser.parse_args(arguments)
    samples = []
    for data in options.data or sorted(FILES):
        verdicts = measure(data, options.limit, _tell)
        samples.append(Sample(case=data, system="ramet", metrics=metrics(verdicts)))
    record = new_record(
        "schema_coverage", samples=samples, seed=0, settings={"limit": options.limit}, notes=[NOTE]
    )
    table = Table("figure", *(sample.case for sample in samples), title="JSON Schema")
    for name in samples[0].metrics:
        table.add_row(name, *(_cell(sample.metrics[name]) for sample in samples))
    table_console().print(table)
    if options.out is not None:
        print(write(record, options.out))


def _tell(verdict: Verdict) -> None:
    if verdict.refused is not None:
        print(f"{verdict.name}: refused: {verdict.refused[:300]}")
    for kind, values in (
        ("accepts an invalid", verdict.wrong_accepts),
        ("rejects a valid", verdict.wrong_rejects),
    ):
        for value in values:
            print(f"{verdict.name}: {kind} instance: {value[:300]}")


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _accepted(compiled: CompiledGrammar, value: Any) -> bool:
    return any(_feeds(compiled, json.dumps(value, ensure_ascii=False, separators=pair)) for pair in SEPARATORS)


def _feeds(compiled: CompiledGrammar, text: str) -> bool:
    matcher = compiled.matcher()
    try:
        return all(map(matcher.accept, text.encode("utf-8", "surrogatepass"))) and matcher.accept(EOS_ID)
    except RametError:
        return False


def _maskbench(lines: Iterator[str] | Any) -> Iterator[Case]:
    for line in lines:
        found = json.loads(line)
        instances = tuple((test["data"], bool(test["valid"])) for test in found["tests"])
        yield Case(found["name"], found["schema"], instances)


def _suite(lines: Iterator[str] | Any) -> Iterator[Case]:
    for line in lines:
        found = json.loads(line)
        for group in found["groups"]:
            instances = tuple(
                (test["data"], bool(test["valid"]))
                for test in group["tests"]
                if ANNOTATION_ONLY not in test["description"]
            )
            yield Case(f"{found['file']}: {group['description']}", group["schema"], instances)


if __name__ == "__main__":
    main()
