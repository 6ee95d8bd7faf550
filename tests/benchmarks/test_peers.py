"""The comparison as a command, with the fake server in the place of all three."""

import sys
from pathlib import Path

import pytest

from benchmarks.peer_servers import PeerFailedError
from benchmarks.peer_targets import SERVER
from benchmarks.peers import main, parse
from benchmarks.record import read

FAKE = Path(__file__).with_name("fake_openai_server.py")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at servers through /proc")


def fake(folder: Path, name: str, arguments: str = "") -> str:
    """The path of a command of that name that is the fake server."""
    path = folder / name
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" {arguments} "$@"\n')
    path.chmod(0o755)
    return str(path)


def command(folder: Path, llama_arguments: str = "") -> list[str]:
    (folder / "model").mkdir()
    model = str(folder / "model")
    return [
        *("--synthetic", "--quick", "--ramet", fake(folder, "ramet")),
        *("--llama-server", fake(folder, "llama-server", llama_arguments), "--llama-model", f"Q4_0={model}"),
        *("--vllm", fake(folder, "vllm"), "--vllm-model", f"fp32={model}"),
    ]


def test_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--workloads", "W1,W9"])
    assert "unknown W9; there are W1, W2" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["--llama-model", "file.gguf"])
    assert "'file.gguf' is not NAME=VALUE" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["--reps", "6"])
    assert "there are 5 sets of prompts; use --fresh" in capsys.readouterr().err
    options = parse(["--llama-model", "a=b=c", "--only", "ramet,vllm"])
    assert options.llama_model == [("a", Path("b=c"))]
    assert (options.reps, options.only) == (5, ["ramet", "vllm"])


def test_all_in_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = main([*command(tmp_path), "--reps", "2", "--out", str(tmp_path)])
    assert read(tmp_path / "peers.json") == record
    assert not [note for note in record.notes if "failed" in note or "left out" in note]
    systems = ["ramet", "llama.cpp Q4_0", "vllm fp32"]
    for case in ("W1", "W2", "W3", "W4", "W5", "W5u", "W6"):
        turns = [sample.system for sample in record.samples if sample.case == case]
        assert turns == [*systems, *reversed(systems)]
    for row in record.medians:
        if row.case == SERVER:
            assert (row.metrics["start_s"] or 0) > 0
        else:
            assert row.metrics["failed"] == 0
            assert row.metrics["output_tokens_per_s"]
        assert (row.metrics["peak_memory_mb"] or 0) > 1
    valid = {row.system: row.metrics["valid_share"] for row in record.medians if row.case == "W5"}
    assert set(valid.values()) == {1.0}
    commands = record.settings["commands"]
    assert isinstance(commands, dict)
    assert list(commands) == systems
    assert str(tmp_path) not in (tmp_path / "peers.json").read_text(), "a record names no place on the machine"
    shown = capsys.readouterr().out
    assert "ramet against the best peer" in shown
    assert "TTFT of later turns" in shown


def test_a_server_a_repetition_and_only_some(tmp_path: Path) -> None:
    arguments = [*command(tmp_path), "--only", "ramet,vllm", "--workloads", "W1", "--fresh", "--reps", "2"]
    samples = main(arguments).samples
    order = [(sample.case, sample.system, sample.repetition) for sample in samples]
    turns = [("ramet", 0), ("vllm fp32", 0), ("vllm fp32", 1), ("ramet", 1)]
    assert order == [(case, *turn) for turn in turns for case in ("W1", SERVER)]


def test_a_peer_that_fails_leaves_and_the_others_go_on(tmp_path: Path) -> None:
    record = main([*command(tmp_path, "--fail-at completions"), "--workloads", "W1"])
    assert {sample.system for sample in record.samples} == {"ramet", "vllm fp32"}
    assert any("llama.cpp Q4_0 left out from here on" in note and "status 500" in note for note in record.notes)


def test_missing_peers_are_named_and_a_missing_ramet_is_an_error(tmp_path: Path) -> None:
    arguments = ["--synthetic", "--quick", "--workloads", "W6", "--ramet", fake(tmp_path, "ramet")]
    none = str(tmp_path / "none")
    record = main([*arguments, "--llama-server", none, "--llama-model", f"Q4_0={tmp_path}"])
    assert {sample.system for sample in record.samples} == {"ramet"}
    assert any("build llama.cpp" in note for note in record.notes)
    assert any("no --vllm-model" in note for note in record.notes)
    with pytest.raises(PeerFailedError, match="ramet ended with code 2"):
        main([*arguments[:-1], fake(tmp_path, "ended", "--silent odd")])
    with pytest.raises(SystemExit, match="no server is named by --only odd"):
        main([*arguments, "--only", "odd"])
