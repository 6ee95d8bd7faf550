"""Whole programs over HTTP, as any client sends them: events, tools, limits, and the end."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramet.runtime.engine import EngineProcess
from ramet.runtime.server import ServerConfig
from ramet.runtime.tokenizer import FastTokenizer
from tests.lang.backends.constrained_engine import open_face
from tests.runtime.server.speaking_server import (
    SECONDS,
    Live,
    Served,
    error_of,
    events,
    live,
    live_engine,
    served,
    wait_until_idle,
)


def text(said: str) -> dict[str, Any]:
    return {"do": "text", "text": said}


def gen(variable: str, **fields: Any) -> dict[str, Any]:
    params = {"temperature": 0, **fields.pop("params", {})}
    return {"do": "gen", "variable": variable, "params": params, **fields}


def program(*operations: dict[str, Any], **branches: list[dict[str, Any]]) -> dict[str, Any]:
    others = [{"name": name, "operations": own} for name, own in branches.items()]
    return {"version": 1, "branches": [{"name": "root", "operations": list(operations)}, *others]}


CHAIN = program(
    text("say:one"),
    gen("first"),
    text("!"),
    {"do": "value", "variable": "first"},
    gen("second"),
)
FORKED = program(
    text("A"),
    {"do": "fork", "branches": ["left", "right"]},
    {"do": "join", "branches": ["left", "right"]},
    text("!"),
    gen("end"),
    left=[text("say:left"), gen("l")],
    right=[text("say:right"), gen("r")],
)

CHAINED = {"first": "one", "second": "oneone!one"}
"""The model says what stands behind the prompt's first ``say:``."""
JOINED = {"l": "left", "r": "right", "end": "leftleftsay:rightright!"}


def run(server: Served, body: object, **fields: Any) -> httpx.Response:
    return server.post("/v1/programs", {"program": body, **fields})


def values(server: Served, body: object) -> dict[str, Any]:
    answer = run(server, body, stream=False)
    assert answer.status_code == 200, answer.text
    result = answer.json()
    assert result["status"] == "completed", result
    return {name: one["value"] for name, one in result["variables"].items()}


def test_calls_follow_one_another(server: Served) -> None:
    assert values(server, CHAIN) == CHAINED


def test_branches_and_what_they_join_to(server: Served) -> None:
    assert values(server, FORKED) == JOINED


def test_a_stream_tells_how_variables_grow_and_what_they_are(server: Served) -> None:
    told = events(run(server, CHAIN))
    assert told[0] == {
        "type": "program.started",
        "id": told[0]["id"],
        "model": server.app.state.server.model,
        "version": 1,
    }
    assert told[-1] == {"type": "program.done", "id": told[0]["id"], "status": "completed"}
    grown = [one["text"] for one in told if one["type"] == "variable.delta" and one["variable"] == "first"]
    assert "".join(grown) == "one"
    done = {one["variable"]: one for one in told if one["type"] == "variable.done"}
    assert done["first"]["value"] == "one"
    assert done["first"]["finish_reason"] == "stop"
    assert done["second"]["cached_tokens"] > 0
    assert told.index(done["first"]) < told.index(done["second"])


def test_a_stream_and_a_whole_answer_agree(server: Served) -> None:
    done = [one for one in events(run(server, FORKED)) if one["type"] == "variable.done"]
    assert {one["variable"]: one["value"] for one in done} == values(server, FORKED)


def test_selects_several_answers_scopes_and_reasoning(server: Served) -> None:
    body = program(
        {"do": "begin_scope"},
        text("say:<think>why</think>because"),
        gen("thought", reasoning={"begin": "<think>", "end": "</think>"}),
        {"do": "end_scope", "variable": "scope"},
        gen("several", params={"n": 3, "max_tokens": 5}),
        {"do": "select", "variable": "choice", "options": ["no", "yes"]},
    )
    told = events(run(server, body))
    done = {one["variable"]: one for one in told if one["type"] == "variable.done"}
    assert done["thought"]["value"] == "because"
    assert done["thought_reasoning_content"]["value"] == "why"
    assert done["scope"]["value"] == "say:" + "<think>why</think>because" * 2
    assert len(done["several"]["value"]) == 3
    assert done["several"]["finish_reason"] == ["length"] * 3
    assert done["choice"]["value"] == ["no", "yes"][done["choice"]["index"]]
    assert len(done["choice"]["scores"]) == 2


