"""Clients of a soak against a real server, and against one that answers wrong."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator

import httpx
import pytest

from benchmarks.soak_traffic import (
    STREAMED,
    Ledger,
    Traffic,
    answer_of,
    folded_answer,
    hostile_bodies,
    known_requests,
)
from tests.runtime.server.speaking_server import SECONDS, Live, live, wait_until_idle

MODEL = "smollm2"


@pytest.fixture
def live_server() -> Iterator[Live]:
    with live() as one:
        yield one


def test_routes_of_what_is_known() -> None:
    assert {known.route for known in known_requests(MODEL)} > set(STREAMED)
    assert all(json.dumps(known.body) for known in known_requests(MODEL))


def test_answers_and_their_streams() -> None:
    assert answer_of("/v1/completions", {"choices": [{"text": "a b"}]}) == "a b"
    assert answer_of("/v1/chat/completions", {"choices": [{"message": {"content": "a b"}}]}) == "a b"
    assert answer_of("/generate", {"outputs": [{"text": "a b"}]}) == "a b"
    assert answer_of("/v1/programs", {"variables": {"x": {"value": "a"}, "y": {}}}) == {"x": "a", "y": None}
    chat = [b'{"choices": [{"delta": {"content": "a "}}]}', b'{"choices": [{"delta": {"content": "b"}}]}']
    assert folded_answer("/v1/chat/completions", [*chat, b'{"choices": []}', b"[DONE]"]) == "a b"
    assert folded_answer("/v1/completions", [b'{"choices": [{"text": "a b"}]}', b"[DONE]"]) == "a b"
    assert folded_answer("/generate", [b'{"text": "a "}', b'{"text": "b"}', b"[DONE]"]) == "a b"


@pytest.mark.parametrize("events", [[], [b'{"text": "a"}'], [b'{"error": {"message": "gone"}}', b"[DONE]"]])
def test_a_stream_that_is_not_whole_has_no_answer(events: list[bytes]) -> None:
    assert folded_answer("/generate", events) is None


def acted(http: httpx.AsyncClient, model: str, *names: str) -> Ledger:
    """Each act some times."""
    ledger = Ledger()

    async def act() -> None:
        traffic = Traffic(http, model, ledger, 0)
        async with http:
            for name in names:
                one: Callable[[], Awaitable[None]] = getattr(traffic, name)
                await asyncio.gather(*(one() for _ in range(4)))

    asyncio.run(asyncio.wait_for(act(), SECONDS))
    return ledger


def test_acts_leave_nothing_behind(live_server: Live) -> None:
    http = httpx.AsyncClient(base_url=live_server.url, timeout=SECONDS)
    model = live_server.engine.info.model
    ledger = acted(http, model, "leave", "abort", "harm", "break_off", "leave_program")
    assert ledger.faults == []
    assert ledger.done["streams left"] == ledger.done["hostile bodies"] == ledger.done["bodies broken off"] == 4
    wait_until_idle(live_server.engine)


def test_every_hostile_body_is_refused(live_server: Live) -> None:
    headers = {"content-type": "application/json"}
    with httpx.Client(base_url=live_server.url, timeout=SECONDS, headers=headers) as http:
        for route, body in hostile_bodies(live_server.engine.info.model):
            status = http.post(route, content=body).status_code
            assert 200 <= status < 500, (route, body[:80])
    wait_until_idle(live_server.engine)


def test_wrong_answers_and_faults_are_entered() -> None:
    counts = iter(range(1000))

    def answer(request: httpx.Request) -> httpx.Response:
        if json.loads(request.content or b"{}").get("stream"):
            return httpx.Response(200, content=b"data: [DONE]\n\n")
        if request.url.path in ("/v1/completions", "/v1/programs"):
            text = f"answer {next(counts)}"
            return httpx.Response(200, json={"choices": [{"text": text}], "variables": {"x": {"value": text}}})
        return httpx.Response(500, text="broken")

    class Known(Traffic):
        """Knows what the routes that answer have said."""

        async def learn(self) -> None:
            with pytest.raises(RuntimeError, match=r"/v1/chat/completions answers 500: broken"):
                await super().learn()

    ledger = Ledger()

    async def act() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://test") as http:
            traffic = Known(http, MODEL, ledger, 0)
            await traffic.learn()
            for _ in range(8):
                await traffic.ask()
            await traffic.harm()
            await traffic.hold_session()

    asyncio.run(act())
    assert any("instead of 'answer" in fault for fault in ledger.faults)
    assert any("streamed ''" in fault for fault in ledger.faults)
    assert any("/v1/sessions answered 500" in fault for fault in ledger.faults)
    assert ledger.num_faults == len(ledger.faults) > 8


def test_only_so_many_faults_are_kept() -> None:
    ledger = Ledger()
    for number in range(100):
        ledger.fault(str(number))
    assert (len(ledger.faults), ledger.num_faults) == (50, 100)
