"""Fields inside of messages, parts, calls, tools and choices: read, ignored, or refused by name."""

from typing import Any

import pytest

from ramet.runtime.server.errors import HttpError
from ramet.runtime.server.nested_fields import Fields, chat_messages, chat_tools
from tests.runtime.server.speaking_server import Served, error_of

USER = {"role": "user", "content": "say:ok"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "say:ok"}
ASKED = {"role": "user", "content": 'say:<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'}
F = {"name": "f", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": F}

CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{**USER, "contents": "x"}]}, "messages[0].contents"),
    ({"messages": [{"role": "system", "content": "s", "tool_calls": []}, USER]}, "messages[0].tool_calls"),
    (
        {"messages": [{**USER, "content": [{"type": "text", "text": "a", "foo": 1}]}]},
        "messages[0].content[0].foo",
    ),
    ({"messages": [USER, {"role": "assistant", "content": "a", "foo": None}, USER]}, "messages[1].foo"),
    (
        {"messages": [USER, {"role": "assistant", "content": "a", "function_call": {"name": "f"}}, USER]},
        "messages[1].function_call",
    ),
    ({"messages": [USER, {"role": "assistant", "content": "a", "prefix": True}]}, "messages[1].prefix"),
    ({"messages": [USER, {**CALLED, "tool_calls": [{**CALL, "x": 1}]}, RESULT]}, "messages[1].tool_calls[0].x"),
    (
        {
            "messages": [
                USER,
                {**CALLED, "tool_calls": [{**CALL, "function": {"name": "f", "args": {}}}]},
                RESULT,
            ]
        },
        "messages[1].tool_calls[0].function.args",
    ),
    ({"messages": [USER, CALLED, {**RESULT, "tool_id": "c"}]}, "messages[2].tool_id"),
    ({"messages": [USER, CALLED, {**RESULT, "tool_call_id": "d"}]}, "messages[2].tool_call_id"),
    ({"messages": [USER], "tools": [{**TOOL, "strict": True}]}, "tools[0].strict"),
    (
        {"messages": [USER], "tools": [{"type": "function", "function": {**F, "params": {}}}]},
        "tools[0].function.params",
    ),
    (
        {
            "messages": [USER],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "f", "x": 1}},
        },
        "tool_choice.function.x",
    ),
    (
        {
            "messages": [USER],
            "tools": [TOOL],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [TOOL], "x": 1},
            },
        },
        "tool_choice.allowed_tools.x",
    ),
]
ITEM = {"role": "user", "content": "say:ok"}
MADE = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
GAVE = {"type": "function_call_output", "call_id": "c", "output": "say:ok"}
FLAT = {"type": "function", **F}
RESPONSES: list[tuple[dict[str, Any], str]] = [
    ({"input": [{**ITEM, "name": "x"}]}, "input[0].name"),
    ({"input": [{**ITEM, "content": [{"type": "input_text", "text": "a", "x": 1}]}]}, "input[0].content[0].x"),
    ({"input": [ITEM, {**MADE, "args": 1}, GAVE]}, "input[1].args"),
    ({"input": [ITEM, MADE, {**GAVE, "content": "x"}]}, "input[2].content"),
    ({"input": [ITEM, MADE, {**GAVE, "call_id": "d"}]}, "input[2].call_id"),
    ({"input": [ITEM, {"type": "reasoning", "text": "x"}]}, "input[1].text"),
    ({"input": "x", "tools": [{**FLAT, "foo": 1}]}, "tools[0].foo"),
    ({"input": "x", "tools": [{**FLAT, "defer_loading": True}]}, "tools[0].defer_loading"),
    (
        {"input": "x", "tools": [FLAT], "tool_choice": {"type": "function", "name": "f", "x": 1}},
        "tool_choice.x",
    ),
]
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
GIVEN = {"type": "tool_result", "tool_use_id": "c", "content": "say:ok"}
THEIRS = {"name": "f", "input_schema": F["parameters"]}
MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{**USER, "name": "x"}]}, "messages[0].name"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]},
        "messages[0].content[0].x",
    ),
    ({"messages": [USER], "system": [{"type": "text", "text": "a", "x": 1}]}, "system[0].x"),
    ({"messages": [USER, USE, {"role": "user", "content": [{**GIVEN, "x": 1}]}]}, "messages[2].content[0].x"),
    (
        {
            "messages": [
                USER,
                USE,
                {"role": "user", "content": [{**GIVEN, "content": [{"type": "text", "text": "", "x": 1}]}]},
            ]
        },
        "messages[2].content[0].content[0].x",
    ),
    (
        {"messages": [USER, USE, {"role": "user", "content": [{**GIVEN, "tool_use_id": "d"}]}]},
        "messages[2].content[0].tool_use_id",
    ),
    ({"messages": [USER], "tools": [{**THEIRS, "parameters": {}}]}, "tools[0].parameters"),
    ({"messages": [USER], "tools": [{**THEIRS, "allowed_callers": ["code"]}]}, "tools[0].allowed_callers"),
    ({"messages": [USER], "tools": [THEIRS], "tool_choice": {"type": "auto", "x": 1}}, "tool_choice.x"),
    ({"messages": [USER], "thinking": {"type": "disabled", "x": 1}}, "thinking.x"),
    ({"messages": [USER], "metadata": {"x": 1}}, "metadata.x"),
]


