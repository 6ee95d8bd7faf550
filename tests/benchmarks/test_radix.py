"""The command line of the radix benchmark, and a small run of it."""

from pathlib import Path

import pytest

from benchmarks.radix import SYNTHETIC, TRACES, main, parse
from benchmarks.record import read


def test_defaults() -> None:
    assert parse([]).workloads == [*SYNTHETIC, *TRACES]
    assert (parse([]).reps, parse(["--quick"]).reps) == (3, 1)


def test_unknown_workloads_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        parse(["--workloads", "few_shot,nothing"])
    assert exited.value.code == 2
    assert "unknown nothing; there are few_shot" in capsys.readouterr().err


@pytest.mark.slow
def test_a_quick_run_leaves_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAMET_SHARED", str(tmp_path / "nowhere"))
    names = "few_shot,chats,conversation"
    record = main(["--quick", "--model", "none", "--workloads", names, "--out", str(tmp_path)])
    assert read(tmp_path / "radix.json") == record
    assert (tmp_path / "radix.png").stat().st_size > 1000
    assert any("conversation left out" in note for note in record.notes)
    hits = [row.metrics for row in record.medians if "hit_share" in row.metrics]
    assert len(hits) == 2 * 2 * 4
    assert all(0 < (row["of_bound"] or 0) <= 1.0001 for row in hits)
    assert "Hit rates" in capsys.readouterr().out
