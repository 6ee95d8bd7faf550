"""The parts of the benchmark of constraints that generate with a model, as samples and notes of its record."""

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import structured_outputs, structured_tools
from benchmarks.answer_journal import Parts
from benchmarks.record import Sample
from benchmarks.structured_outputs import CONSTRAINED, FREE, FREE_PLAIN, PLAIN, SYSTEMS, Answer, Report
from benchmarks.structured_tools import ToolCase
from benchmarks.workloads import SharedDataMissingError

END_TO_END, TOOLS = "end to end", "tools"
OUTPUT_COLUMNS = (
    ("requests", "requests", ".0f"),
    ("finished", "finished", ".0f"),
    ("length", "length", ".0f"),
    ("refused", "refused", ".0f"),
    ("failed", "failed", ".0f"),
    ("calls", "calls", ".0f"),
    ("valid_share", "valid", ".1%"),
    ("whitespace_share", "whitespace", ".1%"),
    ("whitespace_loops", "loops", ".0f"),
    ("same_tokens", "same tokens", ".1%"),
)
COST_COLUMNS = (
    ("forwards_per_token", "forwards/token", ".3f"),
    ("tokens_per_s", "tokens/s", ".1f"),
    ("of_free", "of free", ".2f"),
    ("of_plain", "of free, no drafts", ".2f"),
    ("cpu_of_plain", "by CPU time", ".2f"),
    ("compile_share", "compile", ".1%"),
    ("mask_share", "masks", ".1%"),
    ("mask_us_p99", "mask µs p99", ".0f"),
)


def end_to_end(
    options: argparse.Namespace, cases: Sequence[Mapping[str, Any]]
) -> tuple[list[Sample], list[str]]:
    """Every system on the same requests, in the order A B C A B C."""
    seeds = range(1, options.seeds + 1)
    asks = structured_outputs.asks_of(cases, seeds, options.max_tokens)
    samples: list[Sample] = []
    notes: list[str] = []
    for repetition in range(options.reps):
        reference: Report | None = None
        metrics: dict[str, dict[str, float | None]] = {}
        for system in [name for name in SYSTEMS if name in options.outputs]:
            is_free = system in (FREE, FREE_PLAIN)
            asked = asks[: len(reference.answers)] if reference else asks
            if is_free and reference:
                asked = structured_outputs.as_long(asked, reference.answers)
            parts = _parts(options, repetition)
            report = structured_outputs.run(
                system, options.model, asked, options.max_whitespace, options.threads, parts
            )
            if len(report.answers) < len(asked):
                notes.append(f"{system}: {len(report.answers)} of {len(asked)} requests were made in the time")
            metrics[system] = (structured_outputs.free_metrics if is_free else structured_outputs.metrics)(
                report
            )
            if reference is None:
                reference = report
                notes += _notes(system, report.answers)
            elif not is_free:
                metrics[system]["same_tokens"] = _same(reference.answers, report.answers)
        _compare(metrics)
        samples += [
            Sample(case=END_TO_END, system=system, repetition=repetition, metrics=values)
            for system, values in metrics.items()
        ]
    return samples, list(dict.fromkeys(notes))


def tools(options: argparse.Namespace) -> tuple[list[Sample], list[str]]:
    """A sample for each of BFCL's files and each tool_choice."""
    samples: list[Sample] = []
    notes: list[str] = []
    found: dict[str, list[ToolCase]] = {}
    for file in structured_tools.FILES:
        try:
            found[file] = structured_tools.read_tool_cases(file, options.requests)
        except SharedDataMissingError as error:
            notes.append(f"{file} left out: {error}")
    if not found:
        return samples, notes
    with contextlib.closing(structured_tools.ToolRunner(options.model, options.threads)) as runner:
        for file, cases in found.items():
            for choice in structured_tools.CHOICES:
                calls, wall = runner.run(cases, choice, options.max_tokens)
                metrics = structured_tools.tool_metrics(calls, wall)
                samples.append(Sample(case=f"{TOOLS}, {file}", system=f"tool_choice {choice}", metrics=metrics))
                notes += [f"{one.name}, {choice}: {problem}" for one in calls for problem in one.problems]
    return samples, notes


def _compare(metrics: Mapping[str, dict[str, float | None]]) -> None:
    """Enter each constrained system's speed as a share of the same without the constraint, and of that without
    drafts; by the clock, and by the time of the processor."""
    for constrained, free in ((CONSTRAINED, FREE), (PLAIN, FREE_PLAIN)):
        for name, other, of in (
            ("of_free", free, "tokens_per_s"),
            ("of_plain", FREE_PLAIN, "tokens_per_s"),
            ("cpu_of_plain", FREE_PLAIN, "tokens_per_cpu_s"),
        ):
            if constrained in metrics and other in metrics:
                speed, freely = metrics[constrained].get(of), metrics[other].get(of)
                metrics[constrained][name] = speed / freely if speed and freely else None


def _parts(options: argparse.Namespace, repetition: int) -> Parts | None:
    if options.journal is None:
        return None
    return Parts.within(options.journal / str(repetition), options.seconds)


def _notes(system: str, answers: Sequence[Answer]) -> list[str]:
    return [
        f"{system} {answer.name}, seed {answer.seed}: {answer.end}: {answer.note}"
        for answer in answers
        if answer.note is not None
    ]


def _same(reference: Sequence[Answer], answers: Sequence[Answer]) -> float | None:
    """Of those that both have."""
    pairs = list(zip(reference, answers, strict=False))
    return sum(one.token_ids == other.token_ids for one, other in pairs) / len(pairs) if pairs else None