def test_calls_are_told_where_they_are_asked_for(server: Served) -> None:
    told = events(run(server, CHAIN, events="calls"))
    kinds = {one["type"] for one in told}
    assert kinds == {"program.started", "call.delta", "program.done"}
    first = [one["event"] for one in told if one["type"] == "call.delta" and one["variable"] == "first"]
    assert "".join(one.get("text", "") for one in first) == "one"
    assert first[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"version": 2, "branches": [{"name": "0", "operations": []}]}, "takes version 1"),
        ({"version": 1, "branches": []}, "it must have 1 to"),
        (program(gen("x"), gen("x")), "twice"),
        (program({"do": "value", "variable": "x"}, gen("x")), "never comes"),
        (program({"do": "fork", "branches": ["nobody"]}), "which there is not"),
        (program(text("a"), lost=[]), "forked by no branch"),
        (
            program({"do": "join", "branches": ["later"]}, {"do": "fork", "branches": ["later"]}, later=[]),
            "joins",
        ),
        (program({"do": "fork", "branches": ["root"]}), "the root or forked elsewhere"),
        (program({"do": "end_scope", "variable": "x"}), "none is open"),
        (program({"do": "exec", "code": "1"}), "exec"),
        (program({"do": "text", "text": "a", "eval": "1"}), "eval"),
        (program(gen("x", params={"temperature": -1})), "temperature"),
        (program(gen("x", params={"n": 1024})), "answers"),
        (program({"do": "select", "variable": "x", "options": []}), "0 options"),
        (program({"do": "end_role", "role": "user"}), "no role is open"),
        (program(gen("x", tools={"tools": [], "max_rounds": 1})), "0 tools"),
        (program(text("there " * 4000)), "cannot hold"),
    ],
)
def test_what_cannot_run_is_refused_before_the_first_byte(server: Served, body: object, says: str) -> None:
    error = error_of(run(server, body), 400)
    assert says in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"timeout": -1}, "timeout"),
        ({"stream": False, "events": "calls"}, "events"),
        ({"events": "all"}, "events"),
        ({"background": True, "events": "calls"}, "events"),
        ({"background": "yes"}, "background"),
        ({"functions": []}, "functions"),
    ],
)
def test_fields_beside_it_are_checked(server: Served, fields: dict[str, Any], param: str) -> None:
    assert error_of(run(server, CHAIN, **fields), 400)["param"] == param


def test_a_call_that_fails_is_told_and_the_rest_with_it(server: Served) -> None:
    body = program(
        text("say:good"), gen("good"), text("x" * 1990), gen("bad", params={"max_tokens": 500}), gen("after")
    )
    told = events(run(server, body))
    kinds = {one["variable"]: one for one in told if one["type"] in ("variable.done", "variable.failed")}
    assert kinds["good"]["value"] == "good"
    assert kinds["bad"]["error"]["code"] == "prompt_too_long"
    assert kinds["after"]["type"] == "variable.failed"
    assert told[-1]["status"] == "failed"
    assert told[-1]["error"]["code"] == "prompt_too_long"


def test_a_branch_may_fail_alone(server: Served) -> None:
    def body(keep: bool) -> dict[str, Any]:
        return program(
            {"do": "fork", "branches": ["bad", "good"], "keep_errors": keep},
            {"do": "join", "branches": ["bad", "good"], "keep_errors": keep},
            text("say:end"),
            gen("end"),
            bad=[text("x" * 1990), gen("b", params={"max_tokens": 500})],
            good=[text("say:fine"), gen("g")],
        )

    kept = run(server, body(True), stream=False).json()
    assert kept["status"] == "completed"
    assert list(kept["failures"]) == ["b"]
    assert kept["variables"]["end"]["value"] == "finefinesay:end"
    broken = run(server, body(False), stream=False).json()
    assert broken["status"] == "failed"
    assert "end" in broken["failures"]


def test_the_deadline_ends_it() -> None:
    with served() as server:
        body = program(text("say:" + "x" * 900), gen("long", params={"max_tokens": 1000, "ignore_eos": True}))
        *_, last = _data(run(server, body, timeout=0.05).text)
        assert last["error"]["code"] == "deadline_exceeded"
        assert error_of(run(server, body, timeout=0.05, stream=False), 504)["code"] == "deadline_exceeded"
        wait_until_idle(server.engine)


