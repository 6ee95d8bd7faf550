"""Constraints in generation: a real model samples answers under real schemas, and every one is judged.

Each request has a schema, a prompt that asks for a document of it, and a seed. The same requests run with and
without drafts, and without the constraint for the same numbers of tokens: what a constraint costs, and what
forced text gives back.
"""

import gc
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from benchmarks.answer_journal import Parts
from benchmarks.json_answers import LOOP_CHARACTERS, problem, whitespace_runs
from benchmarks.mask_clock import MaskClock
from benchmarks.record import quantile
from ramet import Engine, SamplingParams
from ramet.runtime.engine.worker import share_interpreter
from ramet.runtime.protocol import FinishReason, JsonSchema

SHOWN_CHARS = 800
"""Of a schema in its prompt: the model is small, and it is the grammar that holds it."""
ASK = "Write one JSON document, an example with realistic values, that conforms to this JSON schema:\n"
KV_TOKENS = 32_768
NUM_RUNNING = 32
NO_DRAFTS = {"draft_forced": False, "prompt_lookup": False}
FORCED_ONLY = {"prompt_lookup": False}
CONSTRAINED, FORCED, PLAIN = "constrained", "constrained, forced drafts only", "constrained, no drafts"
FREE, FREE_PLAIN = "free, as many tokens", "free, as many tokens, no drafts"
SYSTEMS: dict[str, dict[str, bool]] = {
    CONSTRAINED: {},
    FORCED: FORCED_ONLY,
    PLAIN: NO_DRAFTS,
    FREE: {},
    FREE_PLAIN: NO_DRAFTS,
}
COMPARED = (CONSTRAINED, PLAIN, FREE, FREE_PLAIN)
"""Those whose speeds say what a constraint costs."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    name: str
    schema: str
    seed: int
    prompt: str
    num_tokens: int
    """Most tokens of the answer; without the constraint, exactly so many."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one request. ``end``: finished, length, refused or failed."""

    name: str
    seed: int
    end: str
    text: str
    token_ids: list[int]
    num_forwards: int = 0
    """Those that sampled."""
    note: str | None = None
    """What is wrong with it."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One system's run of all requests."""

    answers: list[Answer]
    wall: float
    cpu: float = 0.0
    """Seconds of all threads: what of the comparison another process on the machine does not change."""
    compile_seconds: float = 0.0
    mask_seconds: list[float] = []
    forced_seconds: float = 0.0
    num_late: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers)


def asks_of(cases: Sequence[Mapping[str, Any]], seeds: Sequence[int], max_tokens: int) -> list[Ask]:
    """Seed by seed, so that the first answers to a prompt are not those of one schema."""
    return [
        Ask(
            name=case["name"],
            schema=(text := JsonSchema.of(case["schema"]).schema),
            seed=seed,
            prompt=ASK + text[:SHOWN_CHARS],
            num_tokens=max_tokens,
        )
        for seed in seeds
        for case in cases
    ]


def run(
    system: str,
    model: str,
    asks: Sequence[Ask],
    max_whitespace: int,
    threads: int | None,
    parts: Parts | None = None,
) -> Report:
    """One engine's answers, in the order of the requests. Its caches are cold, its code is warm.

    ``parts``: what earlier runs answered is taken from their journal, and the rest answered as far as its time
    goes; the report is of the requests answered by then, maybe not of all.
    """
    journal = (
        parts.journal(system, Report, [system, model, max_whitespace, threads, list(asks)]) if parts else None
    )
    done = list(journal.done) if journal else []
    left = asks[sum(len(report.answers) for report in done) :]
    if not left or (parts and parts.is_over):
        return merged(done)
    is_constrained = not system.startswith("free")
    clock = MaskClock()
    settings: dict[str, Any] = {**SYSTEMS[system], "kv_tokens": KV_TOKENS, "max_running_requests": NUM_RUNNING}
    with Engine(model, threads=threads, progress=False, **settings) as engine, _as_in_a_server():
        if is_constrained:
            clock.install(engine)
        warm_up = SamplingParams(max_tokens=4, seed=0, grammar=JsonSchema("true") if is_constrained else None)
        engine.generate(messages=[[{"role": "user", "content": "Warm up."}]] * 4, sampling_params=warm_up)
        engine.flush_cache()
        size = parts.size if parts else len(left)
        for first in range(0, len(left), size):
            if parts and parts.is_over:
                break
            done.append(_report(engine, clock, left[first : first + size], max_whitespace, is_constrained))
            if journal:
                journal.append(done[-1])
        engine.check_integrity()
    return merged(done)


@contextmanager
def _as_in_a_server() -> Iterator[None]:
    """This process collects garbage and changes threads as an engine's own process does, for all systems."""
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    share_interpreter()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)


