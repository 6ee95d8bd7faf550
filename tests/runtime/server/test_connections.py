"""Clients that send nothing, or read nothing, on a real port."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from ramet.runtime.server import ServerConfig
from tests.runtime.server.speaking_server import PLAIN_TEMPLATE, SECONDS, Live, live_engine, open_engine, spec

SHORT = 1.5
BUFFER = 4096


@pytest.fixture(scope="module")
def impatient() -> Iterator[Live]:
    config = ServerConfig(read_timeout=SHORT, write_timeout=SHORT, drain_timeout=1.0)
    tokenizer_spec = spec(PLAIN_TEMPLATE)
    with (
        open_engine(tokenizer_spec) as engine,
        live_engine(engine, tokenizer_spec, config, send_buffer=BUFFER) as server,
    ):
        yield server


@contextmanager
def connected(server: Live, *, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    address = urlsplit(server.url)
    with socket.socket() as connection:
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(SECONDS)
        connection.connect((address.hostname, address.port))
        yield connection


def request(body: dict[str, object], *, sent: int | None = None) -> bytes:
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data[:sent]


def everything(connection: socket.socket) -> bytes:
    received = b""
    while data := connection.recv(1 << 16):
        received += data
    return received


def test_heads_that_do_not_come(impatient: Live) -> None:
    for begun in (b"", b"GET /health HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: "):
        with connected(impatient) as connection:
            connection.sendall(begun)
            assert everything(connection) == b""


def test_a_second_head_that_does_not_come(impatient: Live) -> None:
    with connected(impatient) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while not received.endswith(b'{"status":"ok"}'):
            received += connection.recv(1 << 16)
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        assert everything(connection) == b""


def test_bodies_that_do_not_come(impatient: Live) -> None:
    with connected(impatient) as connection:
        connection.sendall(request({"model": "speaking", "prompt": "say:a"}, sent=5))
        received = everything(connection)
    assert received.startswith(b"HTTP/1.1 408")
    assert b"body_timeout" in received


def test_a_client_that_reads_nothing_is_let_go(impatient: Live) -> None:
    body = {"model": "speaking", "prompt": "slow", "max_tokens": 1900, "logprobs": 5, "n": 4, "stream": True}
    with connected(impatient, receive_buffer=BUFFER) as connection:
        before = impatient.engine.stats().output_tokens
        connection.sendall(request(body))
        end = time.monotonic() + SECONDS
        while impatient.gateway.live == 0:
            assert time.monotonic() < end
            time.sleep(0.002)
        while impatient.gateway.live:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert impatient.engine.stats().output_tokens - before < 4 * 1900, "it was cut, not finished"
        assert b"[DONE]" not in everything(connection)


def test_a_slow_reader_gets_everything(impatient: Live) -> None:
    body = {
        "model": "speaking",
        "prompt": "slow",
        "max_tokens": 150,
        "logprobs": 5,
        "n": 2,
        "stream": True,
        "temperature": 0,
    }
    whole = httpx.post(f"{impatient.url}/v1/completions", json=body, timeout=SECONDS).text
    received = b""
    with connected(impatient, receive_buffer=BUFFER) as connection:
        connection.sendall(request(body))
        while b"[DONE]" not in received[-100:]:
            data = connection.recv(1 << 18)
            assert data
            received += data
            time.sleep(0.002)
    assert received.count(b"data: ") == whole.count("data: ")


def test_those_who_wait_for_a_token_are_not_cut(impatient: Live) -> None:
    """Neither timeout counts while a client waits for the server."""
    streamed: list[str] = []

    def ask() -> None:
        body = {"model": "speaking", "prompt": "slow", "max_tokens": 200, "stream": True}
        streamed.append(httpx.post(f"{impatient.url}/v1/completions", json=body, timeout=SECONDS).text)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert [text.endswith("data: [DONE]\n\n") for text in streamed] == [True] * 4


def test_a_client_that_leaves_before_its_body_is_whole_is_no_fault(
    impatient: Live, caplog: pytest.LogCaptureFixture
) -> None:
    end = time.monotonic() + SECONDS
    with caplog.at_level("INFO", logger="ramet"):
        with connected(impatient) as connection:
            connection.sendall(request({"model": "speaking", "prompt": "say:a"}, sent=5))
            time.sleep(SHORT / 8)
        while "POST /v1/completions 499" not in caplog.text:
            assert time.monotonic() < end
            time.sleep(0.002)
    assert "failed" not in caplog.text


@contextmanager
def crowded(limit: int) -> Iterator[Live]:
    tokenizer_spec = spec(PLAIN_TEMPLATE)
    with (
        open_engine(tokenizer_spec) as engine,
        live_engine(engine, tokenizer_spec, ServerConfig(drain_timeout=1.0), max_connections=limit) as server,
    ):
        yield server


def status_of(connection: socket.socket) -> bytes:
    received = b""
    while not received.endswith((b'{"status":"ok"}', b"connected.\n")):
        data = connection.recv(1 << 16)
        assert data, received
        received += data
    return received.split(b" ")[1]


def is_closed(connection: socket.socket) -> bool:
    try:
        return everything(connection) == b""
    except ConnectionResetError:
        return True


HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def test_silent_connections_give_way_to_new_ones_the_longest_silent_first() -> None:
    with crowded(3) as server, ExitStack() as stack:
        first, second, third = (stack.enter_context(connected(server)) for _ in range(3))
        for one in (first, second, third):
            one.sendall(HEALTH)
            assert status_of(one) == b"200"
        first.sendall(HEALTH)
        assert status_of(first) == b"200"
        for _ in range(20):
            with connected(server) as another:
                another.sendall(HEALTH)
                assert status_of(another) == b"200"
        assert is_closed(second)
        first.sendall(HEALTH)
        assert status_of(first) == b"200"


def test_connections_that_are_answered_do_not_give_way() -> None:
    with crowded(2) as server, ExitStack() as stack:
        busy = [stack.enter_context(connected(server)) for _ in range(2)]
        for one in busy:
            body = {"model": "speaking", "prompt": "slow", "max_tokens": 1500, "stream": True}
            one.sendall(request(body))
            assert one.recv(15) == b"HTTP/1.1 200 OK"
        with connected(server) as refused:
            refused.sendall(HEALTH)
            assert status_of(refused) == b"503"
            assert is_closed(refused)
        busy[0].close()
        end = time.monotonic() + SECONDS
        while True:
            with connected(server) as another:
                another.sendall(HEALTH)
                if status_of(another) == b"200":
                    break
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_request_that_may_end_at_two_places_is_refused_and_its_connection_closed(impatient: Live) -> None:
    body = b'{"model": "speaking", "prompt": "say:a"}'
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with connected(impatient) as connection:
        connection.sendall(head + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n" + HEALTH)
        received = everything(connection)
        assert received.startswith(b"HTTP/1.1 400")
        assert received.count(b"HTTP/1.1") == 1
        assert b"invalid_framing" in received
