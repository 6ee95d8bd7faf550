"""The parts with a model, as samples and notes."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import structured_outputs
from benchmarks.answer_journal import Parts
from benchmarks.structured import parse
from benchmarks.structured_outputs import CONSTRAINED, FREE, FREE_PLAIN, PLAIN, SYSTEMS, Answer, Ask, Report
from benchmarks.structured_parts import end_to_end, tools

CASES: list[dict[str, Any]] = [{"name": "one", "schema": True}, {"name": "two", "schema": {"type": "string"}}]


def answers_of(
    system: str, _model: str, asks: list[Ask], _whitespace: int, _threads: Any, parts: Parts | None
) -> Report:
    """A run without a model: speeds by system, one answer that is wrong; in parts, the first request only."""
    asks = asks[:1] if parts else asks
    seconds = {CONSTRAINED: 1.0, FREE: 2.0, PLAIN: 4.0, FREE_PLAIN: 3.0}.get(system, 1.0)
    answers = [
        Answer(
            name=ask.name,
            seed=ask.seed,
            end="finished",
            text="1",
            token_ids=[ask.seed, 7],
            num_forwards=2,
            note="wrong" if ask.name == "two" else None,
        )
        for ask in asks
    ]
    return Report(answers=answers, wall=seconds)


def test_systems_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structured_outputs, "run", answers_of)
    options = parse(["--end-to-end", "--seeds", "2", "--reps", "2"])
    assert options.sets == []
    samples, notes = end_to_end(options, CASES)
    assert [sample.system for sample in samples] == [*SYSTEMS, *SYSTEMS]
    by_system = {sample.system: sample.metrics for sample in samples}
    assert by_system[CONSTRAINED]["of_free"] == 2.0
    assert by_system[PLAIN]["of_free"] == by_system[PLAIN]["of_plain"] == 0.75
    assert by_system[CONSTRAINED]["of_plain"] == 3.0
    assert by_system[PLAIN]["same_tokens"] == 1.0
    assert by_system[CONSTRAINED]["requests"] == 4
    assert notes == [f"{CONSTRAINED} two, seed {seed}: finished: wrong" for seed in (1, 2)]


def test_what_there_was_no_time_for_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(structured_outputs, "run", answers_of)
    chosen = f"{CONSTRAINED};{PLAIN};{FREE}"
    options = parse(["--end-to-end", "--outputs", chosen, "--journal", str(tmp_path), "--seconds", "1"])
    samples, notes = end_to_end(options, CASES)
    assert [sample.metrics["requests"] for sample in samples] == [1, 1, 1]
    assert notes == [f"{CONSTRAINED}: 1 of 6 requests were made in the time"]


def test_seconds_without_a_journal_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--end-to-end", "--seconds", "1"])
    assert "--journal" in capsys.readouterr().err


def test_a_short_run_for_the_speeds() -> None:
    options = parse(["--throughput"])
    assert options.end_to_end
    assert options.outputs == [CONSTRAINED, PLAIN, FREE, FREE_PLAIN]
    assert (options.requests, options.seeds, options.max_tokens) == (64, 1, 128)
    options = parse(
        ["--throughput", "--requests", "8", "--seeds", "2", "--max-tokens", "9", "--outputs", PLAIN]
    )
    assert (options.requests, options.seeds, options.max_tokens, options.outputs) == (8, 2, 9, [PLAIN])
    whole = parse(["--end-to-end"])
    assert (whole.requests, whole.seeds, whole.max_tokens, whole.outputs) == (None, 3, 256, [*SYSTEMS])


def test_one_system_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structured_outputs, "run", answers_of)
    (sample,), _ = end_to_end(parse(["--end-to-end", "--outputs", FREE_PLAIN]), CASES)
    assert sample.system == FREE_PLAIN
    assert "of_free" not in sample.metrics


def test_without_the_data_there_are_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_SHARED", str(tmp_path))
    samples, notes = tools(parse(["--tools"]))
    assert samples == []
    assert len(notes) == 4
