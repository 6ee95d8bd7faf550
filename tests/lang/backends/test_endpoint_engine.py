"""The client's engine against the native routes: what an engine in this process says, and its errors."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from ramet.lang.backends.endpoint_engine import HttpEngine
from ramet.lang.backends.http_client import Connection, RetryPolicy, Server
from ramet.lang.errors import GenerationError
from ramet.runtime.protocol import (
    Choice,
    FinishReason,
    InvalidRequestError,
    ProgramTag,
    PromptTooLongError,
    RequestAbortedError,
    RequestFailedError,
    SamplingParams,
    wire,
)
from tests.lang.backends.loopback import Answer, Handler, Loopback, Request, of_json, serving
from tests.lang.backends.random_engine import CONTEXT, RandomEngine, open_random
from tests.lang.backends.small_tokenizer import small_tokenizer
from tests.lang.backends.wire_server import wire_handler

T = TypeVar("T")
OPTIONS: dict[str, Any] = {"tag": ProgramTag(program_id="p"), "priority": 1, "cache_salt": "s"}


@pytest.fixture
def engine() -> Iterator[RandomEngine]:
    opened = open_random(small_tokenizer())
    with opened.face:
        yield opened


@pytest.fixture
def server(engine: RandomEngine) -> Iterator[Loopback]:
    with serving(wire_handler(engine.face)) as opened:
        yield opened


def open_engine(url: str, **headers: str) -> HttpEngine:
    connection = Connection(timeout=60.0, retries=RetryPolicy(max_retries=0))
    return HttpEngine(Server(name="the server", base_url=url, headers=headers, connection=connection))


def used(url: str, use: Callable[[HttpEngine], Coroutine[Any, Any, T]]) -> T:
    remote = open_engine(url)

    async def main() -> T:
        try:
            return await asyncio.wait_for(use(remote), 60)
        finally:
            await remote.aclose()

    return asyncio.run(main())


async def stream(remote: HttpEngine, token_ids: list[int], params: SamplingParams) -> list[wire.GenerateEvent]:
    async with remote.astream(token_ids, params, **OPTIONS) as increments:
        return [increment async for increment in increments]


def test_what_it_is(engine: RandomEngine, server: Loopback) -> None:
    remote = open_engine(server.url)
    assert remote.info.model == "random"
    assert remote.info.context_length == CONTEXT
    assert remote.info.grammars == ("choice", "prefix")
    text = "Is there  http://Paris?\n<|im_end|>"
    assert remote.tokenizer.encode(text) == engine.face.tokenizer.encode(text)
    assert remote.tokenizer.chat_template.exists
    assert remote.flush_cache() == 0
    assert remote.stats()["finished_requests"] == 0
    remote.close()


@pytest.mark.parametrize("grammar", [None, Choice((" the", " Paris"))])
def test_a_stream_is_the_engines(engine: RandomEngine, server: Loopback, grammar: Choice | None) -> None:
    params = SamplingParams(max_tokens=9, seed=3, n=2, logprobs=1, grammar=grammar)
    token_ids = engine.face.tokenizer.encode(" the is Paris")
    events = used(server.url, lambda remote: stream(remote, token_ids, params))
    expected = engine.face.generate(token_ids, params).outputs
    for index in range(2):
        own = [event for event in events if event.index == index]
        assert "".join(event.text for event in own) == expected[index].text
        assert [i for event in own for i in event.token_ids] == expected[index].token_ids
        assert [one for event in own for one in event.logprobs or ()] == expected[index].logprobs
        assert own[-1].finish_reason is expected[index].finish_reason
        assert own[-1].stats is not None
        assert own[-1].stats.num_prompt_tokens == len(token_ids)


def test_scores_are_the_engines(engine: RandomEngine, server: Loopback) -> None:
    engine.model.never = (7,)
    context, continuations = engine.face.tokenizer.encode(" there"), [[5, 6], [5, 8, 9], [7]]
    scores = used(server.url, lambda remote: remote.ascore(context, continuations, **OPTIONS))
    expected = engine.face.score(context, continuations)
    assert [score.token_logprobs for score in scores] == [score.token_logprobs for score in expected]
    assert [score.logprob for score in scores] == [score.logprob for score in expected]
    assert scores[2].logprob == -math.inf


def test_a_batch_fills_the_cache(engine: RandomEngine, server: Loopback) -> None:
    batch = [[5, 6, 7], [8, 9]]
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    used(server.url, lambda remote: remote.agenerate(batch, params, cache_salt="s"))
    assert sorted(engine.executor.prompts) == batch


def test_errors_are_the_engines(server: Loopback) -> None:
    with pytest.raises(PromptTooLongError, match=str(CONTEXT)):
        used(server.url, lambda remote: stream(remote, [5] * 3000, SamplingParams(max_tokens=1)))
    with pytest.raises(InvalidRequestError, match="99999") as caught:
        used(server.url, lambda remote: stream(remote, [99999], SamplingParams(max_tokens=1)))
    assert caught.value.field is not None


def test_leaving_aborts(engine: RandomEngine, server: Loopback) -> None:
    async def leave(remote: HttpEngine) -> None:
        params = SamplingParams(max_tokens=None, ignore_eos=True)
        async with remote.astream([5, 6], params, **OPTIONS) as increments:
            async for _ in increments:
                break

    used(server.url, leave)
    assert server.left.wait(60)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (
            wire.GenerateEvent(error=wire.ErrorDetail(message="broken", code="request_failed")),
            RequestFailedError,
        ),
        (wire.GenerateEvent(finish_reason=FinishReason.ABORT), RequestAbortedError),
        (wire.GenerateEvent(finish_reason=FinishReason.ERROR), RequestFailedError),
        (None, GenerationError),
    ],
)
def test_a_stream_that_fails(
    engine: RandomEngine, event: wire.GenerateEvent | None, kind: type[Exception]
) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b'data: {"text": "a"}\n\n'
        if event is not None:
            yield b"data: " + wire.encode_event(event) + b"\n\n"

    usual = wire_handler(engine.face)

    async def handler(request: Request) -> Answer:
        return Answer(parts=parts()) if request.path == wire.GENERATE_ROUTE else await usual(request)

    with serving(handler) as server, pytest.raises(kind):
        used(server.url, lambda remote: stream(remote, [5], SamplingParams()))


def test_a_key(engine: RandomEngine) -> None:
    with serving(wire_handler(engine.face, api_key="secret")) as server:
        assert open_engine(server.url, authorization="Bearer secret").info.model == "random"
        with pytest.raises(GenerationError, match=r"status 401: this key is not known .*check api_key"):
            open_engine(server.url, authorization="Bearer guess")


def test_another_kind_of_server() -> None:
    async def handler(request: Request) -> Answer:
        return of_json({"object": "list"})

    async def missing(request: Request) -> Answer:
        return of_json({"detail": "Not Found"}, 404)

    handlers: list[tuple[Handler, str]] = [(handler, "does not answer /model_info"), (missing, "status 404")]
    for handle, message in handlers:
        with serving(handle) as server, pytest.raises(GenerationError, match=message):
            open_engine(server.url)
    with pytest.raises(GenerationError, match="cannot be reached"):
        open_engine("http://127.0.0.1:9")
