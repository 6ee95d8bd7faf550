"""Who shares which pages with whom, step by step; all is checked against the lone runs (simulation.py)."""

import pytest

from ramet.runtime.scheduler import (
    Request,
    RowResult,
    Scheduler,
)
from tests.runtime.scheduler.fakes import make_input
from tests.runtime.scheduler.simulation import EOS, Steps, prompt_of, roomy_config


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_requests_that_arrive_together_compute_their_prefix_once(page_size: int) -> None:
    steps = Steps(roomy_config(page_size, max_tokens_per_step=512))
    shared = prompt_of(96)
    for index in range(8):
        steps.submit(f"r{index}", [*shared, index, index], max_tokens=1)
    steps.step()
    assert len(steps.batches[0].rows) == 8
    computed = [len(row.token_ids) for row in steps.batches[0].rows]
    assert computed == [98] + [2] * 7
    assert [steps.requests[f"r{index}"].num_cached_tokens for index in range(8)] == [0] + [96] * 7
    steps.drain()


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_prefix_that_takes_many_chunks_is_computed_once(page_size: int) -> None:
    steps = Steps(roomy_config(page_size, max_tokens_per_step=48))
    shared = prompt_of(320)
    for index in range(6):
        steps.submit(f"r{index}", [*shared, index], max_tokens=4)
    steps.drain()
    prompt_tokens = sum(
        min(row.end, 321) - row.start for batch in steps.batches for row in batch.rows if row.start < 321
    )
    assert prompt_tokens == 320 + 6


def test_a_chunk_that_another_request_computed_meanwhile_is_taken_over() -> None:
    """The younger one runs first, by priority; the older one had a part of a page for itself by then."""
    steps = Steps(roomy_config(16, max_tokens_per_step=10))
    shared = prompt_of(64)
    steps.submit("old", [*shared, 1], max_tokens=2)
    steps.step()
    assert steps.requests["old"].num_computed_tokens == 10
    steps.submit("young", [*shared, 2], max_tokens=2, priority=1)
    steps.drain()
    num_computed = steps.executor.num_computed
    assert num_computed["young"] <= 64 + 2
    assert num_computed["old"] < 64


def test_an_identical_prompt_computes_its_last_page_alone_and_then_shares_it() -> None:
    steps = Steps(roomy_config(4))
    first = steps.submit("first", prompt_of(32), max_tokens=20)
    steps.step()
    second = steps.submit("second", prompt_of(32), max_tokens=20)
    steps.step()
    assert second.num_cached_tokens == 28
    assert first.pages[:8] == second.pages[:8]
    assert steps.scheduler.stats().cache.num_cached_pages == 8
    steps.step()
    # The swapped page is named anew, once.
    row = steps.last()["second"]
    assert (row.first_new_page, list(row.new_pages)) == (7, second.pages[7:])
    steps.step()
    assert list(steps.last()["second"].new_pages) == []
    steps.drain()


def test_a_finished_request_leaves_prompt_and_answer_to_the_next_turn() -> None:
    steps = Steps(roomy_config(4))
    steps.submit("turn 1", prompt_of(30), max_tokens=11)
    steps.drain(reset=False)
    history = [*prompt_of(30), *steps.answers["turn 1"]]
    second = steps.submit("turn 2", [*history, 1, 2, 3])
    steps.step()
    # The last token was sampled but never computed.
    assert second.num_cached_tokens == 40
    assert steps.scheduler.stats().num_cached_tokens == 40
    steps.drain()


def test_tenants_do_not_share() -> None:
    steps = Steps(roomy_config(4))
    for index, salt in enumerate(["a", "b", "a"]):
        steps.submit(f"r{index}", prompt_of(20), salt=salt)
    steps.step()
    assert [steps.requests[f"r{index}"].num_cached_tokens for index in range(3)] == [0, 0, 16]
    steps.drain()


def test_without_the_prefix_cache_nothing_is_shared_or_kept() -> None:
    steps = Steps(roomy_config(4, enable_prefix_cache=False))
    for index in range(3):
        steps.submit(f"r{index}", prompt_of(20))
    steps.step()
    assert [len(row.token_ids) for row in steps.batches[0].rows] == [20, 20, 20]
    steps.drain(reset=False)
    assert steps.scheduler.stats().num_free_pages == steps.config.num_pages


@pytest.mark.parametrize(
    ("start", "cached"), [(0, 0), (1, 0), (2, 0), (13, 12), (14, 12), (31, 28), (32, 28), (99, 28)]
)
def test_wanted_prompt_logprobs_are_computed_though_the_prefix_is_cached(start: int, cached: int) -> None:
    steps = Steps(roomy_config(4))
    steps.submit("warm", prompt_of(32))
    steps.drain(reset=False)
    request = steps.submit("asks", prompt_of(32), prompt_logprobs=0, prompt_logprobs_start=start)
    steps.drain(reset=False)
    assert request.num_cached_tokens == cached


def test_prompt_logprobs_survive_chunks_and_preemption() -> None:
    config = roomy_config(1, num_pages=64, max_tokens_per_step=7, max_running_requests=3, admission_headroom=0)
    steps = Steps(config)
    for index in range(6):
        steps.submit(f"r{index}", prompt_of(20, index), prompt_logprobs=0, max_tokens=20)
    steps.drain()
    assert steps.scheduler.stats().num_preemptions > 0


def test_a_prompt_of_100_000_tokens_in_pages_of_one() -> None:
    prompt = [index % 39 for index in range(100_000)]
    config = roomy_config(1, num_pages=100_010, context_length=100_010, max_tokens_per_step=8192)
    scheduler = Scheduler(config, stop_token_ids=(EOS,))
    for name in ("cold", "warm"):
        scheduler.add(Request.from_input(make_input(name, prompt, max_tokens=1), arrival=0.0))
        batch = scheduler.schedule()
        while batch is not None:
            scheduler.update(batch, [RowResult([1] if row.samples else []) for row in batch.rows])
            batch = scheduler.schedule()
        scheduler.check_integrity()
    stats = scheduler.stats()
    assert (stats.num_cached_tokens, stats.num_computed_tokens) == (99_999, 100_001)
    assert stats.cache.num_nodes == 14