def test_programs_are_bounded_and_their_calls_wait_for_room() -> None:
    with served(ServerConfig(max_programs=0)) as server:
        assert error_of(run(server, CHAIN), 429)["code"] == "too_many_programs"
        assert server.get("/model_info").json()["programs"] == 0
    with served(ServerConfig(max_queued_requests=0), width=1) as server:
        assert values(server, FORKED) == JOINED
        assert server.get("/stats").json()["server"]["live_programs"] == 0


def test_keys_see_their_own_programs_only() -> None:
    config = ServerConfig(api_keys=("alpha", "beta"))
    with served(config, headers={"authorization": "Bearer alpha"}) as server:
        assert server.app.state.server.program_runs.num_live == 0
        assert error_of(server.request("DELETE", "/v1/programs/prog_1"), 404)["code"] == "not_found"
        assert run(server, CHAIN, headers={}).status_code == 400
        assert values(server, CHAIN) == CHAINED


LONG = program(text("slow say:" + "x" * 900), gen("long", params={"max_tokens": 1000}), gen("never"))


def test_a_client_that_leaves_ends_it(live_server: Live) -> None:
    with (
        httpx.Client(base_url=live_server.url, timeout=SECONDS) as client,
        client.stream("POST", "/v1/programs", json={"program": LONG}) as response,
    ):
        lines = response.iter_lines()
        while "variable.delta" not in next(lines):
            pass
        assert live_server.engine.stats().running_requests == 1
    wait_until_idle(live_server.engine)


def cancelled(program_id: str, *, ran: bool = True) -> dict[str, Any]:
    return {"id": program_id, "cancelled": ran, "deleted": not ran}


def test_it_can_be_cancelled(live_server: Live) -> None:
    with (
        httpx.Client(base_url=live_server.url, timeout=SECONDS) as client,
        client.stream("POST", "/v1/programs", json={"program": LONG}) as response,
    ):
        lines = response.iter_lines()
        program_id = json.loads(next(lines).removeprefix("data: "))["id"]
        assert client.delete(f"/v1/programs/{program_id}").json() == cancelled(program_id)
        told = [json.loads(one[6:]) for one in lines if one.startswith("data: {")]
        assert told[-1] == {"type": "program.done", "id": program_id, "status": "cancelled"}
        assert {one["variable"] for one in told if one["type"] == "variable.failed"} >= {"never"}
    assert httpx.delete(f"{live_server.url}/v1/programs/{program_id}").status_code == 404
    wait_until_idle(live_server.engine)


def test_a_drain_ends_what_takes_too_long() -> None:
    with live(ServerConfig(drain_timeout=0.0)) as server:
        told: list[str] = []
        begun = threading.Event()

        def read() -> None:
            with (
                httpx.Client(base_url=server.url, timeout=SECONDS) as client,
                client.stream("POST", "/v1/programs", json={"program": LONG}) as response,
            ):
                for line in response.iter_lines():
                    told.append(line)
                    begun.set()

        thread = threading.Thread(target=read)
        thread.start()
        assert begun.wait(SECONDS)
        server.stop()
        thread.join(SECONDS)
        last = [one for one in told if one][-1]
        assert "draining" in last or "[DONE]" in last


@contextmanager
def constrained() -> Iterator[Live]:
    face = open_face()
    assert isinstance(face.tokenizer, FastTokenizer)
    with face, live_engine(face, face.tokenizer.spec, ServerConfig(drain_timeout=1.0)) as server:
        yield server


TOOLS = {
    "tools": [
        {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {"where": {"enum": ["left", "right"]}},
                "required": ["where"],
                "additionalProperties": False,
            },
        }
    ],
    "choice": "required",
    "max_rounds": 1,
}


def asking(variable: str = "answer") -> dict[str, Any]:
    return program(
        {"do": "begin_role", "role": "user"},
        text("Where?"),
        {"do": "end_role", "role": "user"},
        {"do": "begin_role", "role": "assistant"},
        gen(variable, tools=TOOLS, params={"max_tokens": 700, "temperature": 1.0, "seed": 3}),
        {"do": "end_role", "role": "assistant"},
    )


