"""The application as a whole: routes that are not there, and whose answers are OpenAI's all the same."""

from collections.abc import Callable
from typing import Any

import openai
import pytest

from ramet.runtime import server as package
from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server import ServerConfig, create_app
from tests.runtime.server.speaking_server import Served, error_of, live, open_engine, spec


def test_unknown_routes_and_methods(server: Served) -> None:
    assert error_of(server.get("/nothing"), 404)["code"] == "not_found"
    assert "under /v1" in error_of(server.post("/chat/completions", {}), 404)["message"]
    assert "under /v1" not in error_of(server.post("/v1/load_lora_adapter", {}), 404)["message"]
    response = server.get("/v1/chat/completions")
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert "POST" in response.headers["allow"]


def test_routes_of_others_say_what_to_do_instead(server: Served) -> None:
    assert "POST /v1/score" in error_of(server.post("/v1/rerank", {}), 404)["message"]


def test_what_openais_client_can_ask_for_and_is_not_here_says_what_is() -> None:
    """Each in OpenAI's body, before anything that was sent is looked at."""
    with live() as running, openai.OpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0) as client:
        asks: list[Callable[[], object]] = [
            lambda: client.files.list(),
            lambda: client.files.create(file=("a.jsonl", b"{}"), purpose="batch"),
            lambda: client.batches.create(
                input_file_id="f", endpoint="/v1/chat/completions", completion_window="24h"
            ),
            lambda: client.audio.speech.create(model="m", voice="alloy", input="x"),
            lambda: client.audio.transcriptions.create(model="m", file=("a.wav", b"RIFF")),
            lambda: client.images.generate(model="m", prompt="x"),
            lambda: client.moderations.create(input="x"),
            lambda: client.fine_tuning.jobs.create(model="m", training_file="f"),
            lambda: client.vector_stores.create(),
            lambda: client.conversations.create(),
            lambda: client.uploads.create(bytes=1, filename="a", mime_type="text/plain", purpose="batch"),
            lambda: client.chat.completions.retrieve("chatcmpl-1"),
        ]
        for ask in asks:
            with pytest.raises(openai.NotFoundError, match=r"is not a route of this server: .*served are /v1/"):
                ask()
        with pytest.raises(openai.APIStatusError, match="are not kept") as refused:
            client.chat.completions.list()
        assert refused.value.status_code == 405
        with pytest.raises(openai.APIStatusError, match="over HTTP"):
            client.models.delete("speaking")


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
