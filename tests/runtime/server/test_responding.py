"""Over a real port: clients that leave, readers that are slow, streams that fail, and the end of the server."""

import json
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx

from ramet.runtime.server import ServerConfig
from tests.runtime.server.speaking_server import SECONDS, Live, error_of, event_data, live

LONG = {"model": "speaking", "prompt": "slow", "max_tokens": 1900, "temperature": 0}


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def idle(server: Live) -> bool:
    stats = server.engine.stats()
    return stats.running_requests + stats.waiting_requests + server.gateway.live == 0


def test_a_client_that_leaves_a_stream_frees_its_pages(live_server: Live) -> None:
    for body in ({**LONG, "stream": True}, {**LONG, "stream": True, "n": 3}):
        with httpx.stream("POST", f"{live_server.url}/v1/completions", json=body, timeout=SECONDS) as response:
            lines = response.iter_lines()
            next(lines)
            assert not idle(live_server)
        wait_until(lambda: idle(live_server))
    assert live_server.engine.stats().aborted_requests == 4


def test_what_a_client_that_left_had_computed_stays_cached(live_server: Live) -> None:
    prompt = "stone " * 200 + "slow"
    with httpx.stream(
        "POST",
        f"{live_server.url}/v1/completions",
        json={**LONG, "prompt": prompt, "max_tokens": 500, "stream": True},
        timeout=SECONDS,
    ) as response:
        lines = response.iter_lines()
        for _ in range(6):
            next(lines)
    wait_until(lambda: idle(live_server))
    body = {"model": "speaking", "prompt": f"{prompt} then", "max_tokens": 2}
    usage = httpx.post(f"{live_server.url}/v1/completions", json=body, timeout=SECONDS).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == len(prompt)


def test_prompts_around_the_contexts_end_are_answered_or_refused_and_others_go_on(live_server: Live) -> None:
    limit = live_server.engine.info.context_length
    for num_tokens in (limit - 2, limit - 1, limit, limit + 1, 10 * limit):
        body = {"model": "speaking", "prompt": [65] * num_tokens, "max_tokens": 1}
        response = httpx.post(f"{live_server.url}/v1/completions", json=body, timeout=SECONDS)
        if num_tokens < limit:
            assert response.json()["usage"]["completion_tokens"] == 1
        else:
            assert error_of(response, 400)["code"] == "context_length_exceeded"
        body = {"model": "speaking", "prompt": "say:x", "max_tokens": 9}
        assert httpx.post(f"{live_server.url}/v1/completions", json=body, timeout=SECONDS).status_code == 200


def test_a_client_that_leaves_before_the_answer_ends_its_request(live_server: Live) -> None:
    address = urlsplit(live_server.url)
    body = json.dumps(LONG).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port), timeout=SECONDS) as client:
        client.sendall(head.encode() + body)
        wait_until(lambda: live_server.engine.stats().running_requests == 1)
    wait_until(lambda: idle(live_server))
    assert live_server.engine.stats().aborted_requests == 1


def test_a_slow_reader_holds_nobody_up(live_server: Live) -> None:
    body = {
        "model": "speaking",
        "prompt": "x",
        "max_tokens": 1900,
        "temperature": 0,
        "stream": True,
        "logprobs": 0,
        "n": 4,
    }
    with httpx.stream("POST", f"{live_server.url}/v1/completions", json=body, timeout=SECONDS) as slow:
        lines = slow.iter_lines()
        next(lines)
        quick = httpx.post(
            f"{live_server.url}/v1/completions", json={"model": "speaking", "prompt": "say:hi"}, timeout=SECONDS
        )
        assert quick.json()["choices"][0]["text"] == "hi"
        wait_until(lambda: live_server.engine.stats().running_requests == 0)
        *_, last = [line for line in lines if line]
    assert last == "data: [DONE]"


def test_a_deadline_inside_a_stream_is_its_last_event(live_server: Live) -> None:
    body = {**LONG, "stream": True, "timeout": 1.5}
    response = httpx.post(f"{live_server.url}/v1/completions", json=body, timeout=SECONDS)
    *data, last = event_data(response.text)
    assert len(data) > 3
    assert json.loads(last)["error"]["code"] == "deadline_exceeded"
    whole = httpx.post(f"{live_server.url}/v1/completions", json={**LONG, "timeout": 1.5}, timeout=SECONDS)
    assert (whole.status_code, whole.json()["error"]["code"]) == (504, "deadline_exceeded")


def test_the_end_of_the_server_lets_a_short_answer_finish_and_cuts_a_long_one() -> None:
    with live(ServerConfig(drain_timeout=3.0)) as server:
        results: dict[str, str] = {}

        def ask(name: str, body: dict[str, object]) -> None:
            results[name] = httpx.post(f"{server.url}/v1/completions", json=body, timeout=SECONDS).text

        bodies = {
            "long": {**LONG, "stream": True},
            "short": {"model": "speaking", "prompt": "slow say:" + "x" * 20, "max_tokens": 20, "stream": True},
            "whole": LONG,
        }
        threads = [threading.Thread(target=ask, args=one, daemon=True) for one in bodies.items()]
        for thread in threads:
            thread.start()
        wait_until(lambda: server.gateway.live == 3)
        server.stop()
        for thread in threads:
            thread.join(SECONDS)
        assert json.loads(event_data(results["long"])[-1])["error"]["code"] == "draining"
        assert event_data(results["short"])[-1] == "[DONE]"
        assert json.loads(results["whole"])["error"]["code"] == "draining"


def test_the_engine_that_dies_inside_a_stream_is_told(live_server: Live) -> None:
    with httpx.stream(
        "POST", f"{live_server.url}/v1/completions", json={**LONG, "stream": True}, timeout=SECONDS
    ) as response:
        lines = response.iter_lines()
        next(lines)
        live_server.engine.close()
        *_, last = [line for line in lines if line]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_dead"
    assert httpx.get(f"{live_server.url}/health", timeout=SECONDS).status_code == 503
