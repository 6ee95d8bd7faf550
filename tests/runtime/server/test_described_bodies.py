"""Requests made of what /openapi.json says, right and wrong ones: each answer is as it describes, and none is
a fault of the server's.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.runtime.server.speaking_server import NAMING, Served

STATUSES = {200: "200", **dict.fromkeys(range(400, 500), "4XX")}
MODEL = "speaking"
TEXTS = st.sampled_from(["", "say:x", "user", "assistant", "auto", "json_schema", "é😀", "\0", "a" * 300])
NUMBERS = st.sampled_from([0, 1, -1, 2, 3, 0.5, 1e308, -0.0, 2**31, 2**63, 2**70])
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXTS,
    "integer": st.sampled_from([0, 1, 2, 5, -1, 10**6, 2**63]),
    "number": NUMBERS,
    "boolean": st.booleans(),
    "null": st.none(),
}
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
BOUNDED = {"max_tokens": 4, "max_completion_tokens": 4, "max_output_tokens": 4, "n": 2, "timeout": 30}
"""Long answers are other tests'."""
LIKELY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "say:x"}],
    "input": {"text": "say:x"},
    "continuations": ["b"],
    "model": MODEL,
}
"""What makes sense where the schema alone does not tell; other values come too."""


def values(schema: dict[str, Any], schemas: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """What the schema allows, mostly: of the keywords that msgspec writes."""
    if "$ref" in schema:
        return values(schemas[schema["$ref"].rpartition("/")[2]], schemas, depth + 1)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "const" in schema:
        return st.just(schema["const"])
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return st.one_of([values(option, schemas, depth + 1) for option in options])
    match schema.get("type"):
        case "object" if "properties" in schema:
            return objects(schema, schemas, depth)
        case "object":
            inner = schema.get("additionalProperties", {})
            return st.dictionaries(
                TEXTS, values(inner if isinstance(inner, dict) else {}, schemas, depth + 1), max_size=2
            )
        case "array":
            return st.lists(values(schema.get("items") or {}, schemas, depth + 1), max_size=3)
        case str() as kind:
            return SCALARS[kind]
        case _:
            return ANYTHING if depth < 6 else st.none()


def objects(schema: dict[str, Any], schemas: dict[str, Any], depth: int) -> st.SearchStrategy[dict[str, Any]]:
    properties: dict[str, st.SearchStrategy[Any]] = {}
    for name, one in schema["properties"].items():
        if name in BOUNDED:
            properties[name] = st.just(BOUNDED[name])
        elif name in LIKELY and depth < 2:
            properties[name] = st.one_of(*[st.just(LIKELY[name])] * 3, values(one, schemas, depth + 1))
        else:
            properties[name] = values(one, schemas, depth + 1)
    required = schema.get("required", [])
    optional = sorted(set(properties) - set(required))

    @st.composite
    def build(draw: st.DrawFn) -> dict[str, Any]:
        # A few at a time: of many, one would nearly always be wrong.
        chosen = draw(st.lists(st.sampled_from(optional), max_size=3, unique=True)) if optional else []
        # Anthropic's messages want it, though their record has a default.
        limited = [name for name in optional if name == "max_tokens"]
        made = {name: draw(properties[name]) for name in (*required, *limited, *chosen)}
        if draw(st.integers(0, 7)) == 0 and made:
            made[draw(st.sampled_from(sorted(made)))] = draw(ANYTHING)
        return made

    return build()


def described(server: Served) -> tuple[dict[str, Any], dict[str, Any]]:
    whole = server.get("/openapi.json").json()
    return whole["paths"], whole["components"]["schemas"]


PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/responses/compact",
    "/v1/responses/input_tokens",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/generate",
    "/score",
    "/encode_chat",
    "/tokenize",
    "/detokenize",
    "/abort",
    "/v1/programs",
    "/v1/programs/{program_id}/tool_results",
    "/v1/sessions",
    "/open_session",
    "/close_session",
    "/v1/embeddings",
    "/v1/score",
)
MAY_ALL_BE_REFUSED = frozenset(
    ("/v1/programs", "/v1/programs/{program_id}/tool_results", "/close_session", "/v1/embeddings", "/v1/score")
)
"""Chance makes no program and no id, and the model of these tests gives no embeddings."""


@pytest.mark.parametrize("path", PATHS)
def test_no_described_body_is_a_fault(server: Served, path: str) -> None:
    paths, schemas = described(server)
    body_schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    responses = paths[path]["post"]["responses"]
    seen: set[int] = set()

    @settings(max_examples=40)
    @given(body=values(body_schema, schemas))
    def check(body: dict[str, Any]) -> None:
        if path in NAMING:
            body = {**body, "model": MODEL}
        response = server.request(
            "POST", path, content=json.dumps(body).encode(), headers={"content-type": "application/json"}
        )
        seen.add(response.status_code)
        assert response.status_code in STATUSES, (body, response.text)
        content = responses[STATUSES[response.status_code]].get("content")
        if content is None:
            assert response.content == b""
            return
        kind = response.headers["content-type"].partition(";")[0]
        assert kind in content, (body, kind)
        if kind == "application/json":
            schema = {**content[kind]["schema"], "components": {"schemas": schemas}}
            Draft202012Validator(schema).validate(json.loads(response.text, parse_constant=_no_constant))

    check()
    # It reaches more than the first check.
    assert 200 in seen or path in MAY_ALL_BE_REFUSED


def test_all_routes_with_bodies_are_tried(server: Served) -> None:
    paths, _ = described(server)
    with_bodies = {path for path, operations in paths.items() if "requestBody" in operations.get("post", {})}
    assert with_bodies == set(PATHS)


def _no_constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")
