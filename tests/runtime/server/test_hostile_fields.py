"""Whatever stands in a body: an answer or a refusal, never a fault of ours, and the engine lives on."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.server import chat_route, completion_route
from tests.runtime.server.speaking_server import NAMING, SECONDS, Served

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([2**31, -(2**63), 2**64, 10**30, 0.5, -1.0, 1e308])
    | st.sampled_from(
        ["", "x", "auto", "none", "required", "user", "assistant", "say:y", "\x00", "</s>", "é😀"]
    )
)
KEYS = st.sampled_from(
    ["type", "role", "content", "text", "function", "name", "parameters", "arguments", "schema", "json_schema",
     "tool_calls", "$ref", "0", "program_id", "include_usage", "", "x"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
CHAT = [name for record in chat_route.RECORDS for name in record.__struct_encode_fields__]
COMPLETION = [name for record in completion_route.RECORDS for name in record.__struct_encode_fields__]
# Long generations are another test's.
SLOW = ("max_tokens", "max_completion_tokens", "n", "min_tokens", "timeout")


def check(server: Served, path: str, body: dict[str, Any]) -> None:
    async def send() -> httpx.Response:
        async with server.client() as client:
            named = {"model": server.engine.info.model, **body} if path in NAMING else body
            content = json.dumps(named).encode()
            return await client.post(path, content=content, headers={"content-type": "application/json"})

    response = asyncio.run(asyncio.wait_for(send(), SECONDS))
    assert response.status_code in (200, 400, 404), (body, response.text)
    if response.status_code != 200:
        error = response.json()["error"]
        assert error["message"], body
        assert error["type"] == "invalid_request_error", (body, error)
    elif not body.get("stream"):
        json.loads(response.text, parse_constant=lambda one: pytest.fail(f"{one} in {body}"))
    else:
        whole = ("data: [DONE]\n\n", '"message_stop"}\n\n', "}\n\n")
        assert response.text.endswith(whole), (body, response.text)
        # Programs tell of calls that fail; the stream itself is whole all the same.
        assert path == "/v1/programs" or '"error":{' not in response.text


@settings(max_examples=150)
@given(fields=st.dictionaries(st.sampled_from([n for n in CHAT if n not in SLOW]), VALUES, max_size=3))
def test_chat(server: Served, fields: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "say:x"}], "max_tokens": 4, **fields}
    check(server, "/v1/chat/completions", body)


@settings(max_examples=80)
@given(messages=st.lists(st.dictionaries(KEYS, VALUES, max_size=4), max_size=3))
def test_messages(server: Served, messages: list[dict[str, Any]]) -> None:
    check(server, "/v1/chat/completions", {"messages": messages, "max_tokens": 4})


@settings(max_examples=80)
@given(
    tools=st.lists(
        st.fixed_dictionaries(
            {"type": st.just("function")}, optional={"function": st.dictionaries(KEYS, VALUES, max_size=4)}
        ),
        max_size=3,
    ),
    choice=VALUES,
)
def test_tools(server: Served, tools: list[dict[str, Any]], choice: object) -> None:
    body = {"messages": [{"role": "user", "content": "say:x"}], "tools": tools, "tool_choice": choice}
    check(server, "/v1/chat/completions", {**body, "max_tokens": 4})


@settings(max_examples=150)
@given(fields=st.dictionaries(st.sampled_from([n for n in COMPLETION if n not in SLOW]), VALUES, max_size=3))
def test_completions(server: Served, fields: dict[str, Any]) -> None:
    check(server, "/v1/completions", {"prompt": "say:x", "max_tokens": 4, **fields})


@settings(max_examples=120)
@given(
    path=st.sampled_from(["/v1/responses", "/v1/messages", "/v1/messages/count_tokens"]),
    fields=st.dictionaries(
        st.sampled_from(
            ["input", "messages", "instructions", "system", "tools", "tool_choice", "text", "reasoning",
             "stream", "thinking", "stop_sequences", "temperature", "top_k", "metadata", "program"]
        ),
        VALUES,
        max_size=3,
    ),
)  # fmt: skip
def test_other_forms_of_a_conversation(server: Served, path: str, fields: dict[str, Any]) -> None:
    limit = {"/v1/responses": "max_output_tokens", "/v1/messages": "max_tokens"}.get(path)
    check(server, path, {**fields, limit: 4} if limit else fields)


@settings(max_examples=100)
@given(
    path=st.sampled_from(["/generate", "/score", "/tokenize", "/detokenize", "/encode_chat", "/abort"]),
    fields=st.dictionaries(
        st.sampled_from(
            ["input", "text", "token_ids", "params", "continuations", "messages", "chat", "tag", "priority",
             "cache_salt", "request_id", "model", "stream"]
        ),
        VALUES,
        max_size=3,
    ),
)  # fmt: skip
def test_native_routes(server: Served, path: str, fields: dict[str, Any]) -> None:
    check(server, path, fields)


@settings(max_examples=100)
@given(
    path=st.sampled_from(["/v1/embeddings", "/v1/score"]),
    fields=st.dictionaries(
        st.sampled_from(
            ["input", "pooling", "dimensions", "encoding_format", "query", "items", "label_token_ids",
             "item_first", "apply_softmax", "model", "priority", "cache_salt", "program", "user"]
        ),
        VALUES,
        max_size=4,
    ),
)  # fmt: skip
def test_embeddings_and_scores(server: Served, path: str, fields: dict[str, Any]) -> None:
    valid: dict[str, dict[str, Any]] = {
        "/v1/embeddings": {"input": "a"},
        "/v1/score": {"query": "a", "items": ["b"], "label_token_ids": [5]},
    }
    check(server, path, {**valid[path], **fields})


NAMES = st.sampled_from(["root", "a", "b", "", "x" * 300])
OPERATIONS = st.lists(
    st.fixed_dictionaries(
        {
            "do": st.sampled_from(
                ["text", "value", "gen", "select", "fork", "join", "begin_role", "end_role", "begin_scope",
                 "end_scope", "run"]
            )
        },
        optional={
            "text": st.sampled_from(["say:x", "y"]),
            "variable": NAMES,
            "branches": st.lists(NAMES, max_size=2),
            "options": st.lists(st.sampled_from(["a", "b", ""]), max_size=2),
            "params": st.fixed_dictionaries({"max_tokens": st.just(3)}, optional={"temperature": SCALARS}),
            "role": st.sampled_from(["user", "assistant", "x"]),
            "keep_errors": SCALARS,
            "tools": VALUES,
        },
    ),
    max_size=5,
)  # fmt: skip
NEEDED = {
    "text": ("text",), "value": ("variable",), "gen": ("variable", "params"), "select": ("variable", "options"),
    "fork": ("branches",), "join": ("branches",), "begin_role": ("role",), "end_role": ("role",),
    "end_scope": ("variable",),
}  # fmt: skip


@settings(max_examples=250)
@given(
    branches=st.lists(st.fixed_dictionaries({"name": NAMES, "operations": OPERATIONS}), max_size=3),
    tidy=st.booleans(),
    stream=st.booleans(),
)
def test_programs(server: Served, branches: list[dict[str, Any]], tidy: bool, stream: bool) -> None:
    """``tidy``: each operation has what it needs and no more, so that more of them are taken."""
    if tidy:
        given = {"text": "say:x", "variable": "v", "params": {"max_tokens": 3}, "options": ["a", "b"]}
        fallback: dict[str, Any] = {**given, "branches": [], "role": "user"}
        for number, branch in enumerate(branches):
            for position, one in enumerate(branch["operations"]):
                needed = {name: one.get(name, fallback[name]) for name in NEEDED.get(one["do"], ())}
                if "variable" in needed and one["do"] != "value":
                    needed["variable"] = f"v{number}.{position}"
                branch["operations"][position] = {"do": one["do"], **needed}
    check(server, "/v1/programs", {"program": {"version": 1, "branches": branches}, "stream": stream})


@settings(max_examples=80)
@given(
    path=st.sampled_from(["/v1/sessions", "/open_session", "/close_session", "/v1/programs/x/tool_results"]),
    fields=st.dictionaries(
        st.sampled_from(
            ["session_id", "ttl", "max_tokens", "capacity_of_str_len", "timeout", "variable", "results"]
        ),
        VALUES,
        max_size=3,
    ),
)
def test_sessions_and_results(server: Served, path: str, fields: dict[str, Any]) -> None:
    check(server, path, fields)
    for session in server.get("/v1/sessions").json()["data"]:
        server.post("/close_session", {"session_id": session["id"]})


def test_the_engine_lived_through_all_of_it(server: Served) -> None:
    assert server.chat().json()["choices"][0]["message"]["content"] == "hello"
    server.engine.check_integrity()


def test_what_shadows_a_parameter_of_ours_is_refused(server: Served) -> None:
    for name in ("messages", "tools", "tokenizer", "continue_final_message", "chat_template"):
        body = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {name: []}}
        response = server.post("/v1/chat/completions", {**body, "max_tokens": 2})
        assert response.status_code == (200 if name == "tokenizer" else 400), (name, response.text)
        given = {"messages": body["messages"], "chat": {"template_kwargs": {name: []}}}
        for path, native in (
            ("/encode_chat", given),
            ("/generate", {"input": given, "params": {"max_tokens": 2}}),
            ("/score", {"input": given, "continuations": ["a"]}),
        ):
            response = server.post(path, native)
            assert response.status_code == (200 if name == "tokenizer" else 400), (path, name, response.text)


@pytest.mark.parametrize("request_id", ["", "x" * 201, "a\0b", "a\nb", "\u202ea"])
def test_ids_that_are_none(server: Served, request_id: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/completions": {"prompt": "x"},
        "/v1/responses": {"input": "x"},
        "/generate": {"input": {"text": "x"}},
        "/abort": {},
    }
    for path, body in bodies.items():
        response = server.post(path, {**body, "request_id": request_id})
        assert response.status_code == 400, (path, response.text)
        assert response.json()["error"]["param"] == "request_id"