def merged(reports: Sequence[Report]) -> Report:
    """Of parts that ran one after the other."""
    return Report(
        answers=[answer for report in reports for answer in report.answers],
        wall=sum(report.wall for report in reports),
        cpu=sum(report.cpu for report in reports),
        compile_seconds=sum(report.compile_seconds for report in reports),
        mask_seconds=[seconds for report in reports for seconds in report.mask_seconds],
        forced_seconds=sum(report.forced_seconds for report in reports),
        num_late=sum(report.num_late for report in reports),
    )


def _report(
    engine: Engine, clock: MaskClock, asks: Sequence[Ask], max_whitespace: int, is_constrained: bool
) -> Report:
    compile_before, masks_before = engine.stats().grammar_seconds, len(clock.masks)
    forced_before = sum(clock.forced)
    started, cpu_started = time.perf_counter(), time.process_time()
    outputs = engine.generate(
        messages=[[{"role": "user", "content": ask.prompt}] for ask in asks],
        sampling_params=[_params(ask, max_whitespace if is_constrained else None) for ask in asks],
        progress=False,
        return_errors=True,
    )
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu_started
    return Report(
        answers=[
            _answer(ask, output, is_constrained=is_constrained)
            for ask, output in zip(asks, outputs, strict=True)
        ],
        wall=wall,
        cpu=cpu,
        compile_seconds=engine.stats().grammar_seconds - compile_before,
        mask_seconds=clock.masks[masks_before:],
        forced_seconds=sum(clock.forced) - forced_before,
        num_late=sum(output.stats.num_late_masks for output in outputs),
    )


def as_long(asks: Sequence[Ask], answers: Sequence[Answer]) -> list[Ask]:
    """Those that got tokens, each asking for as many as it got."""
    return [
        msgspec.structs.replace(ask, num_tokens=len(answer.token_ids))
        for ask, answer in zip(asks, answers, strict=True)
        if answer.token_ids
    ]


def metrics(report: Report) -> dict[str, float | None]:
    """Of one run."""
    answers = report.answers
    ends = [answer.end for answer in answers]
    finished = [answer for answer in answers if answer.end == "finished"]
    runs = [whitespace_runs(answer.text) for answer in answers]
    num_characters = sum(len(answer.text) for answer in answers)
    tokens = report.num_tokens
    masks = report.mask_seconds
    return {
        "requests": float(len(answers)),
        **{end: float(ends.count(end)) for end in ("finished", "length", "refused", "failed")},
        "valid_share": sum(answer.note is None for answer in finished) / len(finished) if finished else None,
        "whitespace_share": sum(map(sum, runs)) / num_characters if num_characters else None,
        "whitespace_loops": float(sum(max(run, default=0) >= LOOP_CHARACTERS for run in runs)),
        "tokens": float(tokens),
        "forwards_per_token": sum(answer.num_forwards for answer in answers) / tokens if tokens else None,
        "tokens_per_s": tokens / report.wall if report.wall else None,
        "tokens_per_cpu_s": tokens / report.cpu if report.cpu else None,
        "compile_share": report.compile_seconds / report.wall if report.wall else None,
        "mask_share": sum(masks) / report.wall if report.wall else None,
        "forced_share": report.forced_seconds / report.wall if report.wall else None,
        "mask_us_p50": quantile(masks, 0.5) * 1e6 if masks else None,
        "mask_us_p99": quantile(masks, 0.99) * 1e6 if masks else None,
        "late_masks": float(report.num_late),
        "wall_s": report.wall,
    }


def free_metrics(report: Report) -> dict[str, float | None]:
    """Of a run without the constraint: only what a constraint does not define."""
    kept = ("requests", "tokens", "forwards_per_token", "tokens_per_s", "tokens_per_cpu_s", "wall_s")
    return {name: value for name, value in metrics(report).items() if name in kept}


def _params(ask: Ask, max_whitespace: int | None) -> SamplingParams:
    if max_whitespace is None:
        return SamplingParams(temperature=1.0, seed=ask.seed, max_tokens=ask.num_tokens, ignore_eos=True)
    grammar = JsonSchema(ask.schema, max_whitespace=max_whitespace)
    return SamplingParams(temperature=1.0, seed=ask.seed, max_tokens=ask.num_tokens, grammar=grammar)


def _answer(ask: Ask, output: Any, *, is_constrained: bool) -> Answer:
    """``output``: an engine's Output."""
    note: str | None = output.error
    match output.finish_reason:
        case FinishReason.ERROR:
            end = "failed" if output.token_ids else "refused"
        case FinishReason.LENGTH:
            end = "length"
        case _:
            end = "finished"
            if is_constrained:
                note = problem(msgspec.json.decode(ask.schema), output.text)
    return Answer(
        name=ask.name,
        seed=ask.seed,
        end=end,
        text=output.text,
        token_ids=output.token_ids,
        num_forwards=output.stats.num_sampling_steps,
        note=note,
    )
