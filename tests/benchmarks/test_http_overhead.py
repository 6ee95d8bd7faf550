"""The engine in process as a caller of loads."""

import asyncio

from benchmarks.http_overhead import StreamingCaller, run_over_http, same_answers
from benchmarks.load_client import ServedCall, Target
from benchmarks.load_driver import LoadRun, closed_loop
from benchmarks.load_shapes import LoadRequest
from tests.runtime.server.speaking_server import SECONDS, live, open_engine, spec


def test_calls_are_streamed_from_the_engine() -> None:
    chains = [[LoadRequest("say:hello there", 5)], [LoadRequest("say:other words", 5)]]
    with open_engine(spec()) as engine:
        run = asyncio.run(closed_loop(chains, 2, StreamingCaller(engine)))
    assert sorted(call.text for call in run.calls) == ["hello", "other"]
    for call in run.calls:
        assert call.num_output_tokens == 5
        assert call.num_prompt_tokens > 0
        assert call.sent <= call.first_token <= call.last_token


def test_calls_over_http_say_the_same() -> None:
    chains = [[LoadRequest("say:hello there", 5)], [LoadRequest("say:other words", 5)]]
    with live() as server:
        target = Target(server.url, server.engine.info.model)
        run = asyncio.run(run_over_http(target, chains, SECONDS))
    assert sorted(call.text for call in run.calls) == ["hello", "other"]


def test_same_answers_whatever_their_order() -> None:
    def run(*texts: str) -> LoadRun:
        return LoadRun([ServedCall(0.0, text=text) for text in texts], 1.0)

    assert same_answers(run("a", "b"), run("b", "a")) == 1.0
    assert same_answers(run("a", "b"), run("a", "c")) == 0.5
