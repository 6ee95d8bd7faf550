"""Budget, ends and faults, case by case; each step is checked against the lone runs (simulation.py)."""

import pytest

from ramet.runtime.cache import PageAllocator, RadixCache
from ramet.runtime.protocol import Choice, FinishReason, InvalidRequestError, Prefix, PromptTooLongError
from ramet.runtime.scheduler import (
    Request,
    RequestStatus,
    RowResult,
    ScheduledBatch,
    Scheduler,
)
from tests.runtime.scheduler.fakes import TurnMatcher, make_input
from tests.runtime.scheduler.simulation import EOS, Steps, prompt_of, roomy_config

# -- The budget ------------------------------------------------------------------------------------------------


def test_a_long_prompt_does_not_hold_up_those_who_decode() -> None:
    steps = Steps(roomy_config(4, max_tokens_per_step=16))
    for index in range(4):
        steps.submit(f"chat{index}", prompt_of(3, index), max_tokens=30)
    steps.step()
    steps.submit("long", prompt_of(200, 7), max_tokens=2)
    for _ in range(10):
        steps.step()
        rows = steps.last()
        assert {f"chat{index}" for index in range(4)} <= set(rows)
        assert len(rows["long"].token_ids) == 12
    steps.drain()


def test_one_step_mixes_decodes_chunks_and_admissions_in_one_budget() -> None:
    steps = Steps(roomy_config(4, max_tokens_per_step=32))
    steps.submit("decodes", prompt_of(8, 1), max_tokens=30)
    steps.step()
    steps.submit("chunked", prompt_of(50, 2), max_tokens=2)
    steps.step()
    steps.submit("new", prompt_of(40, 3), max_tokens=2)
    steps.step()
    lengths = [(row.request_id, len(row.token_ids), row.samples) for row in steps.batches[-1].rows]
    # The first chunk ended with a page: 28 of 31.
    assert lengths == [("decodes", 1, True), ("chunked", 22, True), ("new", 8, False)]
    steps.drain()


def test_no_more_requests_run_than_there_are_slots() -> None:
    steps = Steps(roomy_config(4, max_running_requests=2))
    for index in range(5):
        steps.submit(f"r{index}", prompt_of(5, index), max_tokens=3)
    steps.step()
    assert {row.slot for row in steps.batches[-1].rows} == {0, 1}
    stats = steps.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (2, 3)
    steps.drain()


def test_pages_are_named_once() -> None:
    """The rows' new pages, put together, are the request's pages; most decode steps name none."""
    steps = Steps(roomy_config(16, max_tokens_per_step=32))
    request = steps.submit("a", prompt_of(70), max_tokens=60)
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


# -- Ends ------------------------------------------------------------------------------------------------------


def test_abort_waiting_running_preempted_and_gone() -> None:
    config = roomy_config(1, num_pages=64, context_length=64, max_running_requests=2, admission_headroom=0)
    steps = Steps(config)
    for index in range(4):
        steps.submit(f"r{index}", prompt_of(20, index), max_tokens=30)
    while not steps.requests["r1"].num_preemptions:
        steps.step()
    for name in ("r3", "r1", "r0", "r0", "unknown"):
        steps.abort(name)
    assert [steps.endings.get(f"r{index}") for index in range(4)] == ["abort", "abort", None, "abort"]
    steps.drain()


def test_the_engine_may_end_a_request() -> None:
    steps = Steps(roomy_config(4))
    steps.submit("a", prompt_of(20))
    steps.step()
    steps.finish("a")
    assert steps.endings["a"] is FinishReason.STOP
    assert not steps.scheduler.finish("a", FinishReason.STOP)
    assert not steps.scheduler.has_work
    assert steps.scheduler.schedule() is None
    # What it computed is there for the next one.
    assert steps.submit("b", prompt_of(21)).num_cached_tokens == 0
    steps.step()
    assert steps.requests["b"].num_cached_tokens == 20
    steps.drain()


def test_stop_tokens_min_tokens_and_the_ban() -> None:
    steps = Steps(roomy_config(4))
    plain = steps.submit("plain", prompt_of(9, 2), max_tokens=200, ignore_eos=False)
    steps.submit("patient", prompt_of(9, 2), max_tokens=200, min_tokens=190, ignore_eos=False)
    steps.submit("own", prompt_of(9, 2), max_tokens=200, stop_token_ids=(3, 4, 5))
    steps.step()
    banned = {name: row.banned_token_ids for name, row in steps.last().items()}
    assert banned == {"plain": (), "patient": (EOS,), "own": ()}
    steps.drain()
    assert steps.endings["plain"] is FinishReason.STOP
    assert plain.history[-1] == EOS
    assert len(steps.answers["patient"]) >= 190
    assert steps.answers["own"][-1] in (3, 4, 5)


def test_the_context_ends_a_request_without_max_tokens() -> None:
    steps = Steps(roomy_config(4, context_length=50))
    request = steps.submit("a", prompt_of(20), max_tokens=None)
    steps.drain()
    assert (steps.endings["a"], len(request.history)) == (FinishReason.LENGTH, 50)


