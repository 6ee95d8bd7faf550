"""The application as a whole: routes that are not there, and whose answers are OpenAI's all the same."""

from typing import Any

import pytest

from ramet.runtime import server as package
from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server import ServerConfig, create_app
from tests.runtime.server.speaking_server import Served, error_of, open_engine, spec


def test_unknown_routes_and_methods(server: Served) -> None:
    assert error_of(server.get("/nothing"), 404)["code"] == "not_found"
    assert "under /v1" in error_of(server.post("/chat/completions", {}), 404)["message"]
    assert "under /v1" not in error_of(server.post("/v1/load_lora_adapter", {}), 404)["message"]
    response = server.get("/v1/chat/completions")
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert "POST" in response.headers["allow"]


def test_routes_of_others_say_what_to_do_instead(server: Served) -> None:
    assert "POST /v1/score" in error_of(server.post("/v1/rerank", {}), 404)["message"]


def test_a_route_that_looks_like_an_id_is_not_here_either(server: Served) -> None:
    assert "every prefix is cached" in error_of(server.post("/v1/responses/compact", {}), 404)["message"]


def test_the_model_has_to_be_named(server: Served) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "say:x"}]},
        "/v1/completions": {"prompt": "say:x"},
        "/v1/responses": {"input": "say:x"},
    }
    for path, body in bodies.items():
        for without in (body, {**body, "model": None}, {**body, "model": ""}):
            error = error_of(server.request("POST", path, json=without), 400)
            assert (error["param"], error["code"]) == ("model", "missing_required_parameter")
            assert "'speaking'" in error["message"]


def test_a_trailing_slash_is_led_to_the_route(server: Served) -> None:
    assert server.get("/v1/models/", follow_redirects=True).status_code == 200


def test_settings_that_do_not_exist_are_refused_at_the_start() -> None:
    with open_engine(spec()) as engine:
        for config in (ServerConfig(tool_format="x"), ServerConfig(reasoning_format="x")):
            with pytest.raises(InvalidRequestError):
                create_app(engine, spec(), config)


def test_the_package_has_what_it_names() -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert dir(package) == sorted(package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing
