"""Chat completions over HTTP: every field, both ways to answer, what is refused and how."""

import json
from typing import Any

import httpx
import pytest

from tests.runtime.server.speaking_server import Served, error_of, events

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather for a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Lima"}}\n</tool_call>'


def choice_of(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return dict(choice)


def test_a_whole_answer(server: Served) -> None:
    answer = server.chat("say:héllo €").json()
    assert answer["id"].startswith("chatcmpl-")
    assert (answer["object"], answer["model"]) == ("chat.completion", "speaking")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "héllo €", "refusal": None, "annotations": []},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    usage = answer["usage"]
    prompt_tokens = len("user: say:héllo €".encode())
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt_tokens, len("héllo €".encode()) + 1)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_what_was_cached_is_said(server: Served) -> None:
    text = "a long prompt that is asked twice say:x"
    first, second = (server.chat(text).json()["usage"] for _ in range(2))
    assert first["prompt_tokens_details"]["cached_tokens"] < 8
    assert second["prompt_tokens_details"]["cached_tokens"] > 30
    assert first["prompt_tokens"] == second["prompt_tokens"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3, "seed": 1},
        {"logprobs": True, "top_logprobs": 2},
        {"max_tokens": 4},
        {"stop": ["o €"]},
        {"stop": "nothing", "seed": 7, "temperature": 1.0},
    ],
)
def test_a_stream_says_what_the_whole_answer_says(server: Served, fields: dict[str, Any]) -> None:
    text = "say:héllo € 😀 and more" if "seed" not in fields else "no script"
    fields = {"max_tokens": 20, **fields}
    whole = server.chat(text, **fields).json()
    chunks = events(server.chat(text, **fields, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1]["choices"] == []
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    streamed = {key: value for key, value in chunks[-1]["usage"].items() if key != "prompt_tokens_details"}
    assert streamed == {k: v for k, v in whole["usage"].items() if k != "prompt_tokens_details"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    for choice in whole["choices"]:
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert parts[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(part["delta"].get("content", "") for part in parts) == choice["message"]["content"]
        assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert (parts[-1]["delta"], parts[-1]["finish_reason"]) == ({}, choice["finish_reason"])
        logprobs = [entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]]
        assert logprobs == (choice["logprobs"] or {"content": []})["content"]


def test_a_stream_without_usage_has_no_usage(server: Served) -> None:
    chunks = events(server.chat(stream=True))
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


def test_logprobs_are_of_the_answers_tokens(server: Served) -> None:
    choice = choice_of(server.chat("say:h\U0001f600", logprobs=True))
    entries = choice["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "h\U0001f600"
    assert entries[0] == {
        "token": "h", "logprob": pytest.approx(-0.604), "bytes": [104], "top_logprobs": []
    }  # fmt: skip
    assert entries[1]["token"] == "bytes:\\xf0"


def test_roles_parts_and_null_contents(server: Served) -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        {"role": "user", "content": "say:ok"},
    ]
    response = server.post("/v1/chat/completions", {"messages": messages, "temperature": 0})
    assert choice_of(response)["message"]["content"] == "ok"
    turns = (
        "system: be brief",
        "user: weather?",
        'assistant: {"name": "f", "arguments": {"a": 1}}',
        "tool: sunny",
        "user: say:ok",
    )
    num_tokens = sum(map(len, turns)) + 4
    assert response.json()["usage"]["prompt_tokens"] == num_tokens


def test_sampling_fields_reach_the_engine(server: Served) -> None:
    assert choice_of(server.chat("say:abc", logit_bias={"97": -100}))["message"]["content"] is not None
    assert choice_of(server.chat("say:abcdef", max_completion_tokens=3))["finish_reason"] == "length"
    assert choice_of(server.chat("say:abcdef", max_tokens=3))["message"]["content"] == "abc"
    assert choice_of(server.chat("say:abcdef", stop=["d"], include_stop=True))["message"]["content"] == "abcd"
    assert choice_of(server.chat("say:abc123", stop_regex="[0-9]"))["message"]["content"] == "abc"
    assert choice_of(server.chat("x", choice=["yes", "no"]))["message"]["content"] in ("yes", "no")
    same = [choice_of(server.chat("x", temperature=1, seed=3, max_tokens=9))["message"] for _ in range(2)]
    assert same[0] == same[1]


def test_harmless_values_and_ignored_fields(server: Served) -> None:
    fields: dict[str, Any] = {
        "user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "modalities": ["text"],
        "suffix": None, "safety_identifier": "x", "prompt_cache_key": "k", "tools": [], "tool_choice": None,
        "parallel_tool_calls": True, "response_format": {"type": "text"}, "top_k": -1, "logprobs": False,
        "verbosity": "medium", "stop": None, "n": None, "temperature": None, "max_tokens": 3,
    }  # fmt: skip
    assert server.chat(**fields).status_code == 200


def test_a_final_assistant_message_is_continued_where_asked(server: Served) -> None:
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "say:on"}]
    body = {"messages": messages, "temperature": 0, "continue_final_message": True}
    assert choice_of(server.post("/v1/chat/completions", body))["message"]["content"] == "on"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"guided_choise": ["a"]}, "guided_choise", "unknown_parameter"),
        ({"guided_choice": ["a"]}, "guided_choice", "unknown_parameter"),
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
        ({"store": True}, "store", "unsupported_parameter"),
        ({"service_tier": "flex"}, "service_tier", "unsupported_parameter"),
        ({"chat_template": "{{ 1 }}"}, "chat_template", "unsupported_parameter"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": True}, "n", "invalid_type"),
        ({"top_p": 2}, "top_p", "invalid_value"),
        ({"seed": 2**70}, "seed", None),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens", "invalid_value"),
        ({"max_tokens": 99999}, "max_tokens", "context_length_exceeded"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"stop": [5]}, "stop[0]", "invalid_type"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "invalid_value"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "invalid_type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"type": "object"}}},
            "response_format.json_schema.type",
            "unknown_parameter",
        ),
        ({"regex": "a", "choice": ["a"]}, "choice", "invalid_value"),
        ({"choice": []}, "choice", "invalid_value"),
        ({"regex": "a+"}, "regex", "unsupported_constraint"),
        ({"max_whitespace": 1}, "max_whitespace", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type", "invalid_value"),
        ({"tools": [WEATHER], "tool_choice": "required"}, "tool_choice", "unsupported_constraint"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "invalid_value"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools", "invalid_value"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template", "invalid_value"),
        ({"timeout": -1}, "timeout", "invalid_value"),
        ({"model": "gpt-4"}, "model", "model_not_found"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        ({"messages": [{"role": "banana", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "messages", "context_length_exceeded"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
            "invalid_value",
        ),
    ],
)
def test_what_is_refused(server: Served, fields: dict[str, Any], param: str, code: str | None) -> None:
    for stream in (False, True):
        response = server.chat(**fields, stream=stream)
        error = error_of(response, 404 if code == "model_not_found" else 400)
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param
        if code is not None:
            assert error["code"] == code
        assert len(response.content) < 2000


def test_stream_options_go_with_a_stream(server: Served) -> None:
    error = error_of(server.chat(stream_options={"include_usage": True}), 400)
    assert (error["param"], error["code"]) == ("stream_options", "invalid_value")


def test_a_failure_of_the_engine_is_told_before_and_inside_a_stream(server: Served) -> None:
    assert error_of(server.chat("row error"), 500)["code"] == "request_failed"
    assert error_of(server.chat("row error", stream=True), 500)["code"] == "request_failed"
    response = server.chat("boom", stream=True)
    assert response.status_code == 200
    *chunks, last = [json.loads(line.removeprefix("data: ")) for line in response.text.strip().split("\n\n")]
    assert len(chunks) >= 3
    assert last["error"]["code"] == "request_failed"
    assert server.chat().status_code == 200


def test_a_tool_call(hermes: Served) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER]}
    choice = choice_of(hermes.chat("say:Let me see." + CALL, **fields))
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    (call,) = choice["message"]["tool_calls"]
    assert call["id"].startswith("call_")
    assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Lima"}
    alone = choice_of(hermes.chat("say:" + CALL, **fields))["message"]
    assert alone["content"] is None


def test_streamed_tool_calls_are_the_whole_ones(hermes: Served) -> None:
    chunks = events(hermes.chat(f"say:{CALL}\n{CALL}", tools=[WEATHER], stream=True))
    deltas = [call for c in chunks for call in c["choices"][0]["delta"].get("tool_calls", [])]
    assert [call["index"] for call in deltas] == sorted(call["index"] for call in deltas)
    for index in (0, 1):
        first, *rest = [call for call in deltas if call["index"] == index]
        assert (first["type"], first["function"]) == ("function", {"name": "get_weather", "arguments": ""})
        assert all("id" not in call and "name" not in call["function"] for call in rest)
        assert len(rest) > 5
        assert json.loads("".join(call["function"]["arguments"] for call in rest)) == {"city": "Lima"}
    assert len({call["id"] for call in deltas if "id" in call}) == 2
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == ""
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_that_is_cut_says_length(hermes: Served) -> None:
    choice = choice_of(hermes.chat("say:" + CALL, tools=[WEATHER], max_tokens=60))
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith("{")


def test_tools_are_shown_to_the_model_unless_there_is_none_to_call(server: Served, hermes: Served) -> None:
    for one in (server, hermes):
        without = one.chat().json()["usage"]["prompt_tokens"]
        assert one.chat(tools=[WEATHER]).json()["usage"]["prompt_tokens"] > without + 50
        assert one.chat(tools=[WEATHER], tool_choice="none").json()["usage"]["prompt_tokens"] == without


def test_calls_as_plain_json_where_the_template_has_none(server: Served) -> None:
    text = 'say:{"name": "get_weather", "arguments": {"city": "Lima"}}'
    choice = choice_of(server.chat(text, tools=[WEATHER]))
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Lima"}'
    assert choice_of(server.chat(text))["message"]["content"] == text.removeprefix("say:")


def test_strict_tools_are_not_taken_where_they_cannot_be_enforced(hermes: Served) -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
    error = error_of(hermes.chat(tools=[strict]), 400)
    assert (error["param"], error["code"]) == ("tools", "unsupported_constraint")
