"""Room, deadlines and the drain, over a real engine."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ramet.runtime.engine import EngineFace
from ramet.runtime.protocol import InvalidRequestError, SamplingParams
from ramet.runtime.server import ServerConfig
from ramet.runtime.server.errors import HttpError
from ramet.runtime.server.gateway import Answers, Gateway, Job
from ramet.runtime.server.metrics import ServerMetrics
from ramet.runtime.server.shared_fields import RoutingFields
from ramet.runtime.server.tenants import Tenant
from tests.runtime.server.speaking_server import SECONDS, open_engine, spec, wait_until_idle

LONG = SamplingParams(max_tokens=1900, temperature=0)
SHORT = SamplingParams(max_tokens=5, temperature=0)


def run(test: Callable[[Gateway, EngineFace], Awaitable[None]], *, width: int = 2, **settings: float) -> None:
    with open_engine(spec()) as engine:
        config = ServerConfig(**{"max_queued_requests": 2, **settings})  # type: ignore[arg-type]
        gateway = Gateway(engine, config, ServerMetrics("m"), width=width)
        asyncio.run(asyncio.wait_for(_ensure(test(gateway, engine)), SECONDS))
        wait_until_idle(engine)
        assert gateway.live == 0


async def _ensure(work: Awaitable[None]) -> None:
    await work


async def text_of(answers: Answers) -> str:
    return "".join([increment.text async for increment in answers])


def test_answers_come_and_leave() -> None:
    async def test(gateway: Gateway, engine: EngineFace) -> None:
        answers = await gateway.open(Job(params=SHORT, prompts=["say:a", "say:b"], num_prompts=2))
        assert gateway.live == 2
        assert answers.prompt_token_ids == [list(b"say:a"), list(b"say:b")]
        assert sorted(await text_of(answers)) == ["a", "b"]
        await answers.aclose()
        await answers.aclose()

    run(test)


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    async def test(gateway: Gateway, engine: EngineFace) -> None:
        running = [await gateway.open(Job(params=LONG, prompts="slow")) for _ in range(4)]
        with pytest.raises(HttpError) as caught:
            await gateway.open(Job(params=SHORT, prompts="x"))
        assert caught.value.status == 429
        assert 1 <= int(caught.value.headers["retry-after"]) <= 60
        with pytest.raises(HttpError), gateway.room(1):
            pass
        await running.pop().aclose()
        last = await gateway.open(Job(params=SHORT, prompts="say:x"))
        assert await text_of(last) == "x"
        for answers in [*running, last]:
            await answers.aclose()

    run(test)


def test_what_waits_for_room_gets_it_in_turn() -> None:
    async def test(gateway: Gateway, engine: EngineFace) -> None:
        running = [await gateway.open(Job(params=LONG, prompts="slow")) for _ in range(4)]
        order: list[str] = []

        async def waits(name: str, num_answers: int) -> None:
            async with gateway.room_in_turn(num_answers):
                order.append(name)
                await asyncio.sleep(0)

        async def opens(name: str) -> str:
            answers = await gateway.open(Job(params=SHORT, prompts=f"say:{name}"), waits=True)
            order.append(name)
            text = await text_of(answers)
            await answers.aclose()
            return text

        large = asyncio.create_task(waits("large", 2))
        await asyncio.sleep(0)
        leaves = asyncio.create_task(waits("leaves", 4))
        small = asyncio.create_task(opens("small"))
        await asyncio.sleep(0)
        assert order == []
        await running.pop().aclose()
        await asyncio.sleep(0)
        assert order == [], "the first that waits wants more"
        leaves.cancel()
        await running.pop().aclose()
        await large
        assert await small == "small"
        assert order == ["large", "small"]
        for answers in running:
            await answers.aclose()

    run(test)


def test_who_leaves_while_it_waits_for_room_keeps_nothing() -> None:
    async def test(gateway: Gateway, engine: EngineFace) -> None:
        async def waits(num_answers: int) -> None:
            async with gateway.room_in_turn(num_answers):
                pass

        with gateway.room(3):
            first = asyncio.create_task(waits(4))
            second = asyncio.create_task(waits(1))
            await asyncio.sleep(0)
            first.cancel()
            await second  # There was room for it all the time.
            with pytest.raises(HttpError) as caught:
                await waits(5)
            assert caught.value.status == 400
            late = asyncio.create_task(waits(2))
            await asyncio.sleep(0)
        late.cancel()  # Its turn has come, and it does not know yet.
        with pytest.raises(asyncio.CancelledError):
            await late
        assert gateway.live == 0
        with gateway.room(4):
            shut_out = asyncio.create_task(waits(1))
            await asyncio.sleep(0)
            gateway.start_draining()
            with pytest.raises(HttpError) as caught:
                await shut_out
            assert caught.value.status == 503
            with pytest.raises(HttpError):
                await waits(1)

    run(test)


def test_more_answers_than_ever_fit_are_refused_for_good() -> None:
    async def test(gateway: Gateway, engine: EngineFace) -> None:
        with pytest.raises(HttpError) as caught:
            await gateway.open(Job(params=SamplingParams(n=5), prompts="x"))
        assert (caught.value.status, caught.value.detail.code) == (400, "too_many_answers")

    run(test)


def test_what_the_engine_refuses_leaves_no_trace() -> None:
    async def test(gateway: Gateway, engine: EngineFace) -> None:
        for prompt in ("", "x" * 3000, 5):
            with pytest.raises(InvalidRequestError):
                await gateway.open(Job(params=SHORT, prompts=prompt))
            assert gateway.live == 0

    run(test)


def test_a_deadline_ends_a_request_while_it_waits_and_while_it_runs() -> None:
    async def test(gateway: Gateway, engine: EngineFace) -> None:
        answers = await gateway.open(Job(params=LONG, prompts="slow", timeout=1.0))
        with pytest.raises(HttpError, match=r"within 1 s") as caught:
            await text_of(answers)
        assert caught.value.status == 504
        await answers.aclose()
        with pytest.raises(HttpError, match="within 1e-06 s"):
            await gateway.open(Job(params=LONG, prompts="slow", timeout=1e-6))

    run(test)


def test_the_drain_lets_nothing_in_and_cuts_what_does_not_end() -> None:
    async def test(gateway: Gateway, engine: EngineFace) -> None:
        answers = await gateway.open(Job(params=LONG, prompts="slow"))
        reading = asyncio.ensure_future(text_of(answers))
        await asyncio.sleep(0.02)
        gateway.start_draining()
        with pytest.raises(HttpError) as refused:
            await gateway.open(Job(params=SHORT, prompts="x"))
        assert refused.value.status == 503
        with pytest.raises(HttpError, match="shut down before"):
            await reading
        await answers.aclose()

    run(test, drain_timeout=0.1)


def test_a_cancelled_opening_leaves_no_trace() -> None:
    async def test(gateway: Gateway, engine: EngineFace) -> None:
        for delay in (0.0, 0.001, 0.01):
            opening = asyncio.ensure_future(
                gateway.open(Job(params=LONG, prompts=["slow" * 100] * 2, num_prompts=2))
            )
            await asyncio.sleep(delay)
            opening.cancel()
            results = await asyncio.gather(opening, return_exceptions=True)
            for answers in results:
                if isinstance(answers, Answers):
                    await answers.aclose()
            assert gateway.live == 0

    run(test)


def test_a_clients_routing_is_its_tenants() -> None:
    routing = RoutingFields(cache_salt="s", request_id="r", priority=3, timeout=2.0)
    job = Job.routed(SHORT, routing, Tenant("t"), prompts="x")
    assert (job.cache_salt, job.request_id, job.priority, job.timeout) == ("t:s", "t:r", 3, 2.0)
    for timeout in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidRequestError, match="timeout"):
            Job.routed(SHORT, RoutingFields(timeout=timeout), Tenant(), prompts="x")
