"""API keys: who is let in, and what keeps tenants apart."""

import asyncio

import pytest

from ramet.runtime.server import ServerConfig
from ramet.runtime.server.tenants import ApiKeys, Tenant, sent_key
from tests.runtime.server.speaking_server import SECONDS, Served, error_of, served

ROUTES = ("/v1/models", "/metrics", "/stats", "/model_info", "/tokenizer", "/openapi.json", "/nothing")


def with_key(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_every_route_but_health_needs_a_key() -> None:
    with served(ServerConfig(api_keys=("k1", "k2"))) as server:
        for route in ROUTES:
            error = error_of(server.get(route), 401)
            assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
        for headers in ({}, with_key("k"), with_key(""), {"authorization": "Basic k1"}, with_key("k1k2")):
            assert error_of(
                server.post("/v1/completions", {"model": "speaking", "prompt": "say:x"}, headers=headers), 401
            )
        assert server.get("/health").status_code == server.get("/ready").status_code == 200
        for headers in (with_key("k1"), with_key("k2"), {"x-api-key": "k2"}, {"authorization": "bearer k1"}):
            assert server.get("/v1/models", headers=headers).status_code == 200
        assert server.get("/v1/models").headers["www-authenticate"] == "Bearer"
        told = server.post("/v1/messages", {"model": "speaking"})
        assert (told.status_code, told.json()["error"]["type"]) == (401, "authentication_error")


def test_tenants_share_no_prefix() -> None:
    with served(ServerConfig(api_keys=("k1", "k2"))) as server:

        def cached(key: str, **fields: object) -> int:
            body = {"model": "speaking", "prompt": "a prompt of some length, say:x", **fields}
            answer = server.post("/v1/completions", body, headers=with_key(key)).json()
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [cached("k1"), cached("k2"), cached("k1"), cached("k2")] == [0, 0, 29, 29]
        assert [cached("k1", cache_salt="s"), cached("k1", cache_salt="s")] == [0, 29]


def test_tenants_do_not_abort_each_other() -> None:
    with served(ServerConfig(api_keys=("k1", "k2"))) as server:
        asyncio.run(asyncio.wait_for(abort_as_other_and_as_owner(server), SECONDS))


async def abort_as_other_and_as_owner(server: Served) -> None:
    body = {"model": "speaking", "prompt": "slow", "max_tokens": 1900, "request_id": "mine"}
    async with server.client() as client:
        running = asyncio.ensure_future(client.post("/v1/completions", json=body, headers=with_key("k1")))
        while not server.engine.stats().running_requests:
            await asyncio.sleep(0.002)
        await client.post("/abort", json={"request_id": "mine"}, headers=with_key("k2"))
        await asyncio.sleep(0.05)
        assert not running.done()
        await client.post("/abort", json={"request_id": "mine"}, headers=with_key("k1"))
        assert (await running).status_code == 499


def test_without_keys_everyone_is_one_tenant() -> None:
    assert ApiKeys([]).tenant("anything") == Tenant()
    assert Tenant().salted("s") == "s"
    assert Tenant().request_id("r") == "r"


def test_keys_are_told_apart_and_shown_nowhere() -> None:
    keys = ApiKeys(["one", "two"])
    first, second = keys.tenant("one"), keys.tenant("two")
    assert first is not None
    assert second is not None
    assert first != second
    assert keys.tenant("On") is None
    for shown in (repr(keys), repr(first), first.salted(""), repr(ServerConfig(api_keys=("secret",)))):
        assert "one" not in shown.lower().replace("none", "")
        assert "secret" not in shown


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"authorization": "Bearer  abc "}, "abc"),
        ({"authorization": "abc"}, ""),
        ({"x-api-key": "abc"}, "abc"),
        ({}, ""),
    ],
)
def test_where_a_key_is_sent(headers: dict[str, str], key: str) -> None:
    assert sent_key(headers) == key