@pytest.mark.parametrize(("fields", "param"), CHAT, ids=[param for _, param in CHAT])
def test_chat_refuses_by_name(hermes: Served, fields: dict[str, Any], param: str) -> None:
    error = error_of(hermes.post("/v1/chat/completions", fields), 400)
    assert error["param"] == param
    assert param in error["message"]


@pytest.mark.parametrize(("fields", "param"), RESPONSES, ids=[param for _, param in RESPONSES])
def test_responses_refuse_by_name(hermes: Served, fields: dict[str, Any], param: str) -> None:
    for path in ("/v1/responses", "/v1/responses/compact"):
        if path.endswith("compact") and "tools" in fields:
            continue
        error = error_of(hermes.post(path, fields), 400)
        assert error["param"] == param
        assert param in error["message"]


@pytest.mark.parametrize(("fields", "param"), MESSAGES, ids=[param for _, param in MESSAGES])
def test_messages_refuse_by_name(hermes: Served, fields: dict[str, Any], param: str) -> None:
    for path, more in (("/v1/messages", {"max_tokens": 8}), ("/v1/messages/count_tokens", {})):
        response = hermes.post(path, {**fields, **more})
        assert response.status_code == 400, response.text
        assert param in response.json()["error"]["message"]


def test_what_clients_write_into_the_history_changes_nothing(hermes: Served) -> None:
    plain = [USER, {"role": "assistant", "content": "a", "tool_calls": [CALL]}, RESULT]
    function = {"name": "f", "arguments": "{}", "parsed_arguments": {}}
    kept = {
        "role": "assistant",
        "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "parsed": None,
        "prefix": False,
        "partial": None,
        "provider_specific_fields": {"x": 1},
        "tool_calls": [{**CALL, "index": 0, "extra_content": {}, "function": function}],
    }
    marked = [{**USER, "cache_control": {"type": "ephemeral"}}, kept, {**RESULT, "cache_control": None}]
    tools = [{**TOOL, "cache_control": {"type": "ephemeral"}}]
    whole = hermes.post("/v1/chat/completions", {"messages": plain, "tools": [TOOL], "temperature": 0}).json()
    noted = hermes.post("/v1/chat/completions", {"messages": marked, "tools": tools, "temperature": 0}).json()
    contents = [one["choices"][0]["message"]["content"] for one in (noted, whole)]
    assert contents[0] == contents[1]
    assert noted["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_our_own_answers_may_be_sent_back(hermes: Served) -> None:
    said = hermes.post("/v1/chat/completions", {"messages": [ASKED], "tools": [TOOL], "temperature": 0}).json()
    message = said["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "say:ok"}
    again = hermes.post("/v1/chat/completions", {"messages": [ASKED, message, result], "max_tokens": 2})
    assert again.status_code == 200, again.text
    output = hermes.post("/v1/responses", {"input": "say:ok"}).json()["output"]
    again = hermes.post("/v1/responses", {"input": [ITEM, *output, ITEM], "max_output_tokens": 16})
    assert again.status_code == 200, again.text
    content = hermes.post("/v1/messages", {"messages": [USER], "max_tokens": 8}).json()["content"]
    turns = [USER, {"role": "assistant", "content": content}, USER]
    assert hermes.post("/v1/messages", {"messages": turns, "max_tokens": 2}).status_code == 200


def test_a_refusal_is_what_the_assistant_said(server: Served) -> None:
    def tokens(message: dict[str, Any]) -> int:
        response = server.post("/v1/chat/completions", {"messages": [USER, message, USER], "max_tokens": 1})
        assert response.status_code == 200, response.text
        return int(response.json()["usage"]["prompt_tokens"])

    plain = tokens({"role": "assistant", "content": "I will not."})
    parts = [{"type": "refusal", "refusal": "I will not."}]
    assert tokens({"role": "assistant", "content": parts}) == plain
    assert tokens({"role": "assistant", "content": None, "refusal": "I will not."}) == plain
    error = error_of(
        server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]}), 400
    )
    assert error["param"] == "messages[0].content[0].type"
    assert "assistant" in error["message"]


def test_a_near_name_is_offered() -> None:
    with pytest.raises(HttpError, match="did you mean 'content'"):
        chat_messages([{"role": "user", "contnt": "x"}])
    with pytest.raises(HttpError, match="did you mean 'parameters'"):
        chat_tools([{"type": "function", "function": {"name": "f", "paramters": {}}}])


def test_names_of_any_length_and_kind_are_shown_in_part() -> None:
    with pytest.raises(HttpError) as caught:
        Fields(frozenset(("a",))).kept({"x" * 100_000: 1}, "here")
    assert len(caught.value.detail.message) < 300


def test_what_is_no_object_is_for_others_to_refuse() -> None:
    odd: list[Any] = [1, None, "x", [], {"role": 1}, {"role": "nobody", "x": 1}, {}]
    assert chat_messages(odd) == odd
    assert chat_tools([1, None, [], "x"]) == [1, None, [], "x"]