def test_tools_are_called_back() -> None:
    async def converse(url: str) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        async with (
            httpx.AsyncClient(base_url=url, timeout=SECONDS) as client,
            client.stream("POST", "/v1/programs", json={"program": asking()}) as response,
        ):
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                told.append(event)
                if event["type"] != "tool_calls":
                    continue
                path = f"/v1/programs/{told[0]['id']}/tool_results"
                answers = [{"id": call["id"], "content": "a door"} for call in event["calls"]]
                for wrong, param in (
                    ({"variable": "other", "results": answers}, "variable"),
                    ({"variable": "answer", "results": []}, "results"),
                    ({"variable": "answer", "results": [{"id": "1", "content": "x"}]}, "results"),
                ):
                    refused = await client.post(path, json=wrong)
                    assert error_of(refused, 400)["param"] == param
                taken = await client.post(path, json={"variable": "answer", "results": answers})
                assert taken.json() == {"id": told[0]["id"], "variable": "answer"}
                again = await client.post(path, json={"variable": "answer", "results": answers})
                assert again.status_code == 400
        return told

    with constrained() as server:
        told = asyncio.run(asyncio.wait_for(converse(server.url), SECONDS))
        asked = next(one for one in told if one["type"] == "tool_calls")
        assert json.loads(asked["calls"][0]["arguments"])["where"] in ("left", "right")
        assert told[-1]["status"] == "completed", told[-1]
        whole = httpx.post(
            f"{server.url}/v1/programs", json={"program": asking(), "stream": False}, timeout=SECONDS
        )
        assert error_of(whole, 400)["param"] == "stream"


def test_a_program_that_waits_for_a_tool_ends_with_its_client() -> None:
    with constrained() as server:
        with (
            httpx.Client(base_url=server.url, timeout=SECONDS) as client,
            client.stream("POST", "/v1/programs", json={"program": asking()}) as response,
        ):
            lines = response.iter_lines()
            while "tool_calls" not in next(lines):
                pass
        wait_until_idle(server.engine)


def state_of(client: httpx.Client, program_id: str, *statuses: str) -> dict[str, Any]:
    """The program's state once it is one of these."""
    end = time.monotonic() + SECONDS
    while True:
        state: dict[str, Any] = client.get(f"/v1/programs/{program_id}").json()
        if state["status"] in statuses:
            return state
        assert time.monotonic() < end, state
        time.sleep(0.005)


def test_one_in_the_background_answers_at_once_and_is_kept_for_a_while(live_server: Live) -> None:
    with httpx.Client(base_url=live_server.url, timeout=SECONDS) as client:
        begun = client.post("/v1/programs", json={"program": CHAIN, "background": True, "stream": False}).json()
        assert begun["status"] == "running"
        assert begun["background"]
        done = state_of(client, begun["id"], "completed")
        assert {name: one["value"] for name, one in done["variables"].items()} == CHAINED
        assert (done["partial"], done["failures"], done["tool_calls"], done["error"]) == ({}, {}, [], None)
        assert done["created_at"] == begun["created_at"] <= done["ended_at"]
        (listed,) = client.get("/v1/programs").json()["data"]
        assert listed == {name: done[name] for name in listed}
        told = events(client.get(f"/v1/programs/{begun['id']}", params={"stream": "true"}))
        assert told[0]["type"] == "program.started"
        assert {one["variable"]: one["value"] for one in told[1:-1]} == CHAINED
        assert told[-1]["status"] == "completed"
        path = f"/v1/programs/{begun['id']}"
        assert client.delete(path).json() == cancelled(begun["id"], ran=False)
        for gone in (client.get(path), client.delete(path), client.get(path, params={"stream": "true"})):
            assert error_of(gone, 404)["code"] == "not_found"
        assert client.get("/v1/programs").json() == {"data": [], "object": "list"}


def test_one_in_the_background_outlives_its_reader_and_is_read_on_by_others(live_server: Live) -> None:
    with httpx.Client(base_url=live_server.url, timeout=SECONDS) as client:
        with client.stream("POST", "/v1/programs", json={"program": LONG, "background": True}) as response:
            lines = response.iter_lines()
            program_id = json.loads(next(lines).removeprefix("data: "))["id"]
            while "variable.delta" not in next(lines):
                pass
        state = state_of(client, program_id, "running")
        (growing,) = state["partial"]
        with client.stream("GET", f"/v1/programs/{program_id}?stream=true") as response:
            lines = (line for line in response.iter_lines() if line)
            assert "program.started" in next(lines)
            so_far = json.loads(next(lines).removeprefix("data: "))
            assert so_far["variable"] == growing
            assert so_far["text"].startswith(state["partial"][growing])
            assert client.delete(f"/v1/programs/{program_id}").json() == cancelled(program_id)
            told = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert told[-1]["status"] == "cancelled"
        assert state_of(client, program_id, "cancelled")["failures"]
    wait_until_idle(live_server.engine)


