"""Who runs first, and who makes room."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ramet.runtime.cache import PageAllocator, RadixCache
from ramet.runtime.protocol import FinishReason
from ramet.runtime.scheduler import (
    Request,
    RowResult,
    Scheduler,
)
from tests.runtime.scheduler.fakes import FakeClock, FakeExecutor, make_input
from tests.runtime.scheduler.simulation import EOS, VOCAB_SIZE, Steps, prompt_of, roomy_config

# -- Order -----------------------------------------------------------------------------------------------------


def _one_at_a_time(**options: Any) -> Steps:
    return Steps(roomy_config(4, max_running_requests=1, max_tokens_per_step=512), **options)


def _order_of_first_steps(steps: Steps) -> list[str]:
    return list(dict.fromkeys(row.request_id for batch in steps.batches for row in batch.rows))


def test_longest_prefix_first_by_default() -> None:
    cache = RadixCache(PageAllocator(256, 4))
    config = roomy_config(4, max_running_requests=1)
    scheduler = Scheduler(config, cache=cache, clock=FakeClock())
    pages = cache.allocator.allocate(8)
    assert pages is not None
    cache.insert(prompt_of(32), pages)
    for name, token_ids in (
        ("miss", prompt_of(16, 3)),
        ("half", [*prompt_of(16), 1, 1]),
        ("whole", [*prompt_of(32), 1]),
    ):
        scheduler.add(Request.from_input(make_input(name, token_ids, max_tokens=1), arrival=0.0))
    order = []
    while (batch := scheduler.schedule()) is not None:
        order += [row.request_id for row in batch.rows]
        scheduler.update(batch, [RowResult([1])] * len(batch.rows))
    assert order == ["whole", "half", "miss"]


def test_fcfs_keeps_the_order_of_arrival() -> None:
    steps = _one_at_a_time(fcfs=True)
    steps.submit("first", prompt_of(16), max_tokens=2)
    steps.step()
    steps.submit("other", prompt_of(16, 3), max_tokens=2)
    steps.submit("same", prompt_of(16), max_tokens=2)
    steps.drain()
    assert _order_of_first_steps(steps) == ["first", "other", "same"]


def test_a_higher_priority_goes_first() -> None:
    steps = _one_at_a_time()
    steps.submit("low", prompt_of(16), priority=-1, max_tokens=2)
    steps.submit("normal", prompt_of(16), max_tokens=2)
    steps.submit("high", prompt_of(16, 5), priority=9, max_tokens=2)
    steps.drain()
    assert _order_of_first_steps(steps) == ["high", "normal", "low"]


def test_overtaking_is_bounded() -> None:
    """A request with nothing in the cache, and an endless stream of younger ones whose prefix is there."""
    config = roomy_config(4, max_running_requests=1, max_tokens_per_step=512, max_overtakes=5)
    steps = Steps(config)
    steps.submit("first", prompt_of(64), max_tokens=2)
    steps.step()
    unlucky = steps.submit("unlucky", prompt_of(64, 9), max_tokens=2)
    for index in range(30):
        steps.submit(f"same{index}", [*prompt_of(64), index], max_tokens=2)
        steps.step()
        steps.step()
    steps.drain()
    assert unlucky.num_overtaken == unlucky.stats().num_overtaken == 5
    assert _order_of_first_steps(steps).index("unlucky") == 1 + 5


def test_nobody_is_ranked_while_nobody_can_be_admitted() -> None:
    asked: Counter[str] = Counter()

    class Asking:
        window = 256

        def order(
            self, waiting: Sequence[Request], prefix_length: Callable[[Request], int]
        ) -> Sequence[Request]:
            asked.update(request.request_id for request in waiting)
            return waiting

    config = roomy_config(4, num_pages=25, context_length=100, max_running_requests=8)
    scheduler = Scheduler(config, policy=Asking(), stop_token_ids=(EOS,))
    executor = FakeExecutor(config)
    for index in range(2_000):
        source = make_input(f"r{index}", prompt_of(40, index), max_tokens=30, ignore_eos=True)
        scheduler.add(Request.from_input(source, arrival=0.0))
    totals: list[int] = []
    for _ in range(20):
        batch = scheduler.schedule()
        assert batch is not None
        scheduler.update(batch, executor.run(batch))
        totals.append(asked.total())
    # The pool holds one and a half of them: until one ends, looking again is of no use.
    assert totals[1:] == [totals[1]] * 19
    assert max(asked.values()) <= 3
    assert len(asked) <= 258


def test_a_new_request_of_a_higher_priority_is_looked_at_though_others_do_not_fit() -> None:
    steps = Steps(roomy_config(4, num_pages=25, context_length=100))
    steps.submit("running", prompt_of(40), max_tokens=30)
    steps.step()
    steps.submit("large", prompt_of(80, 1), max_tokens=10)
    steps.step()
    assert set(steps.last()) == {"running"}
    steps.submit("urgent", prompt_of(4, 2), max_tokens=2, priority=1)
    steps.step()
    assert set(steps.last()) == {"running", "urgent"}
    steps.drain()


def test_when_the_one_that_does_not_fit_is_aborted_the_next_is_looked_at() -> None:
    steps = Steps(roomy_config(4, num_pages=25, context_length=100), fcfs=True)
    steps.submit("running", prompt_of(40), max_tokens=30)
    steps.step()
    steps.submit("large", prompt_of(80, 1), max_tokens=10)
    steps.submit("small", prompt_of(4, 2), max_tokens=2)
    steps.step()
    assert set(steps.last()) == {"running"}
    steps.abort("large")
    steps.step()
    assert set(steps.last()) == {"running", "small"}
    steps.drain()


# -- Preemption ------------------------------------------------------------------------------------------------


def test_the_youngest_of_the_lowest_priority_is_preempted_and_resumes_with_the_same_tokens() -> None:
    config = roomy_config(1, num_pages=64, context_length=64, max_running_requests=4, admission_headroom=0)
    steps = Steps(config)
    for name, priority in (("low old", 0), ("high", 1), ("low young", 0)):
        steps.submit(name, prompt_of(12, len(name)), max_tokens=40, priority=priority)
    steps.drain()
    preempted = {name: request.num_preemptions for name, request in steps.requests.items()}
    assert preempted["high"] == 0
    assert preempted["low young"] >= preempted["low old"]
    assert preempted["low young"] > 0
    assert steps.requests["low young"].stats().num_preemptions == preempted["low young"]
    assert steps.scheduler.stats().num_preemptions == sum(preempted.values())


def test_a_preempted_request_resumes_before_those_that_never_ran() -> None:
    config = roomy_config(1, num_pages=64, context_length=64, max_running_requests=2, admission_headroom=0)
    steps = Steps(config)
    for index in range(4):
        steps.submit(f"r{index}", prompt_of(20, index), max_tokens=30)
    while not steps.requests["r1"].num_preemptions:
        steps.step()
    while "r1" not in steps.last():
        assert steps.requests["r2"].admission_time is None
        steps.step()
    # It finds its own pages in the cache, which is not what num_cached_tokens tells.
    assert steps.last()["r1"].start > 0
    assert steps.requests["r1"].num_cached_tokens == 0
    steps.drain()


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("shares", [True, False])
def test_no_livelock_in_a_pool_of_hardly_more_than_one_request(page_size: int, shares: bool) -> None:
    num_pages = 64 // page_size + 1
    config = roomy_config(
        page_size,
        num_pages=num_pages,
        context_length=64,
        max_tokens_per_step=16,
        admission_headroom=0,
        enable_prefix_cache=shares,
    )
    steps = Steps(config)
    for index in range(40):
        steps.submit(f"r{index}", prompt_of(30, index % 5), max_tokens=34)
    steps.drain(limit=6_000)
    assert all(reason is FinishReason.LENGTH for reason in steps.endings.values())


def test_a_request_alone_fills_the_pool_to_its_last_page() -> None:
    steps = Steps(roomy_config(4, num_pages=8, context_length=600))
    request = steps.submit("a", prompt_of(10), max_tokens=None)
    steps.drain()
    assert len(request.history) == 32
    assert steps.endings["a"] is FinishReason.LENGTH


def test_10_000_requests_at_once_and_a_pool_of_2_000_tokens() -> None:
    config = roomy_config(
        16, num_pages=125, context_length=200, max_running_requests=64, max_tokens_per_step=512
    )
    scheduler = Scheduler(config, stop_token_ids=(EOS,), clock=FakeClock())
    for index in range(10_000):
        prompt = [*prompt_of(32, index % 7), index % VOCAB_SIZE, index // VOCAB_SIZE % VOCAB_SIZE]
        source = make_input(f"r{index}", prompt, max_tokens=1 + index % 9)
        scheduler.add(Request.from_input(source, arrival=0.0))
    for index in range(0, 10_000, 2):
        assert scheduler.abort(f"r{index}") is not None
    finished: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    while (batch := scheduler.schedule()) is not None:
        results = [RowResult([1] if row.samples else []) for row in batch.rows]
        for output in scheduler.update(batch, results):
            tokens[output.request_id] += len(output.token_ids)
            finished[output.request_id] += output.finish_reason is not None
    assert finished == {f"r{index}": 1 for index in range(1, 10_000, 2)}
    assert tokens == {f"r{index}": 1 + index % 9 for index in range(1, 10_000, 2)}
    scheduler.check_integrity()
    assert scheduler.stats().num_finished == 10_000
