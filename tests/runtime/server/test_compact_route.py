"""/v1/responses/compact and input_tokens, with OpenAI's own client."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from ramet.runtime.server import ServerConfig
from ramet.runtime.server.compaction import PREAMBLE, REQUEST, unpacked
from tests.runtime.server.speaking_server import SECONDS, Served, error_of, live

MODEL = "speaking"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder: Path = tmp_path_factory.mktemp("store")
    config = ServerConfig(drain_timeout=1.0, response_store=str(folder / "responses.sqlite"))
    with (
        live(config) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", timeout=SECONDS, max_retries=0) as one,
    ):
        yield one


def num_tokens(*turns: str) -> int:
    """A byte each, and one between two turns."""
    return sum(map(len, turns)) + len(turns) - 1


def test_a_conversation_is_made_short_and_goes_on(client: openai.OpenAI) -> None:
    history: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "say:one"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": [{"type": "input_text", "text": "two"}]},
    ]
    short = client.responses.compact(model=MODEL, input=history, instructions="Note numbers.")
    assert short.object == "response.compaction"
    first, second, last = (one.to_dict(warnings=False) for one in short.output)
    for message, text in ((first, "say:one"), (second, "two")):
        assert (message["role"], message["type"]) == ("user", "message")
        assert message["content"] == [{"type": "input_text", "text": text}]
    assert last["type"] == "compaction"
    summary = unpacked(str(last["encrypted_content"]), "x")
    # The model says what stands behind the prompt's first "say:", less the tokens between turns.
    assert summary.startswith("oneassistant: oneuser: twouser: Summarise our")
    assert summary.endswith(REQUEST[-20:])
    assert short.usage.input_tokens > len(REQUEST)
    assert short.usage.output_tokens > 0
    going_on: list[Any] = [one.to_dict(warnings=False) for one in short.output]
    counted = client.responses.input_tokens.count(model=MODEL, input=going_on)
    assert counted.input_tokens == num_tokens("user: say:one", "user: two", f"assistant: {PREAMBLE}{summary}")
    answer = client.responses.create(model=MODEL, input=[*going_on, {"role": "user", "content": "And now?"}])
    assert answer.status in ("completed", "incomplete")


def test_a_stored_conversation_is_made_short(client: openai.OpenAI) -> None:
    stored = client.responses.create(model=MODEL, input="say:hello", store=True, temperature=0)
    short = client.responses.compact(model=MODEL, previous_response_id=stored.id)
    assert [one.type for one in short.output] == ["message", "compaction"]
    more = client.responses.compact(model=MODEL, previous_response_id=stored.id, input="more")
    assert [one.type for one in more.output] == ["message", "message", "compaction"]
    counts = [
        client.responses.input_tokens.count(previous_response_id=stored.id, input="more").input_tokens,
        client.responses.input_tokens.count(input="say:hello").input_tokens,
    ]
    turns = ("user: say:hello", "assistant: hello", "user: more")
    assert counts == [num_tokens(*turns), num_tokens(turns[0])]
    with pytest.raises(openai.BadRequestError, match="has ended"):
        client.responses.cancel(stored.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_none")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"model": "other", "input": "x"}, "model"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].encrypted_content"),
        ({"input": [{"type": "compaction"}]}, "input[0]"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "service_tier": "flex"}, "service_tier"),
        ({"input": "x", "stream": True}, "stream"),
        ({"input": "x", "image": {"context_compression": "enabled"}}, "image"),
        ({"input": "there " * 4000}, "input"),
        ({"input": "x", "timeout": -1}, "timeout"),
    ],
)
def test_what_is_wrong_is_named(server: Served, body: dict[str, Any], param: str) -> None:
    answer = server.post("/v1/responses/compact", {"model": MODEL, **body})
    error = error_of(answer, 404 if param == "model" else 400)
    assert error["param"] == param, error


def test_the_model_has_to_be_named_for_an_answer_but_not_for_a_count(server: Served) -> None:
    error = error_of(server.post("/v1/responses/compact", {"input": "x", "model": None}), 400)
    assert error["param"] == "model"
    counted = server.post("/v1/responses/input_tokens", {"input": "x"})
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": len("user: x")}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": "x", "temperature": 1}, "temperature"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, None),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, None),
    ],
)
def test_what_cannot_be_counted_is_named(server: Served, body: dict[str, Any], param: str | None) -> None:
    error = error_of(server.post("/v1/responses/input_tokens", body), 400)
    assert param is None or error["param"] == param, error
