"""Answers of a model under schemas: who asked what, what became of it, and a small run."""

import time
from pathlib import Path

import msgspec
import pytest

from benchmarks.answer_journal import OtherRunError, Parts
from benchmarks.structured_outputs import (
    CONSTRAINED,
    FREE,
    PLAIN,
    SHOWN_CHARS,
    Answer,
    Report,
    as_long,
    asks_of,
    free_metrics,
    metrics,
    run,
)

CASES = [
    {"name": "colour", "schema": {"enum": ["red", "green"]}},
    {"name": "nothing", "schema": {"type": "string", "pattern": "(a)\\1"}},
    {"name": "long", "schema": {"type": "object", "description": "x" * 2_000}},
]


def test_requests_come_seed_by_seed_with_short_prompts() -> None:
    asks = asks_of(CASES, [1, 2], 16)
    assert [(ask.name, ask.seed) for ask in asks[2:5]] == [("long", 1), ("colour", 2), ("nothing", 2)]
    assert len(asks[2].prompt) < SHOWN_CHARS + 200
    assert len(asks[2].schema) > 2_000


def answer(end: str, text: str = "", num_tokens: int = 2, note: str | None = None) -> Answer:
    return Answer(
        name=end,
        seed=1,
        end=end,
        text=text,
        token_ids=[1] * num_tokens,
        num_forwards=1 if text else 0,
        note=note,
    )


def test_metrics() -> None:
    answers = [
        answer("finished", '{"a":  1}'),
        answer("finished", "1", note="wrong"),
        answer("length", "[" + "\n" * 50),
        answer("refused", num_tokens=0, note="why"),
    ]
    found = metrics(Report(answers=answers, wall=2.0, compile_seconds=1.0, mask_seconds=[0.1, 0.3]))
    assert (found["finished"], found["length"], found["refused"], found["failed"]) == (2, 1, 1, 0)
    assert found["valid_share"] == 0.5
    assert found["whitespace_loops"] == 1
    assert found["whitespace_share"] == pytest.approx(52 / (9 + 1 + 51))
    assert found["forwards_per_token"] == 0.5
    assert (found["tokens_per_s"], found["compile_share"], found["mask_share"]) == (3.0, 0.5, 0.2)
    assert "valid_share" not in free_metrics(Report(answers=answers, wall=2.0))
    asks = asks_of([{"name": "x", "schema": True}] * 4, [1], 9)
    assert [ask.num_tokens for ask in as_long(asks, answers)] == [2, 2, 2]
    nothing = metrics(Report(answers=[], wall=1.0))
    assert nothing["valid_share"] is nothing["forwards_per_token"] is nothing["mask_us_p50"] is None


@pytest.mark.slow
def test_a_run_in_parts_goes_on_where_it_ended(tmp_path: Path) -> None:
    asks = asks_of(CASES[:1], [1, 2, 3], 12)
    first = Parts(folder=tmp_path, size=2)
    whole = run(CONSTRAINED, "smollm2", asks, 2, 1, first)
    (journal,) = tmp_path.iterdir()
    kept = journal.read_bytes().splitlines()
    assert len(kept) == 3
    journal.write_bytes(b"\n".join([*kept[:2], b""]))
    over = Parts(folder=tmp_path, size=2, ends=time.monotonic())
    assert run(CONSTRAINED, "smollm2", asks, 2, 1, over).answers == whole.answers[:2]
    again = run(CONSTRAINED, "smollm2", asks, 2, 1, first)
    assert [one.token_ids for one in again.answers] == [one.token_ids for one in whole.answers]
    assert len(journal.read_bytes().splitlines()) == 3
    with pytest.raises(OtherRunError):
        run(CONSTRAINED, "smollm2", asks, 3, 1, first)


@pytest.mark.slow
def test_a_small_run() -> None:
    asks = asks_of(CASES, [1], 12)
    report, plain = (run(system, "smollm2", asks, 2, 1) for system in (CONSTRAINED, PLAIN))
    colour, nothing, long = report.answers
    assert colour.end == "finished"
    assert colour.text in ('"red"', '"green"')
    assert colour.note is None
    assert nothing.end == "refused"
    assert "pattern" in (nothing.note or "")
    assert long.end in ("finished", "length")
    assert [one.token_ids for one in report.answers] == [one.token_ids for one in plain.answers]
    assert metrics(plain)["forwards_per_token"] == 1.0
    assert report.mask_seconds
    free = run(FREE, "smollm2", as_long(asks, report.answers), 2, 1)
    assert [len(one.token_ids) for one in free.answers] == [len(colour.token_ids), len(long.token_ids)]
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