def test_add_refuses_what_can_never_run_and_a_used_id() -> None:
    steps = Steps(roomy_config(4, context_length=50))
    with pytest.raises(PromptTooLongError, match="50"):
        steps.submit("long", prompt_of(50))
    with pytest.raises(InvalidRequestError, match="no tokens"):
        steps.submit("empty", [])
    assert not steps.scheduler.has_work
    steps.submit("a", prompt_of(5))
    with pytest.raises(InvalidRequestError, match="'a' belongs to a running request"):
        steps.submit("a", prompt_of(5))
    steps.drain()
    assert steps.scheduler.get("a") is None


def test_outputs_carry_the_counts() -> None:
    scheduler = Scheduler(roomy_config(4))
    for name in ("cold", "warm"):
        scheduler.add(Request.from_input(make_input(name, prompt_of(20), max_tokens=1), arrival=0.0))
        batch = scheduler.schedule()
        assert batch is not None
        (output,) = scheduler.update(batch, [RowResult([1])])
        assert (output.num_prompt_tokens, output.finish_reason) == (20, FinishReason.LENGTH)
        assert output.num_cached_tokens == (16 if name == "warm" else 0)


# -- Faults ----------------------------------------------------------------------------------------------------


def test_a_step_that_raises_ends_its_requests_and_nobody_else() -> None:
    steps = Steps(roomy_config(4, max_running_requests=2))
    for index in range(4):
        steps.submit(f"r{index}", [*prompt_of(20), index])
    steps.step(fails=True)
    assert steps.endings == {"r0": FinishReason.ERROR, "r1": FinishReason.ERROR}
    assert steps.scheduler.stats().cache.num_cached_pages == 0
    steps.drain()
    assert steps.endings["r3"] is FinishReason.LENGTH


def test_what_earlier_steps_wrote_survives_a_step_that_raises() -> None:
    steps = Steps(roomy_config(4, max_tokens_per_step=32))
    steps.submit("a", prompt_of(80))
    steps.step()
    steps.step()
    steps.step(fails=True)
    later = steps.submit("b", prompt_of(80))
    steps.step()
    assert later.num_cached_tokens == 64
    steps.drain()


def test_a_row_that_fails_ends_its_request_alone() -> None:
    scheduler = Scheduler(roomy_config(4))
    for name in ("good", "bad"):
        scheduler.add(Request.from_input(make_input(name, prompt_of(9, len(name))), arrival=0.0))
    batch = scheduler.schedule()
    assert batch is not None
    outputs = scheduler.update(batch, [RowResult([1]), RowResult([], error="no token is allowed here")])
    by_id = {output.request_id: output for output in outputs}
    assert (by_id["good"].finish_reason, by_id["good"].token_ids) == (None, [1])
    assert (by_id["bad"].finish_reason, by_id["bad"].error) == (FinishReason.ERROR, "no token is allowed here")
    scheduler.check_integrity()
    assert scheduler.stats().num_running == 1


def test_a_row_that_fails_takes_no_prefix_along_that_others_sampled_from() -> None:
    scheduler = Scheduler(roomy_config(4))

    def run(name: str, token_ids: list[int], result: RowResult) -> int:
        scheduler.add(Request.from_input(make_input(name, token_ids, max_tokens=1), arrival=0.0))
        batch = scheduler.schedule()
        assert batch is not None
        (output,) = scheduler.update(batch, [result])
        return output.num_cached_tokens

    broken = RowResult([], error="logits are not finite")
    assert run("good", prompt_of(16), RowResult([1])) == 0
    assert run("bad", [*prompt_of(16), 1, 2, 3, 4, 5], broken) == 16
    assert run("next", [*prompt_of(16), 1, 2, 3, 4, 5], RowResult([1])) == 16


def test_results_that_do_not_fit_change_nothing() -> None:
    scheduler = Scheduler(roomy_config(4))
    scheduler.add(Request.from_input(make_input("a", prompt_of(9)), arrival=0.0))
    batch = scheduler.schedule()
    assert batch is not None
    with pytest.raises(ValueError, match="2 tokens for request 'a'"):
        scheduler.update(batch, [RowResult([1, 2])])
    (output,) = scheduler.fail_batch(batch, "bad executor")
    assert (output.finish_reason, output.error) == (FinishReason.ERROR, "bad executor")
    scheduler.check_integrity()
    assert not scheduler.has_work


def test_calls_out_of_turn_are_refused() -> None:
    scheduler = Scheduler(roomy_config(4))
    scheduler.add(Request.from_input(make_input("a", prompt_of(9)), arrival=0.0))
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
        Scheduler(roomy_config(4), cache=RadixCache(PageAllocator(9, 4)))


@pytest.mark.parametrize(
    ("grammar", "is_banned"),
    [(Prefix("a"), False), (Prefix("a", Choice(("b",))), True), (Choice(("b",)), True)],
)
def test_before_min_tokens_the_end_is_banned_where_it_would_end_the_output(
    grammar: Prefix | Choice, is_banned: bool
) -> None:
    scheduler = Scheduler(roomy_config(4), stop_token_ids=(EOS,))
    source = make_input("r", prompt_of(3, 1), ignore_eos=True, min_tokens=2, grammar=grammar)
    request = Request.from_input(source, arrival=0.0, matcher=TurnMatcher(40, EOS, length=5))
    scheduler.add(request)
    assert request.banned_token_ids == ((EOS,) if is_banned else ())
