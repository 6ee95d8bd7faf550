"""Rows with grammars and drafts."""

from collections.abc import Sequence

import pytest

from ramet.runtime.protocol import FinishReason
from ramet.runtime.scheduler import (
    Request,
    RowResult,
    Scheduler,
)
from tests.runtime.scheduler.fakes import FakeExecutor, TurnMatcher, make_input
from tests.runtime.scheduler.simulation import EOS, VOCAB_SIZE, Steps, prompt_of, roomy_config


@pytest.mark.parametrize("drafts", [False, True])
def test_a_grammar_constrains_every_token_and_ends_the_request(drafts: bool) -> None:
    steps = Steps(roomy_config(4), drafts=drafts)
    matcher = TurnMatcher(VOCAB_SIZE, EOS, length=12)
    steps.submit("a", prompt_of(9), matcher=matcher, max_tokens=50)
    steps.submit("free", prompt_of(9, 3))
    steps.drain()
    assert [token_id % 3 for token_id in steps.answers["a"][:-1]] == [0, 1, 2] * 4
    assert steps.answers["a"][-1] == EOS
    assert steps.endings["a"] is FinishReason.STOP


@pytest.mark.parametrize("drafts", [False, True])
def test_a_grammar_that_fails_ends_its_request_alone(drafts: bool) -> None:
    steps = Steps(roomy_config(4), drafts=drafts)
    steps.submit("a", prompt_of(9), matcher=TurnMatcher(VOCAB_SIZE, EOS, length=12, breaks_at=3), max_tokens=50)
    steps.submit("b", prompt_of(9))
    steps.drain()
    assert (steps.endings["a"], len(steps.answers["a"])) == (FinishReason.ERROR, 3)
    assert steps.endings["b"] is FinishReason.LENGTH


def test_the_stop_token_of_a_grammar_is_banned_before_min_tokens_even_if_eos_is_ignored() -> None:
    steps = Steps(roomy_config(4))
    matcher = TurnMatcher(VOCAB_SIZE, EOS, length=3)
    steps.submit("a", prompt_of(9), matcher=matcher, min_tokens=8, max_tokens=20)
    steps.step()
    assert steps.last()["a"].banned_token_ids == (EOS,)
    steps.drain()
    assert (steps.endings["a"], len(steps.answers["a"])) == (FinishReason.ERROR, 3)


def test_accepted_drafts_save_steps_and_rejected_ones_change_nothing() -> None:
    plain, drafted = (Steps(roomy_config(4), drafts=drafts) for drafts in (False, True))
    for steps in (plain, drafted):
        steps.submit("a", prompt_of(9), max_tokens=60)
        steps.drain()
    assert plain.answers == drafted.answers
    stats = drafted.scheduler.stats()
    assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens
    assert drafted.requests["a"].num_steps == 60 - stats.num_accepted_draft_tokens
    assert plain.requests["a"].num_steps == 60


class ManyDrafts:
    def propose(self, request: Request) -> Sequence[int]:
        return [1] * 100


def test_drafts_leave_each_running_request_a_page() -> None:
    config = roomy_config(1, num_pages=30, context_length=30, admission_headroom=0)
    scheduler = Scheduler(config, proposer=ManyDrafts())
    executor = FakeExecutor(config)
    for index in range(2):
        source = make_input(f"r{index}", prompt_of(10, index), max_tokens=20)
        scheduler.add(Request.from_input(source, arrival=0.0))
    batch = scheduler.schedule()
    assert batch is not None
    assert [row.num_drafts for row in batch.rows] == [0, 8]
    scheduler.update(batch, executor.run(batch))
    batch = scheduler.schedule()
    assert batch is not None
    # The first one took the page of its next token, and none for drafts; the second one had its pages.
    assert [row.num_drafts for row in batch.rows] == [0, 7]
    assert scheduler.stats().num_free_pages == 1
    scheduler.update(batch, executor.run(batch))
    scheduler.check_integrity()


def test_tokens_that_are_dropped_were_never_cached() -> None:
    """An executor that goes on behind the end: what came after it is neither output nor in the tree."""
    scheduler = Scheduler(roomy_config(1), proposer=ManyDrafts(), stop_token_ids=(EOS,))
    scheduler.add(Request.from_input(make_input("a", prompt_of(5), max_tokens=9), arrival=0.0))
    batch = scheduler.schedule()
    assert batch is not None
    assert batch.rows[0].num_drafts == 8
    (output,) = scheduler.update(batch, [RowResult([1, EOS, 3, 4, 5])])
    assert (output.token_ids, output.finish_reason, output.stop_token_id) == ([1, EOS], FinishReason.STOP, EOS)
    assert scheduler.stats().cache.num_cached_pages == 5 + 1
    scheduler.check_integrity()


def test_drafts_leave_half_of_the_spare_budget_to_prompts() -> None:
    config = roomy_config(4, max_tokens_per_step=16)
    scheduler = Scheduler(config, proposer=ManyDrafts())
    scheduler.add(Request.from_input(make_input("a", prompt_of(4), max_tokens=100), arrival=0.0))
    executor = FakeExecutor(config)
    num_drafts = []
    for _ in range(3):
        batch = scheduler.schedule()
        assert batch is not None
        num_drafts.append(batch.rows[0].num_drafts)
        scheduler.update(batch, executor.run(batch))
    assert num_drafts == [6, 15, 15]
    scheduler.add(Request.from_input(make_input("b", prompt_of(40, 1)), arrival=0.0))
    batch = scheduler.schedule()
    assert batch is not None
    assert [(row.num_drafts, len(row.token_ids)) for row in batch.rows] == [(7, 8), (0, 8)]