def test_one_in_the_background_waits_for_its_tools() -> None:
    with constrained() as server, httpx.Client(base_url=server.url, timeout=SECONDS) as client:
        body = {"program": asking(), "background": True, "stream": False}
        program_id = client.post("/v1/programs", json=body).json()["id"]
        (asked,) = state_of(client, program_id, "waiting")["tool_calls"]
        assert asked["variable"] == "answer"
        results = [{"id": call["id"], "content": "a door"} for call in asked["calls"]]
        path = f"/v1/programs/{program_id}/tool_results"
        assert client.post(path, json={"variable": "answer", "results": results}).status_code == 200
        done = state_of(client, program_id, "completed")
        assert (done["tool_calls"], list(done["variables"])) == ([], ["answer"])
        assert client.post(path, json={"variable": "answer", "results": results}).status_code == 409
        refused = error_of(client.post(path, json={"variable": "answer", "results": results}), 409)
        assert refused["code"] == "program_ended"
        assert "has ended" in str(refused["message"])


def test_an_unknown_parameter_is_refused_by_name(live_server: Live) -> None:
    with httpx.Client(base_url=live_server.url, timeout=SECONDS) as client:
        for method, path, body in (
            ("GET", "/v1/programs?limit=abc", None),
            ("POST", "/v1/programs?limit=abc", {"program": LONG}),
            ("GET", "/v1/programs/prog_1?limit=abc", None),
            ("DELETE", "/v1/programs/prog_1?limit=abc", None),
            ("POST", "/v1/programs/prog_1/tool_results?limit=abc", {"variable": "x", "results": []}),
        ):
            refused = error_of(client.request(method, path, json=body), 400)
            assert (refused["param"], refused["code"]) == ("limit", "unknown_parameter")


def test_one_that_runs_for_its_client_can_be_looked_at_too(live_server: Live) -> None:
    with (
        httpx.Client(base_url=live_server.url, timeout=SECONDS) as client,
        client.stream("POST", "/v1/programs", json={"program": LONG, "events": "calls"}) as response,
    ):
        lines = response.iter_lines()
        path = f"/v1/programs/{json.loads(next(lines).removeprefix('data: '))['id']}"
        state = client.get(path).json()
        assert (state["status"], state["background"]) == ("running", False)
        assert error_of(client.get(path, params={"stream": "true"}), 400)["param"] == "stream"
        assert error_of(client.get(path, params={"stream": "maybe"}), 400)["param"] == "stream"
        assert error_of(client.get(path, params={"steam": "true"}), 400)["param"] == "steam"
        assert client.head(path, params={"stream": "true"}).headers["content-type"] == "application/json"
    wait_until_idle(live_server.engine)


def test_what_is_in_the_background_ends_with_the_server() -> None:
    with live(ServerConfig(drain_timeout=SECONDS)) as server:
        body = {"program": LONG, "background": True, "stream": False}
        with httpx.Client(base_url=server.url, timeout=SECONDS) as client:
            assert client.post("/v1/programs", json=body).status_code == 200
        server.stop()
        assert server.gateway.live == 0


def _data(streamed: str) -> list[dict[str, Any]]:
    return [json.loads(one[6:]) for one in streamed.split("\n\n") if one.startswith("data: {")]


def test_it_goes_on_where_it_was_when_the_engine_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3]))
    body = program(
        text("x"), gen("first", params={"max_tokens": 200}), text("y"), gen("then", params={"max_tokens": 3})
    )
    with (
        EngineProcess(
            "fake", builder="tests.runtime.engine.builders:slow", start_timeout=SECONDS, supervised=True
        ) as engine,
        live_engine(engine, engine.tokenizer_spec, ServerConfig(drain_timeout=1.0)) as server,
        httpx.Client(base_url=server.url, timeout=SECONDS) as client,
        client.stream("POST", "/v1/programs", json={"program": body}) as response,
    ):
        lines = response.iter_lines()
        seen = [next(lines)]
        while "variable.delta" not in seen[-1]:
            seen.append(next(lines))
        os.kill(engine.pid, signal.SIGKILL)
        told = [json.loads(one[6:]) for one in [*seen, *lines] if one.startswith("data: {")]
    done = {one["variable"]: one["value"] for one in told if one["type"] == "variable.done"}
    assert done == {"first": "".join(f"{count} " for count in range(200)), "then": "0 1 2 "}
    assert told[-1]["status"] == "completed"
