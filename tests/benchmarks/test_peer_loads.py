"""The workloads over HTTP: what is sent, in which rounds, and the figures that come of it."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import pytest

from benchmarks.load_client import LoadClient, ServedCall, Target
from benchmarks.peer_loads import (
    NAMES,
    OBJECT_SCHEMA,
    Load,
    ServedRun,
    make_load,
    run_load,
    run_metrics,
    warm_up,
)
from benchmarks.workloads import SharedDataMissingError, shared_folder


class Recorder:
    """Answers every call with its number, and keeps what was asked, in order, and how many ran at once."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.now, self.most = 0, 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(request.content))
        self.paths.append(request.url.path)
        number = len(self.bodies)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        choice = {"text": f"a{number}", "delta": {"content": f"a{number}"}, "finish_reason": "length"}
        usage = {"prompt_tokens": 10, "completion_tokens": 4}
        return httpx.Response(200, text=f"data: {json.dumps({'choices': [choice], 'usage': usage})}\n\n")


def run(name: str, quick: bool = False, **own_fields: Any) -> tuple[Load, ServedRun, Recorder]:
    recorder = Recorder()
    load = replace(make_load(name, 1, seed=0, quick=quick), own_fields=own_fields)

    async def served() -> ServedRun:
        async with httpx.AsyncClient(transport=httpx.MockTransport(recorder)) as http:
            return await run_load(load, LoadClient(Target("http://test", "m"), http))

    return load, asyncio.run(served()), recorder


@pytest.mark.parametrize(
    ("name", "count", "most", "tokens"),
    [("W1", 4, 1, 128), ("W2", 64, 32, 64), ("W3", 64, 16, 32), ("W6", 3, 1, 1)],
)
def test_text_completions(name: str, count: int, most: int, tokens: int) -> None:
    load, done, recorder = run(name)
    assert set(recorder.paths) == {"/v1/completions"}
    assert [len(one) for one in done.rounds] == [count]
    assert recorder.most == most
    assert all((body["max_tokens"], body["ignore_eos"]) == (tokens, True) for body in recorder.bodies)
    assert load.workload is not None
    assert sorted(body["prompt"] for body in recorder.bodies) == sorted(load.workload.prompts)
    if name == "W3":
        shared = recorder.bodies[0]["prompt"].split()[:1024]
        assert all(body["prompt"].split()[:1024] == shared for body in recorder.bodies)


def test_conversations_go_on_with_the_answers_they_got() -> None:
    _, done, recorder = run("W4")
    assert set(recorder.paths) == {"/v1/chat/completions"}
    assert [len(one) for one in done.rounds] == [8] * 6
    assert [len(body["messages"]) for body in recorder.bodies] == [
        1 + 2 * turn for turn in range(6) for _ in range(8)
    ]
    answers = {call.text for call in done.rounds[0]}
    assert {body["messages"][1]["content"] for body in recorder.bodies[8:16]} == answers
    metrics = run_metrics(make_load("W4", 1, seed=0, quick=False), done)
    assert metrics["ttft_later_turns_ms"] is not None


def test_objects_with_and_without_their_schema() -> None:
    load, done, recorder = run("W5")
    assert len(recorder.bodies) == 32
    assert recorder.most == 8
    assert all(body["response_format"]["json_schema"]["schema"] == OBJECT_SCHEMA for body in recorder.bodies)
    assert all(body["ignore_eos"] is False for body in recorder.bodies)
    assert run_metrics(load, done)["valid_share"] == 0, "a1 is no object"
    free, _, unconstrained = run("W5u")
    assert not any("response_format" in body for body in unconstrained.bodies)
    assert [body["messages"] for body in unconstrained.bodies] == [body["messages"] for body in recorder.bodies]
    assert free.schema == OBJECT_SCHEMA
    jsonschema.Draft202012Validator.check_schema(OBJECT_SCHEMA)


def test_a_servers_own_fields_go_with_a_schema() -> None:
    *_, objects = run("W5", quick=True, close_on_length=True)
    *_, unconstrained = run("W5u", quick=True, close_on_length=True)
    assert [body["close_on_length"] for body in objects.bodies] == [True] * 4
    assert not any("close_on_length" in body for body in unconstrained.bodies)


def test_no_prompt_comes_twice() -> None:
    seen: list[str] = []
    for variant in range(6):
        for name in NAMES:
            load = make_load(name, variant, seed=0, quick=False)
            if load.workload is not None:
                seen += load.workload.prompts
                seen += [turns[0] for turns in load.workload.conversations]
            elif name == "W5":
                seen += [json.dumps(messages) for messages in load.dialogues]
    assert len(set(seen)) == len(seen)


@pytest.mark.skipif(shared_folder() is None, reason="no shared folder")
def test_recorded_ones() -> None:
    try:
        load = make_load("W5", 2, seed=None, quick=False)
    except SharedDataMissingError as missing:
        pytest.skip(str(missing))
    assert len(load.dialogues) == 32
    assert load.schema is not None
    assert set(load.schema["required"]) == set(OBJECT_SCHEMA["required"])
    assert make_load("W5", 2, seed=None, quick=True).dialogues == load.dialogues[:4]


def test_warming_up_asks_every_kind_of_variant_0() -> None:
    recorder = Recorder()

    async def served() -> list[ServedCall]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(recorder)) as http:
            return await warm_up(LoadClient(Target("http://test", "m"), http), 0, quick=False)

    assert len(asyncio.run(served())) == 1 + 32 + 1 + 8
    assert recorder.most == 32
    assert set(recorder.paths) == {"/v1/completions", "/v1/chat/completions"}


def test_figures() -> None:
    first = ServedCall(0.0, 0.1, 0.4, text="{}", num_prompt_tokens=8, num_output_tokens=4, num_cached_tokens=2)
    second = ServedCall(1.0, 1.3, 1.3, text="no", num_prompt_tokens=2, num_output_tokens=1)
    failed = ServedCall(2.0, error="status 500")
    load = Load("W5", schema={"type": "object"})
    metrics = run_metrics(load, ServedRun([[first], [second, failed]], wall=2.0))
    assert metrics["output_tokens_per_s"] == 2.5
    assert metrics["ttft_mean_ms"] == pytest.approx(200)
    assert metrics["ttft_later_turns_ms"] == pytest.approx(300)
    assert metrics["tpot_median_ms"] == pytest.approx(100)
    assert metrics["valid_share"] == pytest.approx(1 / 3)
    assert metrics["wrong"] == 1
    second.finish_reason = "length"
    assert run_metrics(load, ServedRun([[first, second]], wall=1.0))["wrong"] == 0, "it was cut"
    assert metrics["cached_share"] == pytest.approx(0.2)
    assert (metrics["requests"], metrics["failed"]) == (3, 1)
    empty = run_metrics(Load("W1"), ServedRun([[failed]], wall=1.0))
    assert (empty["output_tokens_per_s"], empty["ttft_mean_ms"], empty["valid_share"]) == (0, None, None)
