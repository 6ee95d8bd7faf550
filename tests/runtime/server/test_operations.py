"""Health, models, numbers and the routes that act on the engine."""

import asyncio

import msgspec

from ramet.runtime.protocol import wire
from ramet.runtime.server import ServerConfig
from tests.runtime.server.speaking_server import SECONDS, Served, error_of, served


def test_health_and_readiness() -> None:
    with served() as server:
        assert server.get("/health").json() == {"status": "ok"}
        assert server.get("/ready").status_code == 200
        server.gateway.start_draining()
        assert server.get("/health").status_code == 200
        assert error_of(server.get("/ready"), 503)["code"] == "draining"
        assert error_of(server.chat(), 503)["code"] == "draining"


def test_a_dead_engine_is_told() -> None:
    with served() as server:
        pass
    assert error_of(server.get("/health"), 503)["code"] == "engine_dead"
    assert error_of(server.get("/ready"), 503)["code"] == "engine_dead"
    assert error_of(server.chat(), 503)["code"] == "engine_dead"
    assert error_of(server.get("/stats"), 503)["code"] == "engine_dead"
    assert "ramet_engine_up 0.0" in server.get("/metrics").text


def test_models(server: Served) -> None:
    (model,) = server.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("speaking", "model", 2000)
    assert server.get("/v1/models/speaking").json() == model
    assert error_of(server.get("/v1/models/other"), 404)["code"] == "model_not_found"


def test_the_model_under_other_names() -> None:
    with served(ServerConfig(served_model_names=("org/name", "alias"))) as server:
        assert [model["id"] for model in server.get("/v1/models").json()["data"]] == ["org/name", "alias"]
        assert server.get("/v1/models/org/name").status_code == 200
        assert server.chat(model="alias").json()["model"] == "alias"
        assert server.chat(model="org/name").json()["model"] == "org/name"
        error_of(server.chat(model="speaking"), 404)


def test_model_info(server: Served) -> None:
    info = msgspec.json.decode(server.get("/model_info").content, type=wire.ServedModel)
    assert (info.model, info.context_length, info.kv_tokens) == ("speaking", 2000, 8000)
    assert "choice" in info.grammars


def test_load_balancers_ask_with_head(server: Served) -> None:
    for path in ("/health", "/ready", "/v1/models", "/metrics"):
        assert server.request("HEAD", path).status_code == 200
    assert server.request("HEAD", "/v1/completions").status_code == 405


def test_stats_and_the_cache() -> None:
    with served() as server:
        server.complete("a prompt of some length, say:x")
        stats = server.get("/stats").json()
        assert stats["engine"]["finished_requests"] == 1
        assert stats["server"]["live_answers"] == 0
        assert stats["info"]["page_size"] == 1
        flushed = server.post("/flush_cache").json()["num_tokens"]
        assert flushed >= 28
        assert server.complete("a prompt of some length, say:x").json()["usage"]["prompt_tokens_details"] == {
            "cached_tokens": 0
        }


def test_a_request_is_aborted_by_its_id() -> None:
    with served() as server:

        async def run() -> tuple[int, str]:
            async with server.client() as client:
                body = {"model": "speaking", "prompt": "slow", "max_tokens": 1900, "request_id": "mine"}
                running = asyncio.ensure_future(client.post("/v1/completions", json=body))
                while not server.engine.stats().running_requests:
                    await asyncio.sleep(0.002)
                twice = await client.post("/v1/completions", json=body)
                assert (await client.post("/abort", json={"request_id": "other"})).status_code == 200
                assert not running.done()
                await client.post("/abort", json={"request_id": "mine"})
                return twice.status_code, (await running).json()["error"]["code"]

        status, code = asyncio.run(asyncio.wait_for(run(), SECONDS))
        assert (status, code) == (400, "request_aborted")
        assert error_of(server.post("/abort", {}), 400)["param"] == "request_id"


def test_a_full_queue_is_429_with_a_time_to_come_back() -> None:
    with served(ServerConfig(max_queued_requests=1), width=1) as server:

        async def run() -> list[int]:
            async with server.client() as client:
                body = {"model": "speaking", "prompt": "slow", "max_tokens": 60}
                answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(6)))
                refused = [answer for answer in answers if answer.status_code == 429]
                assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
                assert all(answer.json()["error"]["code"] == "queue_full" for answer in refused)
                return [answer.status_code for answer in answers]

        assert sorted(asyncio.run(asyncio.wait_for(run(), SECONDS))) == [200, 200, 429, 429, 429, 429]
        assert "ramet_requests_refused_total 4.0" in server.get("/metrics").text
