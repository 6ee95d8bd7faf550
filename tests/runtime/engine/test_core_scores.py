"""The core with requests that score continuations."""

from dataclasses import replace
from typing import Any

import pytest

from ramet.runtime.engine.config import EngineConfig
from ramet.runtime.engine.core import EngineCore
from ramet.runtime.engine.score_requests import SCORING
from ramet.runtime.protocol import (
    FinishReason,
    GenerateInput,
    InvalidRequestError,
    PromptTooLongError,
    TextOutput,
)
from ramet.runtime.scheduler.batch import RowResult, ScheduledBatch
from tests.runtime.engine.fake_engine import SpeakingExecutor
from tests.runtime.engine.speaking import build_speaking
from tests.runtime.engine.test_core import ask, run, text_of

TEXTS = ("yes", "yesterday", "no", "not at all", "maybe", "maybe not", "may")


def core_of(executor: SpeakingExecutor | None = None, **settings: Any) -> EngineCore:
    return build_speaking(EngineConfig(**settings), executor).core


def score(request_id: str, prompt: str, *texts: str) -> GenerateInput:
    continuations = [list(text.encode()) for text in texts or TEXTS]
    return GenerateInput(
        request_id=request_id, token_ids=list(prompt.encode()), params=SCORING, continuations=continuations
    )


def expected(*texts: str) -> list[list[float]]:
    return [[-0.5 - byte / 1000 for byte in text.encode()] for text in texts or TEXTS]


def test_the_scores_come_at_once_and_each_node_is_computed_once() -> None:
    executor = SpeakingExecutor()
    core = core_of(executor)
    (outputs,) = run(core, score("a", "Is it so? ")).values()
    (whole,) = outputs
    assert whole.scores == expected()
    assert (whole.finish_reason, whole.text, whole.token_ids) == (FinishReason.LENGTH, "", [])
    inner = {text[:length] for text in TEXTS for length in range(1, len(text))}
    assert executor.num_steps == 1
    assert executor.computed_tokens == len("Is it so? ") + len(inner)
    assert whole.stats is not None
    assert (whole.stats.num_prompt_tokens, whole.stats.num_cached_tokens) == (10 + len(inner), 0)
    # Again: all but the prompt's last token and the nodes, whose distributions are wanted.
    (outputs,) = run(core, score("b", "Is it so? ")).values()
    assert outputs[0].scores == expected()
    assert executor.computed_tokens == 2 * (10 + len(inner)) - 9
    assert outputs[0].stats is not None
    assert outputs[0].stats.num_cached_tokens == 9
    assert core.stats().finished_requests == 2


def test_options_of_one_token_cost_the_prompt_alone() -> None:
    executor = SpeakingExecutor()
    core = core_of(executor)
    (outputs,) = run(core, score("a", "x" * 20, "a", "b", "c")).values()
    assert outputs[0].scores == expected("a", "b", "c")
    assert executor.computed_tokens == 20
    assert core.stats().finished_requests == 1


@pytest.mark.parametrize("page_size", [1, 4])
def test_beside_others_in_a_small_pool(page_size: int) -> None:
    """Chunks, preemption, and parts that run one after the other."""
    core = core_of(
        page_size=page_size, kv_tokens=80, context_length=60, max_tokens_per_step=12, max_running_requests=3
    )
    requests = [score("a", "q" * 30), ask("b", "say:something else", max_tokens=30), score("c", "q" * 30 + "r")]
    got = run(core, *requests)
    assert [got[key][-1].scores for key in "ac"] == [expected(), expected()]
    assert text_of(got["b"]) == "something else"
    assert core.flush_cache() == 80 // page_size * page_size or core.stats().cached_pages == 0


@pytest.mark.parametrize("after", range(4))
def test_an_abort_ends_the_request_once_and_frees_all(after: int) -> None:
    core = core_of(max_tokens_per_step=6, kv_tokens=200, context_length=60)
    core.add(score("a", "q" * 12))
    for _ in range(after):
        assert core.step() == []
    (ended,) = core.abort("a")
    assert (ended.request_id, ended.finish_reason) == ("a", FinishReason.ABORT)
    assert core.abort("a") == []
    core.check_integrity()
    assert not core.has_work()
    stats = core.stats()
    assert (stats.aborted_requests, stats.running_requests, stats.waiting_requests) == (1, 0, 0)
    assert stats.finished_requests == 1


class Failing(SpeakingExecutor):
    """``fails``: the step raises, or a row of it fails, from the second step on."""

    def __init__(self, fails: str) -> None:
        super().__init__()
        self.fails = fails

    def run(self, batch: ScheduledBatch) -> list[RowResult]:
        results = super().run(batch)
        if self.num_steps > 1 and self.fails == "step":
            raise RuntimeError("the device is on fire")
        if self.num_steps > 1:
            results = [*results[:-1], replace(results[-1], token_ids=[], error="logits are not finite")]
        return results


@pytest.mark.parametrize(("fails", "message"), [("step", "on fire"), ("row", "not finite")])
def test_a_failure_ends_the_request_once_and_the_engine_goes_on(fails: str, message: str) -> None:
    executor = Failing(fails)
    core = core_of(executor, max_tokens_per_step=14)
    (outputs,) = run(core, score("a", "q" * 12)).values()
    (ended,) = outputs
    assert (ended.finish_reason, ended.scores) == (FinishReason.ERROR, None)
    assert message in str(ended.error)
    assert (core.stats().failed_requests, core.stats().finished_requests) == (1, 1)
    executor.fails, executor.num_steps = "", -1000
    (outputs,) = run(core, score("a", "q" * 12)).values()
    assert outputs[0].scores == expected()


def test_what_cannot_run_is_refused_and_leaves_nothing() -> None:
    core = core_of(context_length=30, kv_tokens=30)
    with pytest.raises(PromptTooLongError):
        core.add(score("a", "q" * 20, "short", "long" * 10))
    with pytest.raises(InvalidRequestError, match="token ids are 0 to"):
        core.add(
            GenerateInput(request_id="a", token_ids=[1], params=SCORING, continuations=[[2, 3], [2, 999, 4]])
        )
    core.check_integrity()
    assert not core.has_work()
    assert core.stats().finished_requests == 0
    outputs: list[TextOutput] = run(core, score("a", "q", "fits"))["a"]
    assert outputs[0].scores == expected("fits")
    core.add(score("b", "q"))
    with pytest.raises(InvalidRequestError, match="belongs to a running request"):
        core.add(score("b", "q"))
