"""Anthropic's messages over HTTP: whole and streamed, tools, thinking, and errors in Anthropic's body."""

import json
from typing import Any

import anthropic
import httpx
import pytest

from ramet.runtime.server import ServerConfig
from tests.runtime.server.speaking_server import HERMES_TEMPLATE, SECONDS, Served, live

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Weather for a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Lima"}}</tool_call>'


def ask(server: Served, text: str = "say:hello", **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": text}]
    return server.post("/v1/messages", {"messages": messages, "max_tokens": 100, "temperature": 0, **fields})


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    events = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def test_a_whole_answer(server: Served) -> None:
    answer = ask(server).json()
    assert answer["id"].startswith("msg_")
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "speaking")
    assert answer["content"] == [{"type": "text", "text": "hello", "citations": None}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    usage = answer["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len("user: say:hello")
    assert usage["output_tokens"] == 6
    # What Anthropic's reference requires, and has no meaning here.
    assert (answer["container"], answer["stop_details"]) == (None, None)
    assert {"cache_creation", "server_tool_use", "service_tier", "inference_geo"} <= set(usage)


@pytest.mark.parametrize(
    ("fields", "reason", "sequence", "text"),
    [
        ({"max_tokens": 3}, "max_tokens", None, "hel"),
        ({"stop_sequences": ["lo"]}, "stop_sequence", "lo", "hel"),
        ({"stop_sequences": []}, "end_turn", None, "hello"),
    ],
)
def test_why_it_stopped(
    server: Served, fields: dict[str, Any], reason: str, sequence: str | None, text: str
) -> None:
    answer = ask(server, **fields).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    assert answer["content"][0]["text"] == text


def test_a_stream_has_blocks_that_begin_and_end(hermes: Served) -> None:
    events = events_of(ask(hermes, f"say:One moment.{CALL}", tools=[WEATHER], stream=True))
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    deltas = [event for event in events if event["type"] == "content_block_delta"]
    assert "".join(one["delta"]["text"] for one in deltas if one["index"] == 0) == "One moment."
    arguments = "".join(one["delta"]["partial_json"] for one in deltas if one["index"] == 1)
    assert json.loads(arguments) == {"city": "Lima"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    whole = ask(hermes, f"say:One moment.{CALL}", tools=[WEATHER]).json()
    assert [block["type"] for block in whole["content"]] == ["text", "tool_use"]
    assert whole["content"][1]["input"] == {"city": "Lima"}
    assert whole["stop_reason"] == "tool_use"


def test_results_of_tools_become_tool_messages(server: Served) -> None:
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "weather?", "cache_control": {"type": "ephemeral"}}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Lima"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "say:ok"},
            ],
        },
    ]
    body = {"messages": messages, "system": [{"type": "text", "text": "be brief"}], "max_tokens": 9}
    assert server.post("/v1/messages", body).json()["content"][0]["text"] == "ok"
    turns = (
        "system: be brief",
        "user: weather?",
        'assistant: {"name": "get_weather", "arguments": {"city": "Lima"}}',
        "tool: sunny",
        "user: say:ok",
    )
    counted = server.post("/v1/messages/count_tokens", {key: body[key] for key in ("messages", "system")})
    assert counted.json() == {"input_tokens": sum(map(len, turns)) + 4}


@pytest.mark.parametrize(
    ("fields", "status", "match"),
    [
        ({"max_tokens": None}, 400, "max_tokens is missing"),
        ({"max_tokens": 0}, 400, "max_tokens is 0"),
        ({"stop_sequences": [""]}, 400, "stop_sequences is ''"),
        ({"tmeperature": 1}, 400, "did you mean 'temperature'"),
        ({"model": "claude"}, 404, "not served here"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400, "tools of your own"),
        ({"tools": [WEATHER], "tool_choice": {"type": "maybe"}}, 400, "auto, any, tool or none"),
        ({"tools": [WEATHER], "tool_choice": {"type": "any"}}, 400, "no call can be forced"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 400, "thinking"),
        ({"messages": [{"role": "system", "content": "x"}]}, 400, "it must be user or assistant"),
        ({"messages": [{"role": "user", "content": 5}]}, 400, "a text or a list of blocks"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "image"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]},
            400,
            "tool_use",
        ),
        ({"messages": [{"role": "user", "content": "row error"}]}, 500, "no token"),
    ],
)
def test_errors_are_anthropics(server: Served, fields: dict[str, Any], status: int, match: str) -> None:
    response = ask(server, **fields)
    assert response.status_code == status, response.text
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] in ("invalid_request_error", "not_found_error", "api_error")
    assert match in body["error"]["message"]


def test_a_failure_inside_a_stream_is_an_error_event(server: Served) -> None:
    *events, last = events_of(ask(server, "boom", stream=True))
    assert events[0]["type"] == "message_start"
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")


def test_anthropics_own_client() -> None:
    config = ServerConfig(api_keys=("secret",), drain_timeout=1.0)
    with (
        live(config, template=HERMES_TEMPLATE) as server,
        anthropic.Anthropic(base_url=server.url, api_key="secret", timeout=SECONDS, max_retries=0) as client,
    ):
        messages: list[Any] = [{"role": "user", "content": f"say:Wait.{CALL}"}]
        tools: list[Any] = [WEATHER]
        fields: dict[str, Any] = {"model": "speaking", "max_tokens": 200, "messages": messages, "tools": tools}
        whole = client.messages.create(**fields)
        with client.messages.stream(**fields) as stream:
            streamed = stream.get_final_message()
        for message in (whole, streamed):
            blocks: list[Any] = list(message.content)
            text, call = blocks
            assert (text.type, call.type, message.stop_reason) == ("text", "tool_use", "tool_use")
            assert call.input == {"city": "Lima"}
        assert client.messages.count_tokens(model="speaking", messages=messages).input_tokens > 10
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            client.messages.create(model="speaking", messages=messages, max_tokens=0)
        with pytest.raises(anthropic.AuthenticationError):
            client.with_options(api_key="wrong").messages.create(**fields)


def test_what_is_no_route_is_told_in_anthropics_form(server: Served) -> None:
    for path, status, kind in (
        ("/v1/messages", 405, "invalid_request_error"),
        ("/v1/messages/batches", 404, "not_found_error"),
    ):
        answer = server.get(path)
        assert (answer.status_code, answer.json()["type"]) == (status, "error")
        assert answer.json()["error"]["type"] == kind
