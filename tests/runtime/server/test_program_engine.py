"""The engine as a program sees it: every call through the gateway."""

import asyncio

import pytest

from ramet.runtime.protocol import ProgramTag, PromptTooLongError, RequestFailedError, SamplingParams
from ramet.runtime.server import ServerConfig
from ramet.runtime.server.gateway import Gateway
from ramet.runtime.server.metrics import ServerMetrics
from ramet.runtime.server.program_engine import GatewayEngine
from ramet.runtime.server.tenants import Tenant
from tests.runtime.server.speaking_server import SECONDS, open_engine, spec, wait_until_idle

GREEDY = SamplingParams(temperature=0.0, max_tokens=200)
TAG = ProgramTag(program_id="p")


def run(body: object, *, config: ServerConfig | None = None, width: int = 4) -> None:
    async def main() -> None:
        with open_engine(spec()) as engine:
            gateway = Gateway(engine, config or ServerConfig(), ServerMetrics("m"), width=width)
            async with asyncio.timeout(SECONDS):
                await body(GatewayEngine(engine, gateway, Tenant("t")), gateway)  # type: ignore[operator]
            assert gateway.live == 0
            wait_until_idle(engine)

    asyncio.run(main())


def prompt(engine: GatewayEngine, text: str) -> list[int]:
    return engine.tokenizer.encode(text)


async def said(engine: GatewayEngine, text: str) -> str:
    stream = engine.astream(prompt(engine, text), GREEDY, tag=TAG, priority=0, cache_salt="s")
    async with stream:
        return "".join([one.text async for one in stream])


def test_a_call_counts_while_it_runs() -> None:
    async def body(engine: GatewayEngine, gateway: Gateway) -> None:
        stream = engine.astream(prompt(engine, "say:hello"), GREEDY, tag=TAG, priority=0, cache_salt="")
        async with stream:
            assert gateway.live == 1
            assert "".join([one.text async for one in stream]) == "hello"
        async with engine.astream(prompt(engine, "say:left"), GREEDY, tag=TAG, priority=0, cache_salt=""):
            pass  # Left before its end.

    run(body)


def test_calls_wait_for_room() -> None:
    async def body(engine: GatewayEngine, gateway: Gateway) -> None:
        texts = await asyncio.gather(*(said(engine, f"say:{number}") for number in range(6)))
        assert texts == [str(number) for number in range(6)]
        # More than there is room for: they are one request.
        options = [[5], [6, 7], [8]]
        scores = await engine.ascore(prompt(engine, "a"), options, tag=TAG, priority=0, cache_salt="")
        assert [len(score.token_logprobs) for score in scores] == [1, 2, 1]
        await engine.agenerate([prompt(engine, "say:x")], GREEDY, cache_salt="")

    run(body, config=ServerConfig(max_queued_requests=1), width=1)


def test_refusals_are_errors_of_the_engine() -> None:
    async def body(engine: GatewayEngine, gateway: Gateway) -> None:
        with pytest.raises(PromptTooLongError):
            await said(engine, "x" * 3000)
        gateway.start_draining()
        with pytest.raises(RequestFailedError, match="shutting down"):
            await said(engine, "say:x")
        with pytest.raises(RequestFailedError, match="shutting down"):
            await engine.ascore(prompt(engine, "a"), [[5]], tag=TAG, priority=0, cache_salt="")

    run(body)


def test_what_it_passes_on() -> None:
    async def body(engine: GatewayEngine, gateway: Gateway) -> None:
        await said(engine, "say:kept")
        assert engine.info.context_length == 2000
        assert (await asyncio.to_thread(engine.stats)).finished_requests == 1
        assert await asyncio.to_thread(engine.flush_cache) > 0
        engine.close()
        assert await said(engine, "say:still") == "still"

    run(body)


def test_prefixes_are_shared_within_a_tenant_and_salt_only() -> None:
    async def body(engine: GatewayEngine, gateway: Gateway) -> None:
        await said(engine, "say:" + "again" * 20)
        before = (await asyncio.to_thread(engine.stats)).cached_tokens
        await said(engine, "say:" + "again" * 20)
        after = (await asyncio.to_thread(engine.stats)).cached_tokens
        assert after > before
        other = GatewayEngine(engine._engine, gateway, Tenant("u"))
        await said(other, "say:" + "again" * 20)
        assert (await asyncio.to_thread(engine.stats)).cached_tokens == after

    run(body)
