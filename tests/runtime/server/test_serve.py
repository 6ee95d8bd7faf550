"""The server as a process: ready, serving, drained by SIGTERM, and a port that is taken."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.serve import UnaskedWarnings, bound_socket, serve, url_of
from ramet.runtime.server.settings import serve_settings
from tests.runtime.server.speaking_server import SECONDS, event_data

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
from ramet.runtime.server.serve import serve
from ramet.runtime.server.settings import serve_settings
settings = serve_settings({"port": 0, "drain_timeout": 30.0, "api_keys": ["secret"], "context_length": 2000}, None)
serve(settings, lambda engine, url: print(engine.pid, url, flush=True), builder="tests.runtime.engine.speaking:build_speaking")
print("ended", flush=True)
"""  # noqa: E501


@dataclass
class Started:
    process: "subprocess.Popen[str]"
    engine_pid: int
    url: str

    def post(self, body: dict[str, object]) -> httpx.Response:
        headers = {"authorization": "Bearer secret"}
        return httpx.post(f"{self.url}/v1/completions", json=body, headers=headers, timeout=SECONDS)


@contextmanager
def started() -> Iterator[Started]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAMET_LOG_LEVEL": "info"}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    ) as process:
        killer = threading.Timer(4 * SECONDS, process.kill)
        killer.start()
        try:
            assert process.stdout is not None
            pid, url = process.stdout.readline().split()
            yield Started(process, int(pid), url)
        finally:
            process.kill()
            killer.cancel()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_server_serves_and_ends_cleanly() -> None:
    with started() as server:
        assert server.post({"model": "speaking", "prompt": "say:hi"}).json()["choices"][0]["text"] == "hi"
        streamed: list[str] = []
        body = {"model": "speaking", "prompt": "slow", "max_tokens": 600, "stream": True}
        reader = threading.Thread(target=lambda: streamed.append(server.post(body).text), daemon=True)
        reader.start()
        while "ramet_requests_in_flight 1.0" not in _metrics(server):
            assert not streamed, "the answer ended before it was seen"
        with socket.create_connection((httpx.URL(server.url).host, httpx.URL(server.url).port or 0)) as wrong:
            wrong.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
            assert b"400" in wrong.recv(100)
        server.process.send_signal(signal.SIGTERM)
        out, errors = server.process.communicate(timeout=SECONDS)
        reader.join(SECONDS)
    assert "Invalid HTTP" not in errors
    assert event_data(streamed[0])[-1] == "[DONE]"
    assert (server.process.returncode, out) == (0, "ended\n")
    assert is_gone(server.engine_pid)
    assert "secret" not in errors
    assert "Traceback" not in errors


def test_two_servers_at_once_leave_each_other_alone() -> None:
    body: dict[str, object] = {"model": "speaking", "prompt": "say:hi"}
    with started() as one, started() as other:
        assert one.url != other.url
        for server in (one, other):
            assert server.post(body).json()["choices"][0]["text"] == "hi"
        one.process.send_signal(signal.SIGTERM)
        one.process.communicate(timeout=SECONDS)
        assert one.process.returncode == 0
        assert other.post(body).json()["choices"][0]["text"] == "hi"


def _metrics(server: Started) -> str:
    headers = {"authorization": "Bearer secret"}
    return httpx.get(f"{server.url}/metrics", headers=headers, timeout=SECONDS).text


def test_a_stream_goes_on_where_it_stopped_when_the_engine_is_killed() -> None:
    with started() as server:
        body = {
            "model": "speaking",
            "prompt": "slow",
            "max_tokens": 400,
            "temperature": 1,
            "seed": 3,
            "logprobs": 0,
        }
        undisturbed = server.post(body).json()["choices"][0]
        assert httpx.get(f"{server.url}/ready", timeout=SECONDS).status_code == 200
        with httpx.stream(
            "POST",
            f"{server.url}/v1/completions",
            json={**body, "stream": True},
            headers={"authorization": "Bearer secret"},
            timeout=SECONDS,
        ) as response:
            lines = response.iter_lines()
            received = [next(lines)]
            os.kill(server.engine_pid, signal.SIGKILL)
            statuses = _until_ready(server)
            received += lines
        assert received[-2:] == ["data: [DONE]", ""]
        chunks = [json.loads(line.removeprefix("data: ")) for line in received[:-2] if line]
        parts = [chunk["choices"][0] for chunk in chunks]
        assert "".join(part["text"] for part in parts) == undisturbed["text"]
        logprobs = [value for part in parts if part["logprobs"] for value in part["logprobs"]["token_logprobs"]]
        assert logprobs == undisturbed["logprobs"]["token_logprobs"]
        assert (503, 200) in statuses, "while it starts again, the server lives and is not ready"
        server.process.send_signal(signal.SIGINT)
        server.process.communicate(timeout=SECONDS)
    assert server.process.returncode == 0


def _until_ready(server: Started) -> set[tuple[int, int]]:
    """The statuses of /ready and /health, seen together, until the engine was gone and is back."""
    seen: set[tuple[int, int]] = set()
    statuses = (0, 0)
    while (503, 200) not in seen or statuses != (200, 200):
        statuses = (
            httpx.get(f"{server.url}/ready", timeout=SECONDS).status_code,
            httpx.get(f"{server.url}/health", timeout=SECONDS).status_code,
        )
        seen.add(statuses)
    return seen


def test_a_port_that_is_taken_is_named() -> None:
    with bound_socket("127.0.0.1", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(InvalidRequestError, match=f"port {port} of 127.0.0.1 is in use"):
            bound_socket("127.0.0.1", port)
    with bound_socket("127.0.0.1", port) as again:
        assert url_of(again, "127.0.0.1") == f"http://127.0.0.1:{port}"


def test_addresses_that_are_none() -> None:
    with pytest.raises(InvalidRequestError, match="is no address"):
        bound_socket("no.such.host.invalid", 0)
    for name in ("x" * 300, "ü" * 80, "a\x01b"):
        with pytest.raises(InvalidRequestError, match="is no address"):
            bound_socket(name, 0)
    with pytest.raises(InvalidRequestError, match="cannot be bound"):
        bound_socket("192.0.2.1", 0)


def test_a_store_that_cannot_be_opened_is_known_before_the_model_is_loaded(tmp_path: Path) -> None:
    settings = serve_settings({"port": 0, "response_store": tmp_path}, None)
    with pytest.raises(InvalidRequestError, match=r"response_store .* cannot be opened"):
        serve(settings, lambda engine, url: None, builder="nothing.that:exists")


def test_what_clients_do_wrong_fills_no_log() -> None:
    def is_logged(message: str, cause: BaseException | None = None) -> bool:
        exc_info = None if cause is None else (type(cause), cause, None)
        record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, message, None, exc_info)
        return UnaskedWarnings().filter(record)

    assert not is_logged("Invalid HTTP request received.")
    assert not is_logged("Unsupported upgrade request.")
    assert not is_logged("Exception in ASGI application", asyncio.CancelledError())
    assert not is_logged("Traceback (most recent call last):\n  ...\nasyncio.exceptions.CancelledError\n")
    assert is_logged("Exception in ASGI application", KeyError("ours"))


def test_where_a_client_reaches_it() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        assert url_of(one, "0.0.0.0") == f"http://127.0.0.1:{port}"
        assert url_of(one, "::1") == f"http://[::1]:{port}"
