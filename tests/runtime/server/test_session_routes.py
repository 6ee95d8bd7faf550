"""Sessions over HTTP: a conversation's prefix stays, whatever else runs, until it is closed."""

import time
from typing import Any

import httpx
import pytest

from ramet.runtime.server import ServerConfig
from tests.runtime.server.speaking_server import SECONDS, Live, Served, error_of, served

LONG = "say:" + "a long conversation " * 20


def cached(server: Served, session: str | None = None) -> int:
    """Of the prompt's tokens, those that came from the cache."""
    options = {} if session is None else {"session": session}
    answer = server.complete(LONG, max_tokens=5, **options)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def crowd(server: Served) -> None:
    """Other conversations, more than the pool holds."""
    for number in range(9):
        assert server.complete(f"{number} say:" + f"{number}" * 995, max_tokens=5).status_code == 200


def engine_stats(server: Served) -> dict[str, Any]:
    stats: dict[str, Any] = server.get("/stats").json()
    return {**stats["engine"], "open": stats["server"]["sessions"]}


def test_what_a_session_keeps_outlives_other_traffic() -> None:
    with served() as server:
        opened = server.post("/v1/sessions", {}).json()
        assert opened["object"] == "session"
        assert opened["max_tokens"] == 2000
        assert opened["expires_at"] - opened["created_at"] == opened["ttl"] == 600
        cached(server, opened["id"])
        assert engine_stats(server)["pinned_tokens"] >= len(LONG)
        crowd(server)
        assert cached(server) >= len(LONG) - 20
        closed = server.request("DELETE", f"/v1/sessions/{opened['id']}").json()
        assert closed["closed"]
        assert closed["released_tokens"] >= len(LONG)
        assert (engine_stats(server)["sessions"], engine_stats(server)["open"]) == (0, 0)
        crowd(server)
        assert cached(server) == 0


def test_without_a_session_it_is_evicted() -> None:
    with served() as server:
        cached(server)
        crowd(server)
        assert cached(server) == 0


def test_every_route_that_generates_takes_one() -> None:
    with served() as server:
        opened = server.post("/v1/sessions", {"session_id": "mine"}).json()["id"]
        user = [{"role": "user", "content": "say:hi"}]
        for path, body in (
            ("/v1/chat/completions", {"messages": user}),
            ("/v1/responses", {"input": "say:hi"}),
            ("/v1/messages", {"messages": user, "max_tokens": 9}),
            ("/generate", {"input": {"text": "say:hi"}}),
        ):
            before = server.get(f"/v1/sessions/{opened}").json()["num_requests"]
            answer = server.post(path, {"model": None, **body, "session": opened})
            if answer.status_code == 400:
                answer = server.post(path, {"model": server.app.state.server.model, **body, "session": opened})
            assert answer.status_code == 200, answer.text
            assert server.get(f"/v1/sessions/{opened}").json()["num_requests"] == before + 1
            unknown = server.post(
                path, {"model": server.app.state.server.model, **body, "session": "sess_none"}
            )
            assert unknown.status_code == 404, unknown.text
        assert [one["id"] for one in server.get("/v1/sessions").json()["data"]] == ["mine"]


def test_a_stream_pins_as_well() -> None:
    with served() as server:
        opened = server.post("/v1/sessions", {}).json()["id"]
        assert "[DONE]" in server.complete(LONG, max_tokens=5, stream=True, session=opened).text
        assert engine_stats(server)["sessions"] == 1
        assert "ramet_session_pinned_tokens" in server.get("/metrics").text


def test_sessions_are_bounded() -> None:
    with served(ServerConfig(max_sessions=1)) as server:
        opened = server.post("/v1/sessions", {"max_tokens": 10}).json()["id"]
        assert error_of(server.post("/v1/sessions", {}), 429)["code"] == "too_many_sessions"
        cached(server, opened)
        assert engine_stats(server)["pinned_tokens"] <= 10


def test_a_request_that_needs_the_pages_gets_them() -> None:
    """Sessions hold half of the pool; a request of nearly the whole of it still runs."""
    with served() as server:
        for number in range(6):
            opened = server.post("/v1/sessions", {}).json()["id"]
            prompt = f"{number} say:" + f"{number}" * 900
            assert server.complete(prompt, max_tokens=5, session=opened).status_code == 200
        assert engine_stats(server)["pinned_tokens"] <= 4000
        assert engine_stats(server)["dropped_pins"] >= 1
        prompts = [f"{letter} say:" + letter * 1900 for letter in "abcd"]
        answer = server.complete(prompts, max_tokens=5)
        assert answer.status_code == 200
        assert [choice["text"] for choice in answer.json()["choices"]] == ["aaaaa", "bbbbb", "ccccc", "ddddd"]


def test_keys_have_their_own() -> None:
    config = ServerConfig(api_keys=("alpha", "beta"))
    with served(config, headers={"authorization": "Bearer alpha"}) as server:
        other = {"headers": {"authorization": "Bearer beta"}}
        opened = server.post("/v1/sessions", {}).json()["id"]
        assert server.get("/v1/sessions", **other).json()["data"] == []
        assert error_of(server.get(f"/v1/sessions/{opened}", **other), 404)["code"] == "session_not_found"
        error_of(server.request("DELETE", f"/v1/sessions/{opened}", **other), 404)
        error_of(server.post("/v1/completions", {"prompt": "a", "session": opened}, **other), 404)
        assert server.get(f"/v1/sessions/{opened}").status_code == 200


def test_as_sglangs_clients_do() -> None:
    with served() as server:
        opened = server.post("/open_session", {"capacity_of_str_len": 1000, "session_id": "mine"})
        assert opened.json() == "mine"
        assert error_of(server.post("/open_session", {"session_id": "mine"}), 400)["param"] == "session_id"
        error = error_of(server.post("/open_session", {"streaming": True}), 400)
        assert error["param"] == "streaming"
        cached(server, "mine")
        assert server.post("/close_session", {"session_id": "mine"}).status_code == 200
        error_of(server.post("/close_session", {"session_id": "mine"}), 404)
        told = error_of(server.chat(session_params={"id": "mine"}), 400)
        assert "session, the id of one of /v1/sessions" in told["message"]


@pytest.mark.parametrize("body", [{"ttl": 0}, {"ttl": "long"}, {"max_tokens": -1}, {"capacity": 1}])
def test_fields_are_checked(server: Served, body: dict[str, Any]) -> None:
    error_of(server.post("/v1/sessions", body), 400)


def test_a_server_closes_one_in_time_without_another_request(live_server: Live) -> None:
    with httpx.Client(base_url=live_server.url, timeout=SECONDS) as client:
        session = client.post("/v1/sessions", json={"ttl": 1.0}).json()["id"]
        body = {"model": live_server.engine.info.model, "prompt": LONG, "max_tokens": 5, "session": session}
        assert client.post("/v1/completions", json=body).status_code == 200
    sessions = live_server.gateway.sessions
    end = time.monotonic() + SECONDS
    while sessions._open or sessions._expired:
        assert time.monotonic() < end, "it is still open"
        time.sleep(0.02)
