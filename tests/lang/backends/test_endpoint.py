"""Programs on a ramet server are what they are on the engine in this process: ids, scores, text."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import ramet
from ramet.lang.backends.base import Backend, SelectRequest, TokenCounter
from ramet.lang.backends.endpoint import RuntimeEndpoint
from ramet.lang.backends.local import LocalBackend
from ramet.lang.errors import GenerationError
from ramet.runtime.protocol import ProgramTag, SamplingParams
from tests.lang.backends.loopback import serving
from tests.lang.backends.random_engine import RandomEngine, open_random
from tests.lang.backends.small_tokenizer import CHATML, LLAMA, small_tokenizer
from tests.lang.backends.wire_server import wire_handler


@pytest.fixture(params=[CHATML, LLAMA], ids=["chatml", "llama"])
def engine(request: pytest.FixtureRequest) -> Iterator[RandomEngine]:
    opened = open_random(small_tokenizer(request.param))
    with opened.face:
        yield opened


@pytest.fixture
def endpoint(engine: RandomEngine) -> Iterator[RuntimeEndpoint]:
    with (
        serving(wire_handler(engine.face, api_key="k")) as server,
        RuntimeEndpoint(server.url + "/", "k") as opened,
    ):
        yield opened


@ramet.function
def conversation(s: Any) -> None:
    s += ramet.system("Be there.")
    s += ramet.user("Is it http:")
    s += ramet.assistant(ramet.gen("first", max_tokens=8, temperature=0))
    s += ramet.user("And?") + ramet.assistant_begin() + "It is http:"
    branches = s.fork(3)
    branches += ramet.gen("branch", max_tokens=5, seed=4)
    branches.join()
    s += ramet.select("chosen", choices=["//Paris", " there", "the"])
    s += ramet.gen("several", n=3, max_tokens=4, seed=1) + ramet.assistant_end()


def test_it_is_a_backend(engine: RandomEngine, endpoint: RuntimeEndpoint) -> None:
    seam: Backend = endpoint
    assert isinstance(seam, TokenCounter)
    local = LocalBackend(engine.face).capabilities
    assert seam.capabilities.name == f"the ramet server at {endpoint.base_url} with model 'random'"
    assert seam.capabilities.grammars == local.grammars
    assert seam.capabilities.select
    assert endpoint.info.vocab_size == engine.model.vocab_size


def test_a_program_is_the_same_as_in_process(engine: RandomEngine, endpoint: RuntimeEndpoint) -> None:
    here = conversation.run(backend=LocalBackend(engine.face))
    there = conversation.run(backend=endpoint)
    assert there.text() == here.text()
    for name in ("first", "branch", "chosen", "several"):
        assert there[name] == here[name]
    assert there.get_meta_info("first")["token_ids"] == here.get_meta_info("first")["token_ids"]
    assert there.get_meta_info("chosen")["scores"] == here.get_meta_info("chosen")["scores"]


def test_the_ids_are_the_same_as_in_process(engine: RandomEngine, endpoint: RuntimeEndpoint) -> None:
    async def ids(backend: Backend) -> list[list[int]]:
        prompt: Any = backend.prompt(cache_salt="salt")
        prompt.begin_role("user")
        prompt.append_text("Is it http:")
        prompt.end_role("user")
        prompt.begin_role("assistant")
        params = SamplingParams(max_tokens=6, temperature=0.0)
        async for _ in prompt.generate(params, tag=ProgramTag()):
            pass
        await prompt.select(SelectRequest(options=("//", " there")))
        prompt.end_role("assistant")
        await backend.prefill([prompt])
        return [await prompt.token_ids()]

    async def both() -> None:
        assert await ids(endpoint) == await ids(LocalBackend(engine.face))
        await endpoint.aclose()

    asyncio.run(asyncio.wait_for(both(), 60))


def test_what_can_be_asked_of_it(endpoint: RuntimeEndpoint) -> None:
    conversation.run(backend=endpoint)
    info = ramet.get_server_info(endpoint)
    assert info["model"] == "random"
    assert isinstance(info["stats"], dict)
    assert info["stats"]["finished_requests"] > 0
    ramet.flush_cache(endpoint)
    assert endpoint.count_tokens("Is there http://x") == len(endpoint_tokens(endpoint, "Is there http://x"))


def endpoint_tokens(endpoint: RuntimeEndpoint, text: str) -> list[int]:
    prompt: Any = endpoint.prompt()
    prompt.append_text(text)
    token_ids: list[int] = asyncio.run(prompt.token_ids())
    return token_ids


def test_errors_name_the_place(endpoint: RuntimeEndpoint) -> None:
    @ramet.function
    def too_long(s: Any) -> None:
        s += "the " * 3000 + ramet.gen("x", max_tokens=5)

    with pytest.raises(GenerationError, match=r"PromptTooLongError.*program 'too_long'.*variable 'x'"):
        too_long.run(backend=endpoint)
