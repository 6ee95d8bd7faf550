"""Request: made from an input, and its derived quantities."""

from typing import Any

from ramet.runtime.protocol import ProgramTag, SamplingParams
from ramet.runtime.scheduler import Request, RequestStatus
from ramet.runtime.scheduler.batch import Targets
from tests.runtime.scheduler.fakes import make_input


def test_takes_everything_over_from_the_input() -> None:
    source = make_input("a", [1, 2, 3], priority=2, salt="tenant", seed=-1)
    request = Request.from_input(source, arrival=5.0)
    assert (request.request_id, request.history, request.num_prompt_tokens) == ("a", [1, 2, 3], 3)
    assert (request.priority, request.cache_salt, request.tag, request.arrival) == (
        2,
        "tenant",
        ProgramTag(),
        5.0,
    )
    assert request.params is source.params
    assert request.seed == 2**64 - 1
    assert request.status is RequestStatus.WAITING
    request.history.append(4)
    assert source.token_ids == [1, 2, 3]


def test_the_seed_is_the_parameters_else_the_given_one_else_drawn() -> None:
    plain, seeded = make_input("a", [1]), make_input("b", [1], seed=7)
    assert Request.from_input(seeded, arrival=0.0, seed=9).seed == 7
    assert Request.from_input(plain, arrival=0.0, seed=9).seed == 9
    drawn = {Request.from_input(plain, arrival=0.0).seed for _ in range(4)}
    assert len(drawn) == 4
    assert all(0 <= seed < 2**64 for seed in drawn)


def test_decoding_is_one_token_to_compute_behind_an_output() -> None:
    request = Request.from_input(make_input("a", [1, 2, 3]), arrival=0.0)
    seen = []
    for num_computed, num_outputs in ((2, 0), (2, 1), (3, 1), (3, 2)):
        request.num_computed_tokens = num_computed
        request.history[3:] = [9] * num_outputs
        seen.append((request.is_decoding, request.num_output_tokens))
    assert seen == [(False, 0), (False, 1), (True, 1), (False, 2)]


def test_the_last_token_and_those_before_wanted_logprobs_are_never_cached() -> None:
    def limit(**params: Any) -> int:
        return Request.from_input(make_input("a", [1] * 10, **params), arrival=0.0).max_cached_tokens

    assert limit() == 9
    assert limit(prompt_logprobs=0) == 0
    assert limit(prompt_logprobs=0, prompt_logprobs_start=1) == 0
    assert limit(prompt_logprobs=2, prompt_logprobs_start=5) == 4
    assert limit(prompt_logprobs=2, prompt_logprobs_start=9) == 8
    assert limit(prompt_logprobs=2, prompt_logprobs_start=10) == 9
    assert limit(prompt_logprobs=2, prompt_logprobs_start=99) == 9


def test_stats_tell_where_the_time_went() -> None:
    request = Request.from_input(make_input("a", [1, 2]), arrival=10.0)
    assert (request.stats().queue_time, request.stats().ttft, request.stats().e2e) == (0.0, None, None)
    request.admission_time, request.first_token_time, request.finish_time = 11.0, 13.0, 20.0
    stats = request.stats()
    assert (stats.queue_time, stats.ttft, stats.e2e) == (1.0, 3.0, 10.0)


def test_a_request_that_never_ran_waited_all_its_life() -> None:
    request = Request.from_input(make_input("a", [1], max_tokens=1), arrival=10.0)
    request.finish_time = 14.0
    assert request.stats().queue_time == 4.0
    assert request.params == SamplingParams(temperature=0.0, max_tokens=1)


def test_positions_whose_targets_are_still_to_come_are_never_cached() -> None:
    request = Request.from_input(make_input("a", [1] * 10), arrival=0.0, targets=Targets(4, ((1,), (2,))))
    seen = []
    for found in ([], [[-1.0]], [[-1.0], [-2.0]]):
        request.target_logprobs = found
        seen.append(request.max_cached_tokens)
    assert seen == [4, 5, 9]
    source = make_input("a", [1] * 10, prompt_logprobs=0, prompt_logprobs_start=3)
    assert Request.from_input(source, arrival=0.0, targets=Targets(4, ((1,),))).max_cached_tokens == 2
