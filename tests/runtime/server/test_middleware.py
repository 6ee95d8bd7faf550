"""What surrounds every request: its id, the log, CORS, and faults of ours."""

import logging

import pytest
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.server import ServerConfig
from tests.runtime.server.speaking_server import Served, error_of, served


def test_every_answer_has_an_id(server: Served) -> None:
    ids = {server.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
    assert server.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for response in (server.post("/v1/messages", {}), server.post("/v1/messages/count_tokens", {})):
        assert response.headers["request-id"] == response.headers["x-request-id"]
    for hostile in ("a b", "x" * 500, "a;b"):
        assert server.get("/health", headers={"x-request-id": hostile}).headers["x-request-id"] != hostile


def test_the_log_has_no_secrets_and_nothing_that_a_client_wrote(caplog: pytest.LogCaptureFixture) -> None:
    with (
        served(
            ServerConfig(api_keys=("top-secret",)), headers={"authorization": "Bearer top-secret"}
        ) as server,
        caplog.at_level(logging.DEBUG, logger="ramet"),
    ):
        server.chat("say:private words")
        server.get("/v1/models/private-path?query=private")
        server.get("/private-path")
    text = caplog.text
    assert "POST /v1/chat/completions 200" in text
    assert "top-secret" not in text
    assert "private" not in text


def test_a_fault_of_ours_is_a_500_whose_cause_stays_here(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: Request) -> Response:
        raise ZeroDivisionError("inner detail")

    with served() as server:
        server.app.add_api_route("/broken", broken)
        response = server.get("/broken")
        error = error_of(response, 500)
    assert error["code"] == "internal_error"
    assert "inner detail" not in response.text
    assert "inner detail" in caplog.text


def test_browsers_are_let_in_only_where_asked(server: Served) -> None:
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in server.get("/health", headers=preflight).headers
    config = ServerConfig(cors_origins=("https://a.example",), api_keys=("k",))
    with served(config) as other:
        allowed = other.request("OPTIONS", "/v1/models", headers=preflight)
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        refused = other.request("OPTIONS", "/v1/models", headers={**preflight, "origin": "https://b.example"})
        assert "access-control-allow-origin" not in refused.headers


def test_the_log_has_its_facts_as_fields(caplog: pytest.LogCaptureFixture) -> None:
    with served() as server, caplog.at_level(logging.INFO, logger="ramet"):
        request_id = server.chat("say:x").headers["x-request-id"]
    (fields,) = [vars(record)["fields"] for record in caplog.records if "fields" in vars(record)]
    assert fields["seconds"] > 0
    assert {name: value for name, value in fields.items() if name != "seconds"} == {
        "method": "POST",
        "route": "/v1/chat/completions",
        "status": 200,
        "request_id": request_id,
    }
