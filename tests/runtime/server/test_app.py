"""The application as a whole: routes that are not there, and whose answers are OpenAI's all the same."""

from collections.abc import Callable
from typing import Any

import openai
import pytest

from ramet.runtime import server as package
from tests.runtime.server.speaking_server import Served, error_of, live


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


IMAGE = "data:image/png;base64,iVBORw0KGgo="
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": IMAGE}}
INPUT_IMAGE = {"type": "input_image", "image_url": IMAGE}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


def said(role: str, *parts: object) -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


@pytest.mark.parametrize(
    ("path", "body", "field", "value"),
    [
        (
            "/v1/chat/completions",
            {"messages": [said("user", {"type": "text", "text": "What is it?"}, CHAT_IMAGE)]},
            "messages[0].content[1].type",
            "image_url",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{**said("tool", CHAT_IMAGE), "tool_call_id": "1"}]},
            "messages[0].content[0].type",
            "image_url",
        ),
        (
            "/v1/chat/completions",
            {"messages": [said("user", {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}})]},
            "messages[0].content[0].type",
            "input_audio",
        ),
        ("/v1/responses", {"input": [said("user", INPUT_IMAGE)]}, "input[0].content[0].type", "input_image"),
        (
            "/v1/responses",
            {"input": [said("user", {"type": "input_file", "file_id": "file-1"})]},
            "input[0].content[0].type",
            "input_file",
        ),
        (
            "/v1/responses",
            {"input": [{"type": "function_call_output", "call_id": "1", "output": [INPUT_IMAGE]}]},
            "input[0].output[0].type",
            "input_image",
        ),
        (
            "/v1/responses/input_tokens",
            {"input": [said("user", INPUT_IMAGE)]},
            "input[0].content[0].type",
            "input_image",
        ),
        (
            "/v1/messages",
            {"messages": [said("user", BLOCK)], "max_tokens": 5},
            "messages[0].content[0].type",
            "image",
        ),
        (
            "/v1/messages",
            {
                "messages": [said("user", {"type": "tool_result", "tool_use_id": "1", "content": [BLOCK]})],
                "max_tokens": 5,
            },
            "messages[0].content[0].content[0].type",
            "image",
        ),
        (
            "/v1/messages",
            {"messages": [said("user", {**BLOCK, "type": "document"})], "max_tokens": 5},
            "messages[0].content[0].type",
            "document",
        ),
        (
            "/v1/messages",
            {"system": [{**BLOCK, "text": "x"}], "messages": [said("user")], "max_tokens": 5},
            "system[0].type",
            "image",
        ),
        (
            "/v1/messages/count_tokens",
            {"messages": [said("user", BLOCK)]},
            "messages[0].content[0].type",
            "image",
        ),
        ("/encode_chat", {"messages": [said("user", CHAT_IMAGE)]}, "messages[0].content[0].type", "image_url"),
        (
            "/generate",
            {"input": {"messages": [said("user", CHAT_IMAGE)]}},
            "messages[0].content[0].type",
            "image_url",
        ),
    ],
)
def test_what_is_no_text_is_refused_by_name_in_every_dialect(
    server: Served, path: str, body: dict[str, Any], field: str, value: str
) -> None:
    answer = server.post(path, body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["message"].startswith(f"{field} is {value!r}"), error
    assert error["message"].endswith("this model takes text alone; say in words what is in it, or leave it out")
    assert error.get("param", field) == field


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


def test_the_package_has_what_it_names() -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert dir(package) == sorted(package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing
