"""The scheduler case by case; each step is checked against the lone run of every request (simulation.py)."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ramet.runtime.cache import PageAllocator, RadixCache
from ramet.runtime.protocol import FinishReason, InvalidRequestError, PromptTooLongError
from ramet.runtime.scheduler import (
    BatchRow,
    Request,
    RequestStatus,
    RowResult,
    ScheduledBatch,
    Scheduler,
    SchedulerConfig,
)
from tests.runtime.scheduler.fakes import FakeClock, FakeExecutor, TurnMatcher, make_input
from tests.runtime.scheduler.simulation import EOS, VOCAB_SIZE, Simulation


def _config(page_size: int = 4, **changes: Any) -> SchedulerConfig:
    values: dict[str, Any] = {
        "num_pages": 1024 // page_size,
        "page_size": page_size,
        "context_length": 600,
        "vocab_size": VOCAB_SIZE,
        "max_running_requests": 16,
        "max_tokens_per_step": 64,
        "admission_headroom": 8,
    }
    return SchedulerConfig(**{**values, **changes})


def _prompt(length: int, variant: int = 0) -> list[int]:
    return [(index * 5 + index // 8 + variant) % VOCAB_SIZE for index in range(length)]


class Steps(Simulation):
    """A simulation that keeps the batches."""

    def __init__(self, config: SchedulerConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self.batches: list[ScheduledBatch] = []
        run = self.executor.run

        def record(batch: ScheduledBatch) -> list[RowResult]:
            self.batches.append(batch)
            return run(batch)

        self.executor.run = record  # type: ignore[method-assign]

    def submit(self, request_id: str, token_ids: Sequence[int], **params: Any) -> Request:
        matcher = params.pop("matcher", None)
        params = {"max_tokens": 8, "ignore_eos": True, **params}
        self.add(make_input(request_id, token_ids, **params), matcher)
        return self.requests[request_id]

    def last(self) -> dict[str, BatchRow]:
        return {row.request_id: row for row in self.batches[-1].rows}


# -- Sharing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_requests_that_arrive_together_compute_their_prefix_once(page_size: int) -> None:
    steps = Steps(_config(page_size, max_tokens_per_step=512))
    shared = _prompt(96)
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
    steps = Steps(_config(page_size, max_tokens_per_step=48))
    shared = _prompt(320)
    for index in range(6):
        steps.submit(f"r{index}", [*shared, index], max_tokens=4)
    steps.drain()
    prompt_tokens = sum(
        min(row.end, 321) - row.start for batch in steps.batches for row in batch.rows if row.start < 321
    )
    assert prompt_tokens == 320 + 6


def test_a_chunk_that_another_request_computed_meanwhile_is_taken_over() -> None:
    """The younger one runs first, by priority; the older one had a part of a page for itself by then."""
    steps = Steps(_config(16, max_tokens_per_step=10))
    shared = _prompt(64)
    steps.submit("old", [*shared, 1], max_tokens=2)
    steps.step()
    assert steps.requests["old"].num_computed_tokens == 10
    steps.submit("young", [*shared, 2], max_tokens=2, priority=1)
    steps.drain()
    num_computed = steps.executor.num_computed
    assert num_computed["young"] <= 64 + 2
    assert num_computed["old"] < 64


def test_an_identical_prompt_computes_its_last_page_alone_and_then_shares_it() -> None:
    steps = Steps(_config(4))
    first = steps.submit("first", _prompt(32), max_tokens=20)
    steps.step()
    second = steps.submit("second", _prompt(32), max_tokens=20)
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
    steps = Steps(_config(4))
    steps.submit("turn 1", _prompt(30), max_tokens=11)
    steps.drain(reset=False)
    history = [*_prompt(30), *steps.answers["turn 1"]]
    second = steps.submit("turn 2", [*history, 1, 2, 3])
    steps.step()
    # The last token was sampled but never computed.
    assert second.num_cached_tokens == 40
    assert steps.scheduler.stats().num_cached_tokens == 40
    steps.drain()


def test_tenants_do_not_share() -> None:
    steps = Steps(_config(4))
    for index, salt in enumerate(["a", "b", "a"]):
        steps.submit(f"r{index}", _prompt(20), salt=salt)
    steps.step()
    assert [steps.requests[f"r{index}"].num_cached_tokens for index in range(3)] == [0, 0, 16]
    steps.drain()


def test_without_the_prefix_cache_nothing_is_shared_or_kept() -> None:
    steps = Steps(_config(4, enable_prefix_cache=False))
    for index in range(3):
        steps.submit(f"r{index}", _prompt(20))
    steps.step()
    assert [len(row.token_ids) for row in steps.batches[0].rows] == [20, 20, 20]
    steps.drain(reset=False)
    assert steps.scheduler.stats().num_free_pages == steps.config.num_pages


@pytest.mark.parametrize(
    ("start", "cached"), [(0, 0), (1, 0), (2, 0), (13, 12), (14, 12), (31, 28), (32, 28), (99, 28)]
)
def test_wanted_prompt_logprobs_are_computed_though_the_prefix_is_cached(start: int, cached: int) -> None:
    steps = Steps(_config(4))
    steps.submit("warm", _prompt(32))
    steps.drain(reset=False)
    request = steps.submit("asks", _prompt(32), prompt_logprobs=0, prompt_logprobs_start=start)
    steps.drain(reset=False)
    assert request.num_cached_tokens == cached


def test_prompt_logprobs_survive_chunks_and_preemption() -> None:
    config = _config(1, num_pages=64, max_tokens_per_step=7, max_running_requests=3, admission_headroom=0)
    steps = Steps(config)
    for index in range(6):
        steps.submit(f"r{index}", _prompt(20, index), prompt_logprobs=0, max_tokens=20)
    steps.drain()
    assert steps.scheduler.stats().num_preemptions > 0


def test_a_prompt_of_100_000_tokens_in_pages_of_one() -> None:
    prompt = [index % 39 for index in range(100_000)]
    config = _config(1, num_pages=100_010, context_length=100_010, max_tokens_per_step=8192)
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


# -- The budget ----------------------------------------------------------------------------------------------


def test_a_long_prompt_does_not_hold_up_those_who_decode() -> None:
    steps = Steps(_config(4, max_tokens_per_step=16))
    for index in range(4):
        steps.submit(f"chat{index}", _prompt(3, index), max_tokens=30)
    steps.step()
    steps.submit("long", _prompt(200, 7), max_tokens=2)
    for _ in range(10):
        steps.step()
        rows = steps.last()
        assert {f"chat{index}" for index in range(4)} <= set(rows)
        assert len(rows["long"].token_ids) == 12
    steps.drain()


def test_one_step_mixes_decodes_chunks_and_admissions_in_one_budget() -> None:
    steps = Steps(_config(4, max_tokens_per_step=32))
    steps.submit("decodes", _prompt(8, 1), max_tokens=30)
    steps.step()
    steps.submit("chunked", _prompt(50, 2), max_tokens=2)
    steps.step()
    steps.submit("new", _prompt(40, 3), max_tokens=2)
    steps.step()
    lengths = [(row.request_id, len(row.token_ids), row.samples) for row in steps.batches[-1].rows]
    # The first chunk ended with a page: 28 of 31.
    assert lengths == [("decodes", 1, True), ("chunked", 22, True), ("new", 8, False)]
    steps.drain()


def test_no_more_requests_run_than_there_are_slots() -> None:
    steps = Steps(_config(4, max_running_requests=2))
    for index in range(5):
        steps.submit(f"r{index}", _prompt(5, index), max_tokens=3)
    steps.step()
    assert {row.slot for row in steps.batches[-1].rows} == {0, 1}
    stats = steps.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (2, 3)
    steps.drain()


def test_pages_are_named_once() -> None:
    """The rows' new pages, put together, are the request's pages; most decode steps name none."""
    steps = Steps(_config(16, max_tokens_per_step=32))
    request = steps.submit("a", _prompt(70), max_tokens=60)
    table: list[int] = []
    while request.status is not RequestStatus.FINISHED:
        pages = request.pages
        steps.step()
        row = steps.last()["a"]
        assert row.first_new_page == len(table)
        table += row.new_pages
        if request.status is RequestStatus.RUNNING:
            assert table == request.pages
            pages = request.pages
    assert len(table) == len(pages) == -(-129 // 16)
    assert sum(bool(row.new_pages) for batch in steps.batches for row in batch.rows) == 3 + 4


# -- Order ---------------------------------------------------------------------------------------------------


def _one_at_a_time(**options: Any) -> Steps:
    return Steps(_config(4, max_running_requests=1, max_tokens_per_step=512), **options)


def _order_of_first_steps(steps: Steps) -> list[str]:
    return list(dict.fromkeys(row.request_id for batch in steps.batches for row in batch.rows))


def test_longest_prefix_first_by_default() -> None:
    cache = RadixCache(PageAllocator(256, 4))
    config = _config(4, max_running_requests=1)
    scheduler = Scheduler(config, cache=cache, clock=FakeClock())
    pages = cache.allocator.allocate(8)
    assert pages is not None
    cache.insert(_prompt(32), pages)
    for name, token_ids in (
        ("miss", _prompt(16, 3)),
        ("half", [*_prompt(16), 1, 1]),
        ("whole", [*_prompt(32), 1]),
    ):
        scheduler.add(Request.from_input(make_input(name, token_ids, max_tokens=1), arrival=0.0))
    order = []
    while (batch := scheduler.schedule()) is not None:
        order += [row.request_id for row in batch.rows]
        scheduler.update(batch, [RowResult([1])] * len(batch.rows))
    assert order == ["whole", "half", "miss"]


def test_fcfs_keeps_the_order_of_arrival() -> None:
    steps = _one_at_a_time(fcfs=True)
    steps.submit("first", _prompt(16), max_tokens=2)
    steps.step()
    steps.submit("other", _prompt(16, 3), max_tokens=2)
    steps.submit("same", _prompt(16), max_tokens=2)
    steps.drain()
    assert _order_of_first_steps(steps) == ["first", "other", "same"]


def test_a_higher_priority_goes_first() -> None:
    steps = _one_at_a_time()
    steps.submit("low", _prompt(16), priority=-1, max_tokens=2)
    steps.submit("normal", _prompt(16), max_tokens=2)
    steps.submit("high", _prompt(16, 5), priority=9, max_tokens=2)
    steps.drain()
    assert _order_of_first_steps(steps) == ["high", "normal", "low"]


def test_overtaking_is_bounded() -> None:
    """A request with nothing in the cache, and an endless stream of younger ones whose prefix is there."""
    config = _config(4, max_running_requests=1, max_tokens_per_step=512, max_overtakes=5)
    steps = Steps(config)
    steps.submit("first", _prompt(64), max_tokens=2)
    steps.step()
    unlucky = steps.submit("unlucky", _prompt(64, 9), max_tokens=2)
    for index in range(30):
        steps.submit(f"same{index}", [*_prompt(64), index], max_tokens=2)
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

    config = _config(4, num_pages=25, context_length=100, max_running_requests=8)
    scheduler = Scheduler(config, policy=Asking(), stop_token_ids=(EOS,))
    executor = FakeExecutor(config)
    for index in range(2_000):
        source = make_input(f"r{index}", _prompt(40, index), max_tokens=30, ignore_eos=True)
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
    steps = Steps(_config(4, num_pages=25, context_length=100))
    steps.submit("running", _prompt(40), max_tokens=30)
    steps.step()
    steps.submit("large", _prompt(80, 1), max_tokens=10)
    steps.step()
    assert set(steps.last()) == {"running"}
    steps.submit("urgent", _prompt(4, 2), max_tokens=2, priority=1)
    steps.step()
    assert set(steps.last()) == {"running", "urgent"}
    steps.drain()


def test_when_the_one_that_does_not_fit_is_aborted_the_next_is_looked_at() -> None:
    steps = Steps(_config(4, num_pages=25, context_length=100), fcfs=True)
    steps.submit("running", _prompt(40), max_tokens=30)
    steps.step()
    steps.submit("large", _prompt(80, 1), max_tokens=10)
    steps.submit("small", _prompt(4, 2), max_tokens=2)
    steps.step()
    assert set(steps.last()) == {"running"}
    steps.abort("large")
    steps.step()
    assert set(steps.last()) == {"running", "small"}
    steps.drain()


# -- Preemption ----------------------------------------------------------------------------------------------


def test_the_youngest_of_the_lowest_priority_is_preempted_and_resumes_with_the_same_tokens() -> None:
    config = _config(1, num_pages=64, context_length=64, max_running_requests=4, admission_headroom=0)
    steps = Steps(config)
    for name, priority in (("low old", 0), ("high", 1), ("low young", 0)):
        steps.submit(name, _prompt(12, len(name)), max_tokens=40, priority=priority)
    steps.drain()
    preempted = {name: request.num_preemptions for name, request in steps.requests.items()}
    assert preempted["high"] == 0
    assert preempted["low young"] >= preempted["low old"]
    assert preempted["low young"] > 0
    assert steps.requests["low young"].stats().num_preemptions == preempted["low young"]
    assert steps.scheduler.stats().num_preemptions == sum(preempted.values())


def test_a_preempted_request_resumes_before_those_that_never_ran() -> None:
    config = _config(1, num_pages=64, context_length=64, max_running_requests=2, admission_headroom=0)
    steps = Steps(config)
    for index in range(4):
        steps.submit(f"r{index}", _prompt(20, index), max_tokens=30)
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
    config = _config(
        page_size,
        num_pages=num_pages,
        context_length=64,
        max_tokens_per_step=16,
        admission_headroom=0,
        enable_prefix_cache=shares,
    )
    steps = Steps(config)
    for index in range(40):
        steps.submit(f"r{index}", _prompt(30, index % 5), max_tokens=34)
    steps.drain(limit=6_000)
    assert all(reason is FinishReason.LENGTH for reason in steps.endings.values())


def test_a_request_alone_fills_the_pool_to_its_last_page() -> None:
    steps = Steps(_config(4, num_pages=8, context_length=600))
    request = steps.submit("a", _prompt(10), max_tokens=None)
    steps.drain()
    assert len(request.history) == 32
    assert steps.endings["a"] is FinishReason.LENGTH


def test_10_000_requests_at_once_and_a_pool_of_2_000_tokens() -> None:
    config = _config(16, num_pages=125, context_length=200, max_running_requests=64, max_tokens_per_step=512)
    scheduler = Scheduler(config, stop_token_ids=(EOS,), clock=FakeClock())
    for index in range(10_000):
        prompt = [*_prompt(32, index % 7), index % VOCAB_SIZE, index // VOCAB_SIZE % VOCAB_SIZE]
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


# -- Ends ----------------------------------------------------------------------------------------------------


def test_abort_waiting_running_preempted_and_gone() -> None:
    config = _config(1, num_pages=64, context_length=64, max_running_requests=2, admission_headroom=0)
    steps = Steps(config)
    for index in range(4):
        steps.submit(f"r{index}", _prompt(20, index), max_tokens=30)
    while not steps.requests["r1"].num_preemptions:
        steps.step()
    for name in ("r3", "r1", "r0", "r0", "unknown"):
        steps.abort(name)
    assert [steps.endings.get(f"r{index}") for index in range(4)] == ["abort", "abort", None, "abort"]
    steps.drain()


def test_the_engine_may_end_a_request() -> None:
    steps = Steps(_config(4))
    steps.submit("a", _prompt(20))
    steps.step()
    steps.finish("a")
    assert steps.endings["a"] is FinishReason.STOP
    assert not steps.scheduler.finish("a", FinishReason.STOP)
    assert not steps.scheduler.has_work
    assert steps.scheduler.schedule() is None
    # What it computed is there for the next one.
    assert steps.submit("b", _prompt(21)).num_cached_tokens == 0
    steps.step()
    assert steps.requests["b"].num_cached_tokens == 20
    steps.drain()


def test_stop_tokens_min_tokens_and_the_ban() -> None:
    steps = Steps(_config(4))
    plain = steps.submit("plain", _prompt(9, 2), max_tokens=200, ignore_eos=False)
    steps.submit("patient", _prompt(9, 2), max_tokens=200, min_tokens=190, ignore_eos=False)
    steps.submit("own", _prompt(9, 2), max_tokens=200, stop_token_ids=(3, 4, 5))
    steps.step()
    banned = {name: row.banned_token_ids for name, row in steps.last().items()}
    assert banned == {"plain": (), "patient": (EOS,), "own": ()}
    steps.drain()
    assert steps.endings["plain"] is FinishReason.STOP
    assert plain.history[-1] == EOS
    assert len(steps.answers["patient"]) >= 190
    assert steps.answers["own"][-1] in (3, 4, 5)


def test_the_context_ends_a_request_without_max_tokens() -> None:
    steps = Steps(_config(4, context_length=50))
    request = steps.submit("a", _prompt(20), max_tokens=None)
    steps.drain()
    assert (steps.endings["a"], len(request.history)) == (FinishReason.LENGTH, 50)


def test_add_refuses_what_can_never_run_and_a_used_id() -> None:
    steps = Steps(_config(4, context_length=50))
    with pytest.raises(PromptTooLongError, match="50"):
        steps.submit("long", _prompt(50))
    with pytest.raises(InvalidRequestError, match="no tokens"):
        steps.submit("empty", [])
    assert not steps.scheduler.has_work
    steps.submit("a", _prompt(5))
    with pytest.raises(InvalidRequestError, match="'a' belongs to a running request"):
        steps.submit("a", _prompt(5))
    steps.drain()
    assert steps.scheduler.get("a") is None


def test_outputs_carry_the_counts() -> None:
    scheduler = Scheduler(_config(4))
    for name in ("cold", "warm"):
        scheduler.add(Request.from_input(make_input(name, _prompt(20), max_tokens=1), arrival=0.0))
        batch = scheduler.schedule()
        assert batch is not None
        (output,) = scheduler.update(batch, [RowResult([1])])
        assert (output.num_prompt_tokens, output.finish_reason) == (20, FinishReason.LENGTH)
        assert output.num_cached_tokens == (16 if name == "warm" else 0)


# -- Faults --------------------------------------------------------------------------------------------------


def test_a_step_that_raises_ends_its_requests_and_nobody_else() -> None:
    steps = Steps(_config(4, max_running_requests=2))
    for index in range(4):
        steps.submit(f"r{index}", [*_prompt(20), index])
    steps.step(fails=True)
    assert steps.endings == {"r0": FinishReason.ERROR, "r1": FinishReason.ERROR}
    assert steps.scheduler.stats().cache.num_cached_pages == 0
    steps.drain()
    assert steps.endings["r3"] is FinishReason.LENGTH


def test_what_earlier_steps_wrote_survives_a_step_that_raises() -> None:
    steps = Steps(_config(4, max_tokens_per_step=32))
    steps.submit("a", _prompt(80))
    steps.step()
    steps.step()
    steps.step(fails=True)
    later = steps.submit("b", _prompt(80))
    steps.step()
    assert later.num_cached_tokens == 64
    steps.drain()


def test_a_row_that_fails_ends_its_request_alone() -> None:
    scheduler = Scheduler(_config(4))
    for name in ("good", "bad"):
        scheduler.add(Request.from_input(make_input(name, _prompt(9, len(name))), arrival=0.0))
    batch = scheduler.schedule()
    assert batch is not None
    outputs = scheduler.update(batch, [RowResult([1]), RowResult([], error="no token is allowed here")])
    by_id = {output.request_id: output for output in outputs}
    assert (by_id["good"].finish_reason, by_id["good"].token_ids) == (None, [1])
    assert (by_id["bad"].finish_reason, by_id["bad"].error) == (FinishReason.ERROR, "no token is allowed here")
    scheduler.check_integrity()
    assert scheduler.stats().num_running == 1


def test_results_that_do_not_fit_change_nothing() -> None:
    scheduler = Scheduler(_config(4))
    scheduler.add(Request.from_input(make_input("a", _prompt(9)), arrival=0.0))
    batch = scheduler.schedule()
    assert batch is not None
    with pytest.raises(ValueError, match="2 tokens for request 'a'"):
        scheduler.update(batch, [RowResult([1, 2])])
    (output,) = scheduler.fail_batch(batch, "bad executor")
    assert (output.finish_reason, output.error) == (FinishReason.ERROR, "bad executor")
    scheduler.check_integrity()
    assert not scheduler.has_work


def test_calls_out_of_turn_are_refused() -> None:
    scheduler = Scheduler(_config(4))
    scheduler.add(Request.from_input(make_input("a", _prompt(9)), arrival=0.0))
    batch = scheduler.schedule()
    assert batch is not None
    with pytest.raises(RuntimeError, match="in flight"):
        scheduler.schedule()
    with pytest.raises(RuntimeError, match="in flight"):
        scheduler.abort("a")
    with pytest.raises(RuntimeError, match="not the batch"):
        scheduler.update(ScheduledBatch(9, ()), [])
    scheduler.update(batch, [RowResult([1])])
    with pytest.raises(RuntimeError, match="not the batch"):
        scheduler.update(batch, [RowResult([1])])


def test_a_cache_of_other_sizes_is_refused() -> None:
    with pytest.raises(ValueError, match="9 pages of 4 tokens, the config 256 of 4"):
        Scheduler(_config(4), cache=RadixCache(PageAllocator(9, 4)))


# -- Grammars and drafts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafts", [False, True])
def test_a_grammar_constrains_every_token_and_ends_the_request(drafts: bool) -> None:
    steps = Steps(_config(4), drafts=drafts)
    matcher = TurnMatcher(VOCAB_SIZE, EOS, length=12)
    steps.submit("a", _prompt(9), matcher=matcher, max_tokens=50)
    steps.submit("free", _prompt(9, 3))
    steps.drain()
    assert [token_id % 3 for token_id in steps.answers["a"][:-1]] == [0, 1, 2] * 4
    assert steps.answers["a"][-1] == EOS
    assert steps.endings["a"] is FinishReason.STOP


@pytest.mark.parametrize("drafts", [False, True])
def test_a_grammar_that_fails_ends_its_request_alone(drafts: bool) -> None:
    steps = Steps(_config(4), drafts=drafts)
    steps.submit("a", _prompt(9), matcher=TurnMatcher(VOCAB_SIZE, EOS, length=12, breaks_at=3), max_tokens=50)
    steps.submit("b", _prompt(9))
    steps.drain()
    assert (steps.endings["a"], len(steps.answers["a"])) == (FinishReason.ERROR, 3)
    assert steps.endings["b"] is FinishReason.LENGTH


def test_the_stop_token_of_a_grammar_is_banned_before_min_tokens_even_if_eos_is_ignored() -> None:
    steps = Steps(_config(4))
    matcher = TurnMatcher(VOCAB_SIZE, EOS, length=3)
    steps.submit("a", _prompt(9), matcher=matcher, min_tokens=8, max_tokens=20)
    steps.step()
    assert steps.last()["a"].banned_token_ids == (EOS,)
    steps.drain()
    assert (steps.endings["a"], len(steps.answers["a"])) == (FinishReason.ERROR, 3)


def test_accepted_drafts_save_steps_and_rejected_ones_change_nothing() -> None:
    plain, drafted = (Steps(_config(4), drafts=drafts) for drafts in (False, True))
    for steps in (plain, drafted):
        steps.submit("a", _prompt(9), max_tokens=60)
        steps.drain()
    assert plain.answers == drafted.answers
    stats = drafted.scheduler.stats()
    assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens
    assert drafted.requests["a"].num_steps == 60 - stats.num_accepted_draft_tokens
    assert plain.requests["a"].num_steps == 60


def test_drafts_take_no_pages_that_others_need() -> None:
    """With drafts nobody is preempted who would not be without them."""
    preemptions = []
    for drafts in (False, True):
        config = _config(1, num_pages=90, context_length=40, max_running_requests=3, admission_headroom=40)
        steps = Steps(config, drafts=drafts)
        for index in range(6):
            steps.submit(f"r{index}", _prompt(10, index), max_tokens=20)
        steps.drain()
        preemptions.append(steps.scheduler.stats().num_preemptions)
    assert preemptions == [0, 0]


def test_drafts_leave_half_of_the_spare_budget_to_prompts() -> None:
    class Many:
        def propose(self, request: Request) -> Sequence[int]:
            return [1] * 100

    config = _config(4, max_tokens_per_step=16)
    scheduler = Scheduler(config, proposer=Many())
    scheduler.add(Request.from_input(make_input("a", _prompt(4), max_tokens=100), arrival=0.0))
    executor = FakeExecutor(config)
    num_drafts = []
    for _ in range(3):
        batch = scheduler.schedule()
        assert batch is not None
        num_drafts.append(batch.rows[0].num_drafts)
        scheduler.update(batch, executor.run(batch))
    assert num_drafts == [6, 15, 15]
    scheduler.add(Request.from_input(make_input("b", _prompt(40, 1)), arrival=0.0))
    batch = scheduler.schedule()
    assert batch is not None
    assert [(row.num_drafts, len(row.token_ids)) for row in batch.rows] == [(7, 8), (0, 8)]
