"""From bytes to records: limits, and errors that name the field."""

import json
from typing import Any

import msgspec
import pytest

from ramet.runtime.server import ServerConfig
from ramet.runtime.server.body import MAX_SEPARATORS, convert, split
from ramet.runtime.server.errors import HttpError
from tests.runtime.server.speaking_server import Served, error_of, served

CHAT = "/v1/chat/completions"


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    size: int


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    inner: Inner
    names: dict[str, int] = {}


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"inner": {"size": "x"}}, "inner.size", "invalid_type"),
        ({"inner": {"size": 1, "sise": 2}}, "inner.sise", "unknown_parameter"),
        ({"inner": {}}, "inner.size", "missing_required_parameter"),
        ({}, "inner", "missing_required_parameter"),
        ({"inner": {"size": 1}, "names": {"a": "b"}}, "names[...]", "invalid_type"),
        ({"inner": {"size": 1}, "naems": {}}, "naems", "unknown_parameter"),
    ],
)
def test_errors_name_the_field(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(HttpError) as caught:
        convert(body, Outer)
    assert (caught.value.status, caught.value.detail.param, caught.value.detail.code) == (400, param, code)


def test_fields_are_spread_over_records() -> None:
    assert split({"size": 1, "inner": 2}, Outer, Inner) == [{"inner": 2}, {"size": 1}]
    with pytest.raises(HttpError, match="did you mean 'names'"):
        split({"name": 1}, Outer, Inner)


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        (b'{"a": NaN}', 400, "invalid_json"),
        (b'{"messages": "\xff\xfe"}', 400, "invalid_json"),
        (b'{"messages": "\\ud800"}', 400, "invalid_json"),
        (b"\xff\xfe{\x00", 400, "invalid_json"),
        (b'{"messages": ' + b"[" * 100 + b"]" * 100 + b"}", 400, "json_too_deep"),
        (b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "json_too_deep"),
        (b'{"messages": "' + b"x" * 5000 + b'"}', 413, "body_too_large"),
        (b'{"x": 1e999}', 400, None),
    ],
)
def test_hostile_bodies(content: bytes, status: int, code: str | None) -> None:
    limit = 300_000 if content.count(b"[") > 1000 else 4096
    with served(ServerConfig(max_body_bytes=limit)) as server:
        response = server.request("POST", CHAT, content=content, headers={"content-type": "application/json"})
        error = error_of(response, status)
        if code is not None:
            assert error["code"] == code
        assert len(response.content) < 2000
        assert server.chat().status_code == 200


def test_a_body_without_a_length_is_counted_as_it_comes() -> None:
    async def endless() -> Any:
        while True:
            yield b'{"x": "' + b"x" * 1000

    with served(ServerConfig(max_body_bytes=4096)) as server:
        headers = {"content-type": "application/json"}
        assert error_of(server.request("POST", CHAT, content=endless(), headers=headers), 413)


def test_content_types(server: Served) -> None:
    content = json.dumps({"model": "speaking", "messages": [{"role": "user", "content": "say:x"}]}).encode()
    for content_type in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
        headers = {"content-type": content_type}
        assert server.request("POST", CHAT, content=content, headers=headers).status_code == 200
    for content_type in ("text/plain", "multipart/form-data", ""):
        headers = {"content-type": content_type}
        error = error_of(server.request("POST", CHAT, content=content, headers=headers), 415)
        assert error["code"] == "unsupported_content_type"


@pytest.mark.parametrize("unit", [b"[],", b"1,", b'{"a":1},', b'"a",'])
def test_a_body_of_a_million_values_is_refused_before_it_is_decoded(server: Served, unit: bytes) -> None:
    content = b'{"messages":[' + unit * (MAX_SEPARATORS // unit.count(b",") + 1) + b"1]}"
    response = server.request("POST", CHAT, content=content, headers={"content-type": "application/json"})
    assert error_of(response, 413)["code"] == "body_too_large"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {str(index): 1 for index in range((1 << 16) + 1)}),
        ("metadata", {str(index): "x" for index in range(17)}),
        ("stop", ["x"] * 65),
    ],
)
def test_fields_of_too_many_entries_are_refused_before_they_are_looked_through(
    server: Served, name: str, value: object
) -> None:
    assert error_of(server.chat("say:x", **{name: value}), 400)["param"] == name
    body = {"input": {"text": "say:x"}, "params": {name: value}}
    assert error_of(server.post("/generate", body), 400)["param"] == name


def test_a_large_body_is_decoded(server: Served) -> None:
    assert server.chat(user="x" * (2 << 20)).status_code == 200
    assert error_of(server.chat("say:x", usre="x" * (2 << 20)), 400)["param"] == "usre"
