"""Embeddings over HTTP, against the states of the model that the server runs."""

import asyncio
import base64
from typing import Any

import numpy as np
import openai
import pytest

from ramet.runtime.server import ServerConfig
from tests.runtime.engine.fake_engine import HIDDEN_SIZE, state_at
from tests.runtime.server.speaking_server import Live, Served, error_of, served


def embed(server: Served, given: object, **fields: Any) -> dict[str, Any]:
    answer = server.post("/v1/embeddings", {"input": given, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def vectors(server: Served, given: object, **fields: Any) -> list[list[float]]:
    return [one["embedding"] for one in embed(server, given, **fields)["data"]]


def last_state(text: str) -> Any:
    state = np.array(state_at(list(text.encode()), len(text) - 1), dtype=np.float32)
    return state / np.linalg.norm(state.astype(np.float64))


def test_one_text_and_what_it_cost(server: Served) -> None:
    body = embed(server, "a text", model=server.app.state.server.model, user="me")
    (one,) = body.pop("data")
    assert (one["object"], one["index"]) == ("embedding", 0)
    assert np.allclose(one["embedding"], last_state("a text"), atol=1e-6)
    assert body["object"] == "list"
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == len("a text")


def test_every_form_of_input(server: Served) -> None:
    texts = ["one", "the other"]
    ids = [list(text.encode()) for text in texts]
    both = vectors(server, texts)
    assert vectors(server, ids) == both
    assert vectors(server, texts[0]) == vectors(server, [texts[0]]) == vectors(server, ids[0]) == both[:1]
    assert vectors(server, list(reversed(texts))) == both[::-1]


def test_pooling_and_length(server: Served) -> None:
    (mean,) = vectors(server, "several", pooling="mean", normalize=False)
    states = [state_at(list(b"several"), position) for position in range(7)]
    assert np.allclose(mean, np.mean(states, axis=0), atol=1e-6)
    (unit,) = vectors(server, "several", pooling="mean")
    assert np.isclose(np.linalg.norm(unit), 1.0, atol=1e-6)


def test_base64_is_the_same_as_numbers(server: Served) -> None:
    (numbers,) = vectors(server, "a text", encoding_format="float", dimensions=HIDDEN_SIZE)
    encoded: Any = vectors(server, "a text", encoding_format="base64")[0]
    assert np.frombuffer(base64.b64decode(encoded), dtype="<f4").tolist() == numbers


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": [1, 100000]}, "input"),
        ({"input": "a" * 3000}, "input"),
        ({"input": "a", "dimensions": 2}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "timeout": -1}, "timeout"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"input": "a", "stream": True}, "stream"),
        ({"input": ["a"] * 1000}, "n"),
    ],
)
def test_what_is_wrong_is_named(server: Served, body: dict[str, Any], param: str) -> None:
    error = error_of(server.post("/v1/embeddings", body), 400)
    assert str(error["param"]).startswith(param)
    assert error["type"] == "invalid_request_error"


def test_another_model_is_not_here(server: Served) -> None:
    assert (
        error_of(server.post("/v1/embeddings", {"input": "a", "model": "x"}), 404)["code"] == "model_not_found"
    )


def test_a_full_server_and_one_that_is_late() -> None:
    with served(ServerConfig(max_queued_requests=0), width=1) as server:
        assert error_of(server.post("/v1/embeddings", {"input": ["a", "b"]}), 400)["code"] == "too_many_answers"
        slow = {"input": "slow " * 300, "timeout": 0.01}
        assert error_of(server.post("/v1/embeddings", slow), 504)["code"] == "deadline_exceeded"


def test_openais_client_reads_them(live_server: Live) -> None:
    async def main() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{live_server.url}/v1", api_key="none") as client:
            # The client asks for base64 by itself.
            plain = await client.embeddings.create(model="speaking", input=["a text", "b"])
            numbers = await client.embeddings.create(model="speaking", input="a text", encoding_format="float")
            return [plain.data[0].embedding, numbers.data[0].embedding]

    first, second = asyncio.run(main())
    assert first == second
    assert np.allclose(first, last_state("a text"), atol=1e-6)
