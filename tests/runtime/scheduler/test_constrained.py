"""Requests that wait for a grammar, sit out for a mask, and draft what their grammar forces."""

from random import Random

import pytest

from ramet.runtime.protocol import (
    FinishReason,
    GrammarSpec,
    PromptTooLongError,
    Regex,
    RequestFailedError,
    UnsupportedConstraintError,
)
from ramet.runtime.scheduler import Request, RequestStatus
from tests.runtime.scheduler.fakes import TurnMatcher, make_input
from tests.runtime.scheduler.simulation import EOS, VOCAB_SIZE, Steps, prompt_of, roomy_config

GRAMMAR: GrammarSpec = Regex("a")


def compiling(steps: Steps, request_id: str, length: int = 5) -> Request:
    request = Request.from_input(
        make_input(request_id, prompt_of(length), max_tokens=8, grammar=GRAMMAR), arrival=steps.clock()
    )
    steps.scheduler.add(request, compiling=True)
    return request


class TestWaitingForTheGrammar:
    def test_it_holds_nothing_and_nobody(self) -> None:
        steps = Steps(roomy_config(4))
        request = compiling(steps, "a")
        assert request.status is RequestStatus.GRAMMAR
        assert steps.scheduler.has_work
        assert steps.scheduler.schedule() is None
        steps.submit("free", prompt_of(6, 1), max_tokens=2)
        stats = steps.scheduler.stats()
        assert (stats.num_compiling, stats.num_waiting, stats.num_running) == (1, 1, 0)
        while "free" not in steps.endings:
            steps.step()
        assert request.status is RequestStatus.GRAMMAR
        steps.check()

    def test_once_there_it_waits_to_be_admitted(self) -> None:
        steps = Steps(roomy_config(4))
        request = compiling(steps, "a")
        steps.clock.advance(3.0)
        steps.scheduler.supply("a", TurnMatcher(VOCAB_SIZE, EOS, length=2))
        assert request.status is RequestStatus.WAITING
        steps.check()
        outputs: list[int] = []
        while steps.scheduler.has_work:
            batch = steps.scheduler.schedule()
            assert batch is not None
            for output in steps.scheduler.update(batch, steps.executor.run(batch)):
                outputs += output.token_ids
        assert [token_id % 3 for token_id in outputs[:2]] == [0, 1]
        assert outputs[2:] == [EOS]
        assert request.stats().grammar_time == 3.0

    def test_it_may_be_refused_aborted_and_finished(self) -> None:
        steps = Steps(roomy_config(4))
        for name in ("refused", "aborted", "finished"):
            compiling(steps, name)
        output = steps.scheduler.fail("refused", UnsupportedConstraintError("no", field="grammar"))
        assert (output.finish_reason, output.error, output.error_kind) == (
            FinishReason.ERROR,
            "no",
            "UnsupportedConstraintError",
        )
        aborted = steps.scheduler.abort("aborted")
        assert aborted is not None
        assert aborted.finish_reason is FinishReason.ABORT
        assert steps.scheduler.finish("finished", FinishReason.STOP)
        assert not steps.scheduler.has_work
        steps.check()
        with pytest.raises(KeyError):
            steps.scheduler.supply("refused", TurnMatcher(VOCAB_SIZE, EOS, length=2))
        with pytest.raises(KeyError):
            steps.scheduler.fail("refused", RequestFailedError("again"))

    def test_what_is_wrong_with_it_is_said_first(self) -> None:
        steps = Steps(roomy_config(4))
        with pytest.raises(PromptTooLongError):
            compiling(steps, "a", length=5000)
        assert not steps.scheduler.has_work


class TestLateMasks:
    @pytest.mark.parametrize("page_size", [1, 4])
    @pytest.mark.parametrize("length", [7, 8])
    def test_a_row_comes_again_and_the_answer_is_the_same(self, page_size: int, length: int) -> None:
        """A prompt of 8 tokens ends with a page: that page is the tree's, and not written again."""
        steps = Steps(roomy_config(page_size), late=True)
        for index in range(6):
            matcher = TurnMatcher(VOCAB_SIZE, EOS, length=9)
            steps.submit(f"r{index}", prompt_of(length), max_tokens=20, matcher=matcher)
        steps.drain()
        stats = steps.scheduler.stats()
        assert stats.num_late_masks == steps.executor.num_late > 5
        assert sum(request.num_late_masks for request in steps.requests.values()) == stats.num_late_masks

    def test_with_prompt_logprobs_and_preemption(self) -> None:
        rng = Random(1)
        steps = Steps(roomy_config(4, num_pages=24, admission_headroom=0), late=True)
        for index in range(12):
            steps.submit(
                f"r{index}",
                prompt_of(rng.choice((15, 16, 17)), index % 2),
                max_tokens=30,
                prompt_logprobs=0,
                logprobs=0,
                matcher=TurnMatcher(VOCAB_SIZE, EOS, length=25),
            )
        steps.drain()
        assert steps.scheduler.stats().num_preemptions > 0


class TestForcedDrafts:
    def test_tokens_that_are_forced_take_one_step(self) -> None:
        steps = Steps(roomy_config(4))
        request = steps.submit("a", prompt_of(5), max_tokens=30, matcher=ForcingMatcher(12))
        steps.drain()
        stats = request.stats()
        assert steps.answers["a"] == [*[3, 4, 5] * 4, EOS]
        assert (stats.num_output_tokens, stats.num_sampling_steps) == (13, 1)
        assert (stats.num_draft_tokens, stats.num_accepted_draft_tokens) == (12, 12)
        assert stats.forwards_per_token == 1 / 13

    def test_the_budget_bounds_them(self) -> None:
        steps = Steps(roomy_config(4, max_tokens_per_step=8))
        request = steps.submit("a", prompt_of(5), max_tokens=30, matcher=ForcingMatcher(12))
        steps.drain()
        assert steps.answers["a"] == [*[3, 4, 5] * 4, EOS]
        assert 1 < request.stats().num_sampling_steps < 13

    def test_max_tokens_cuts_them(self) -> None:
        steps = Steps(roomy_config(4))
        steps.submit("a", prompt_of(5), max_tokens=6, matcher=ForcingMatcher(12))
        steps.drain()
        assert steps.answers["a"] == [3, 4, 5] * 2
        assert steps.endings["a"] is FinishReason.LENGTH


class ForcingMatcher(TurnMatcher):
    """Only 3, 4, 5, 3, 4, ... and then the stop token."""

    def __init__(self, length: int) -> None:
        super().__init__(VOCAB_SIZE, EOS, length=length)

    def _allows(self, token_id: int) -> bool:
        place = len(self.accepted)
        return token_id == (EOS if place >= self.length else 3 + place % 3)

    def forced_tokens(self) -> list[int]:
        rest = [3 + place % 3 for place in range(len(self.accepted), self.length)]
        return [] if self.is_terminated() else [*rest, EOS]

    def fork(self) -> "ForcingMatcher":
        other = ForcingMatcher(self.length)
        other.accepted = self.accepted[:]
        return other
