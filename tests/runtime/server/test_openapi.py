"""/openapi.json describes the bodies."""

from typing import Any

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


def test_every_route_is_there(server: Served) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    assert {"/v1/completions", "/generate", "/score", "/metrics", "/health", "/abort"} <= set(paths)
    assert server.get("/openapi.json").json()["paths"] == paths
