"""OpenAI's responses over HTTP, with its own client."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from ramet.runtime.server import ServerConfig
from tests.runtime.server.speaking_server import HERMES_TEMPLATE, SECONDS, Served, error_of, live

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather for a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Lima"}}</tool_call>'


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with (
        live(ServerConfig(drain_timeout=1.0), template=HERMES_TEMPLATE) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", timeout=SECONDS, max_retries=0) as one,
    ):
        yield one


def test_a_whole_answer(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="speaking", input="say:hello", temperature=0)
    assert (answer.output_text, answer.status) == ("hello", "completed")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len("user: say:hello"), 6)
    assert answer.id.startswith("resp_")
    assert answer.completed_at is not None
    assert answer.completed_at >= answer.created_at


def test_a_response_repeats_its_request(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "name": "f"}
    answer = client.responses.create(
        model="speaking",
        input="say:hello",
        tools=[tool],
        tool_choice="none",
        metadata={"a": "b"},
        safety_identifier="someone",
        max_output_tokens=2,
    )
    assert answer.tools[0].to_dict() == {**tool, "description": None, "parameters": None, "strict": None}
    assert (answer.metadata, answer.safety_identifier) == ({"a": "b"}, "someone")
    assert (answer.status, answer.completed_at) == ("incomplete", None)
    assert (answer.truncation, answer.background, answer.service_tier) == ("disabled", False, "default")
    said = answer.to_dict()
    assert {"presence_penalty", "frequency_penalty", "top_logprobs", "max_tool_calls"} <= set(said)


TOOLS: list[Any] = [WEATHER]


def test_a_stream_ends_with_the_whole(client: openai.OpenAI) -> None:
    with client.responses.stream(model="speaking", input=f"say:One moment.{CALL}", tools=TOOLS) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert (
        "".join(event.delta for event in events if event.type == "response.output_text.delta") == "One moment."
    )
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert json.loads("".join(deltas)) == {"city": "Lima"}
    message, call = final.output
    assert (message.type, call.type) == ("message", "function_call")
    whole = client.responses.create(model="speaking", input=f"say:One moment.{CALL}", tools=TOOLS)
    assert [item.type for item in whole.output] == ["message", "function_call"]
    assert whole.output_text == final.output_text == "One moment."


def test_a_cut_answer_is_incomplete(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="speaking", input="say:hello", max_output_tokens=3)
    assert (answer.status, answer.output_text) == ("incomplete", "hel")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


def test_history_with_calls(server: Served) -> None:
    history = [
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "warm"}]},
        {"role": "user", "content": "say:ok"},
    ]
    answer = server.post("/v1/responses", {"input": history, "instructions": "I"}).json()
    assert answer["output"][0]["content"][0]["text"] == "ok"
    turns = (
        "system: I",
        "system: be brief",
        "user: weather?",
        'assistant: [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"a": 1}}]',
        "tool: sunny",
        "tool: warm",
        "user: say:ok",
    )
    assert answer["usage"]["input_tokens"] == sum(map(len, turns)) + 6


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"inputs": "x"}, "inputs"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "web_search_call"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "banana", "content": "x"}]}, "input[0].role"),
        ({"instructions": "Be brief.", "input": [{"role": None, "content": "x"}]}, "input[0].role"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.function.name"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "properties": {}}}}, "text.format.properties"),
        ({"text": {"format": {"type": "json_object", "x": 1}}}, "text.format.x"),
        ({"text": {"format": 5}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"x": 1}}, "text.x"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
    ],
)
def test_what_is_refused(server: Served, fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        error = error_of(server.post("/v1/responses", {"input": "say:x", "stream": stream, **fields}), 400)
        assert error["param"] == param


def test_a_failure_inside_a_stream_is_an_error_event(server: Served) -> None:
    response = server.post("/v1/responses", {"input": "boom", "stream": True})
    name, data = response.text.strip().split("\n\n")[-1].split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["code"] == "request_failed"
    assert server.post("/v1/responses", {"input": "say:x", "store": False, "metadata": {}}).status_code == 200
