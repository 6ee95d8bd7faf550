"""Clients of a soak that leave something with the server, against real servers and one that answers wrong."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from benchmarks.soak_kept import KeptTraffic, weather_program
from benchmarks.soak_traffic import Ledger
from ramet.runtime.protocol import programs
from ramet.runtime.server import ServerConfig
from ramet.runtime.server.body import convert
from ramet.runtime.tokenizer import FastTokenizer
from tests.lang.backends.constrained_engine import open_face
from tests.runtime.server.speaking_server import SECONDS, live_engine, wait_until_idle


def test_the_program_is_one() -> None:
    asked = convert(weather_program(48), programs.ProgramRequest)
    assert [one.name for one in asked.program.branches] == ["root"]


def test_acts_find_what_they_left_and_leave_no_request_behind(tmp_path: Path) -> None:
    face = open_face()
    assert isinstance(face.tokenizer, FastTokenizer)
    config = ServerConfig(drain_timeout=1.0, response_store=str(tmp_path / "responses.sqlite"))
    ledger = Ledger()

    async def act(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as http:
            traffic = KeptTraffic(http, face.info.model, ledger, 0, tool_tokens=400)
            await traffic.learn()
            for one in (traffic.keep_response, traffic.use_tool, traffic.forsake_tool, traffic.run_behind):
                await asyncio.gather(*(one() for _ in range(4)))

    with face, live_engine(face, face.tokenizer.spec, config) as server:
        asyncio.run(asyncio.wait_for(act(server.url), SECONDS))
        wait_until_idle(face)
    assert ledger.faults == []
    names = (
        "stored conversations",
        "programs with tools",
        "programs left waiting",
        "programs in the background",
    )
    assert dict(ledger.done) == dict.fromkeys(names, 4)


def answered_wrong(request: httpx.Request) -> httpx.Response:
    """Each response says something else, and what was stored is lost."""
    if request.url.path == "/v1/programs":
        return httpx.Response(500, text="broken")
    if request.method != "POST":
        return httpx.Response(410, text="lost")
    asked = json.loads(request.content)
    part = {"type": "output_text", "text": f"{asked['input']} wrong"}
    return httpx.Response(200, json={"id": "resp_1", "output": [{"type": "message", "content": [part]}]})


def test_wrong_answers_and_faults_are_entered() -> None:
    ledger = Ledger()

    async def act() -> None:
        transport = httpx.MockTransport(answered_wrong)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            traffic = KeptTraffic(http, "m", ledger, 0)
            with pytest.raises(RuntimeError, match="does not end"):
                await traffic.learn()
            traffic._conversation = ["something else"]
            await traffic.keep_response()
            await traffic.use_tool()
            await traffic.forsake_tool()
            await traffic.run_behind()

    asyncio.run(act())
    said = "\n".join(ledger.faults)
    assert "instead of ['something else']" in said
    assert "GET /v1/responses/resp_1 answered 410: lost" in said
    assert "has not completed: 500" in said
    assert "/v1/programs answered 500" in said
    assert "/v1/programs answered 500: broken" in said


def test_what_refuses_responses_is_not_soaked() -> None:
    async def act() -> None:
        transport = httpx.MockTransport(lambda _: httpx.Response(400, text="no store"))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            await KeptTraffic(http, "m", Ledger(), 0).learn()

    with pytest.raises(RuntimeError, match="/v1/responses answered 400: no store"):
        asyncio.run(act())
