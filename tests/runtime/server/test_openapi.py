"""/openapi.json describes the bodies."""

import re
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from tests.runtime.server.speaking_server import Served


def test_bodies_are_described_and_their_references_resolve(server: Served) -> None:
    described = server.get("/openapi.json").json()
    schemas: dict[str, Any] = described["components"]["schemas"]

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [one for item in value.values() for one in references(item)]
        return [one for item in value for one in references(item)] if isinstance(value, list) else []

    for reference in references(described):
        assert reference.removeprefix("#/components/schemas/") in schemas
    body = described["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    validator = Draft202012Validator({**body["schema"], "components": described["components"]})
    assert validator.is_valid({"messages": [{"role": "user", "content": "x"}], "temperature": 1, "regex": "a"})
    assert not validator.is_valid({"messages": [], "temprature": 1})
    assert not validator.is_valid({"messages": [], "temperature": "hot"})
    assert not validator.is_valid({"temperature": 1})
    assert schemas["ChatFieldsBody"]["additionalProperties"] is False


def test_answers_are_as_described(server: Served) -> None:
    described = server.get("/openapi.json").json()

    def check(method: str, path: str, status: str, response: httpx.Response) -> None:
        content = described["paths"][path][method]["responses"][status]["content"]
        schema = content[response.headers["content-type"].partition(";")[0]]["schema"]
        Draft202012Validator({**schema, "components": described["components"]}).validate(response.json())

    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "say:x"}], "logprobs": True},
        "/v1/completions": {"prompt": ["say:x", "say:y"], "logprobs": 2, "echo": True},
        "/v1/responses": {"input": "say:x"},
        "/v1/messages": {"messages": [{"role": "user", "content": "say:x"}], "max_tokens": 5},
        "/generate": {"input": {"text": "say:x"}, "params": {"logprobs": 2, "prompt_logprobs": 1}},
        "/score": {"input": {"text": "a"}, "continuations": ["b", "c"]},
        "/encode_chat": {"messages": [{"role": "user", "content": "x"}]},
        "/tokenize": {"text": "x"},
        "/detokenize": {"token_ids": [65]},
        "/flush_cache": {},
        "/abort": {"request_id": "x"},
    }
    for path, body in bodies.items():
        answered = server.post(path, body)
        assert answered.status_code == 200, (path, answered.text)
        check("post", path, "200", answered)
        if path != "/flush_cache":
            check("post", path, "4XX", server.request("POST", path, content=b"{"))
    for path in ("/v1/models", "/model_info", "/stats", "/health", "/ready"):
        check("get", path, "200", server.get(path))


def test_what_paths_have_in_braces_is_described(server: Served) -> None:
    for path, operations in server.get("/openapi.json").json()["paths"].items():
        for operation in operations.values():
            named = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"]
            assert named == re.findall(r"{(\w+)}", path)
            assert {"4XX", "5XX"} < set(operation["responses"])


def test_what_stands_behind_a_question_mark_is_described(server: Served) -> None:
    described = server.get("/openapi.json").json()["paths"]["/v1/programs/{program_id}"]
    (asked,) = (one for one in described["get"]["parameters"] if one["in"] == "query")
    assert (asked["name"], asked["schema"]) == ("stream", {"type": "boolean"})
    kinds = {method: one["responses"]["200"]["content"] for method, one in described.items()}
    assert kinds["get"]["application/json"]["schema"]["$ref"].endswith("/ProgramState")
    assert kinds["delete"]["application/json"]["schema"]["$ref"].endswith("/ProgramCancelled")


def test_what_may_be_one_or_the_other_is_described(server: Served) -> None:
    answer = server.get("/openapi.json").json()["paths"]["/v1/programs"]["post"]["responses"]["200"]["content"]
    names = [one["$ref"].rpartition("/")[2] for one in answer["application/json"]["schema"]["anyOf"]]
    assert names == ["ProgramResult", "ProgramState"]


def test_every_route_is_there(server: Served) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    assert {"/v1/completions", "/generate", "/score", "/metrics", "/health", "/abort"} <= set(paths)
    assert server.get("/openapi.json").json()["paths"] == paths
