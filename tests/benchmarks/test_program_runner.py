"""What a run of programs counts, on a model of random numbers: every call, its tokens, and the bound."""

from collections.abc import Iterator

import pytest

from benchmarks.program_cases import ProgramCase
from benchmarks.program_runner import RecordedCall, replay_requests, run_programs
from ramet import ProgramState, function, gen, select
from ramet.runtime.engine import EngineFace
from ramet.runtime.protocol import SamplingParams
from tests.lang.backends.random_engine import open_random
from tests.lang.backends.small_tokenizer import small_tokenizer


@function
def program(s: ProgramState, name: str) -> None:
    s += f"All of them begin with this, and then comes {name}:"
    s += gen("first", max_tokens=4, temperature=0)
    branches = s.fork(2)
    branches += gen("second", max_tokens=3, temperature=0)
    branches.join()
    s += " and " + select("last", ["Rome", "Paris"])


CASE = ProgramCase("case", "a case", program, ({"name": "Ada"}, {"name": "Ben"}, {"name": "Eve"}))
CALLS = 3 * 4


@pytest.fixture
def engine() -> Iterator[EngineFace]:
    with open_random(small_tokenizer()).face as face:
        yield face
        face.check_integrity()


def test_every_call_is_counted_and_the_bound_is_met(engine: EngineFace) -> None:
    run = run_programs(CASE, engine, compiled=False)
    assert len(run.calls) == CALLS
    assert all(text.startswith("All of them begin") for text in run.texts)
    assert len(run.seconds) == 3
    found = run.metrics(1, has_cache=True)
    requests = [request for call in run.calls for request in call.requests()]
    # A select is one too.
    assert found["requests"] == len(requests) == CALLS
    assert found["prompt_tokens"] == sum(len(request.token_ids) for request in requests)
    assert found["of_bound"] is not None
    assert 0.9 < found["of_bound"] <= 1.0
    assert found["computed_tokens"] == run.stats.prompt_tokens - run.stats.cached_tokens


def test_compiled_runs_say_the_same(engine: EngineFace) -> None:
    interpreted = run_programs(CASE, engine, compiled=False)
    compiled = run_programs(CASE, engine, compiled=True)
    assert compiled.texts == interpreted.texts


def test_plain_requests_ask_the_same_in_the_same_order(engine: EngineFace) -> None:
    run = run_programs(CASE, engine, compiled=False)
    plain = replay_requests(run, engine)
    asked = sorted((call.token_ids, call.output_token_ids) for call in run.calls)
    assert sorted((call.token_ids, call.output_token_ids) for call in plain.calls) == asked
    assert {call.program_id for call in plain.calls} == {""}
    assert plain.stats.prompt_tokens == run.stats.prompt_tokens


def test_what_a_call_is_computed_as() -> None:
    generated = RecordedCall("p", [1, 2, 3], 0.0, SamplingParams(), output_token_ids=[4])
    (request,) = generated.requests()
    assert (request.token_ids, request.output_token_ids, request.num_reusable) == ([1, 2, 3], [4], None)
    scored = RecordedCall("p", [1, 2, 3], 0.0, continuations=[[5], [6, 7], [8, 9]])
    assert [(request.token_ids, request.num_reusable) for request in scored.requests()] == [
        ([1, 2, 3, 6], 2),
        ([1, 2, 3, 8], 3),
    ]
