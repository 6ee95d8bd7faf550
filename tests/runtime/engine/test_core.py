"""The core with a real scheduler and cache, and an executor that speaks."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.engine.config import EngineConfig
from ramet.runtime.engine.core import EngineCore
from ramet.runtime.protocol import (
    Choice,
    FinishReason,
    GenerateInput,
    InvalidRequestError,
    PromptTooLongError,
    Regex,
    SamplingParams,
    TextOutput,
    UnsupportedConstraintError,
)
from ramet.runtime.scheduler.batch import RowResult, ScheduledBatch
from ramet.runtime.tokenizer.byte_tokenizer import EOS_ID
from tests.runtime.engine.fake_engine import SpeakingExecutor, answer_to
from tests.runtime.engine.speaking import build_speaking


def core_of(executor: SpeakingExecutor | None = None, **settings: Any) -> EngineCore:
    return build_speaking(EngineConfig(**settings), executor).core


def ask(request_id: str, prompt: str, **params: Any) -> GenerateInput:
    params = {"temperature": 0.0, "max_tokens": 20, **params}
    return GenerateInput(
        request_id=request_id, token_ids=list(prompt.encode()), params=SamplingParams(**params)
    )


def steps(core: EngineCore) -> Iterator[list[TextOutput]]:
    while core.has_work():
        yield core.step()
        core.check_integrity()


def run(core: EngineCore, *requests: GenerateInput) -> dict[str, list[TextOutput]]:
    """Everything that came for each request."""
    got: dict[str, list[TextOutput]] = {request.request_id: [] for request in requests}
    for request in requests:
        core.add(request)
    for outputs in steps(core):
        for output in outputs:
            got[output.request_id].append(output)
    return got


def text_of(outputs: list[TextOutput]) -> str:
    return "".join(output.text for output in outputs)


def test_an_answer_ends_with_the_models_stop_token() -> None:
    (outputs,) = run(core_of(), ask("a", "say:héllo")).values()
    assert text_of(outputs) == "héllo"
    assert [token for output in outputs for token in output.token_ids] == [*"héllo".encode(), EOS_ID]
    last = outputs[-1]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, EOS_ID)
    assert last.stats is not None
    assert (last.stats.num_prompt_tokens, last.stats.num_output_tokens) == (10, 7)
    assert all(output.stats is None for output in outputs[:-1])


def test_a_stop_string_ends_the_request_in_the_scheduler_too() -> None:
    core = core_of()
    (outputs,) = run(core, ask("a", "say:one STOP two", stop=("STOP",), max_tokens=100)).values()
    assert text_of(outputs) == "one "
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (FinishReason.STOP, "STOP")
    assert outputs[-1].stats is not None
    assert outputs[-1].stats.num_output_tokens == len("one STOP")
    assert outputs[-1].stats.e2e is not None
    assert core.stats().finished_requests == 1
    assert not core.has_work()


def test_max_tokens_and_min_tokens() -> None:
    (outputs,) = run(core_of(), ask("a", "x", max_tokens=5)).values()
    assert (text_of(outputs), outputs[-1].finish_reason) == (answer_to("x", 5), FinishReason.LENGTH)
    (outputs,) = run(core_of(), ask("a", "say:ab", min_tokens=6)).values()
    assert text_of(outputs).startswith("ab")
    assert outputs[-1].stats is not None
    assert outputs[-1].stats.num_output_tokens >= 6


def test_a_choice_is_kept_to() -> None:
    (outputs,) = run(core_of(), ask("a", "x", grammar=Choice(("yes", "no")))).values()
    assert text_of(outputs) in ("yes", "no")
    assert outputs[-1].finish_reason is FinishReason.STOP


def test_the_same_prompt_twice_comes_from_the_cache_with_the_same_text() -> None:
    core = core_of()
    prompt = "a prompt of some length"
    first = run(core, ask("a", prompt))["a"]
    second = run(core, ask("b", prompt))["b"]
    assert text_of(first) == text_of(second) == answer_to(prompt, 20)
    assert first[-1].stats is not None
    assert second[-1].stats is not None
    assert first[-1].stats.num_cached_tokens == 0
    assert second[-1].stats.num_cached_tokens == 22
    assert next(one.parent for one in core.cache_outline("").nodes) == -1
    assert core.cache_outline("nobody").nodes == []
    assert core.flush_cache() > 0
    third = run(core, ask("c", prompt))["c"]
    assert third[-1].stats is not None
    assert third[-1].stats.num_cached_tokens == 0


def test_prompts_that_arrive_together_are_computed_once() -> None:
    executor = SpeakingExecutor()
    core = core_of(executor)
    prompt = "p" * 41
    got = run(core, *(ask(str(i), prompt, max_tokens=1) for i in range(8)))
    assert {text_of(outputs) for outputs in got.values()} == {answer_to(prompt, 1)}
    assert executor.computed_tokens == 41 + 7


def test_logprobs_of_prompt_and_output_come_once_and_complete() -> None:
    core = core_of()
    for name in ("cold", "cached"):
        outputs = run(core, ask(name, "some prompt", logprobs=0, prompt_logprobs=0, max_tokens=3))[name]
        prompt = [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]
        assert len(prompt) == 1
        assert [None if e is None else e.chosen.token_id for e in prompt[0]] == [None, *b"ome prompt"]
        entries = [entry for output in outputs for entry in output.logprobs or ()]
        assert [e.chosen.token_id for e in entries] == [t for output in outputs for t in output.token_ids]


def test_seeds_decide_and_batches_do_not() -> None:
    def sampled(*seeds: int) -> list[str]:
        asks = [ask(str(i), "x", temperature=1.0, seed=seed) for i, seed in enumerate(seeds)]
        return [text_of(outputs) for outputs in run(core_of(), *asks).values()]

    assert sampled(1, 2, 3) == [sampled(seed)[0] for seed in (1, 2, 3)]
    assert len(set(sampled(1, 2, 3))) == 3


def test_without_a_seed_the_engines_seed_decides() -> None:
    def sampled(seed: int | None) -> list[str]:
        asks = [ask(str(i), "x", temperature=1.0) for i in range(3)]
        return [text_of(outputs) for outputs in run(core_of(seed=seed), *asks).values()]

    assert sampled(5) == sampled(5)
    assert sampled(5) != sampled(6)
    assert sampled(None) != sampled(None)
    assert len(set(sampled(5))) == 3


def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on() -> None:
    core = core_of()
    got = run(core, ask("a", "boom"), ask("b", "say:beside"))
    for outputs in got.values():
        assert outputs[-1].finish_reason is FinishReason.ERROR
        assert outputs[-1].error == "the step failed: RuntimeError: the device is on fire"
        assert outputs[-1].stats is not None
    assert text_of(got["b"]) == "bes"
    assert text_of(run(core, ask("c", "say:later"))["c"]) == "later"
    assert (core.stats().failed_requests, core.stats().finished_requests) == (2, 3)


def test_a_failing_step_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    run(core_of(), ask("a", "boom"))
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RuntimeError)


def test_a_failing_row_ends_its_request_alone() -> None:
    got = run(core_of(), ask("a", "row error"), ask("b", "say:fine"))
    assert (got["a"][-1].finish_reason, got["a"][-1].error) == (FinishReason.ERROR, "no token is allowed here")
    assert text_of(got["b"]) == "fine"


def test_results_that_do_not_fit_the_batch_fail_it() -> None:
    class Forgetful(SpeakingExecutor):
        def run(self, batch: ScheduledBatch) -> list[RowResult]:
            return []

    outputs = run(core_of(Forgetful()), ask("a", "x"))["a"]
    assert outputs[-1].finish_reason is FinishReason.ERROR


@pytest.mark.parametrize("after", range(8))
def test_an_abort_at_every_moment_ends_the_request_and_frees_all(after: int) -> None:
    core = core_of(max_tokens_per_step=4)
    core.add(ask("a", "say:a prompt of several steps"))
    core.add(ask("b", "say:other"))
    for _ in range(after):
        core.step()
    (output,) = core.abort("a")
    assert (output.finish_reason, output.stats is not None) == (FinishReason.ABORT, True)
    core.check_integrity()
    assert core.abort("a") == []
    assert core.abort("unknown") == []
    ended = [output for outputs in steps(core) for output in outputs if output.finish_reason]
    assert [output.request_id for output in ended] == ["b"]
    assert core.stats().aborted_requests == 1
    stats = core.stats()
    assert stats.free_pages + stats.cached_pages == stats.total_pages


def test_an_aborted_request_leaves_its_prefix_in_the_cache() -> None:
    core = core_of()
    prompt = "a prompt that is worth keeping"
    core.add(ask("a", prompt))
    for _ in range(4):
        core.step()
    core.abort("a")
    outputs = run(core, ask("b", prompt))["b"]
    assert outputs[-1].stats is not None
    assert outputs[-1].stats.num_cached_tokens >= 28


@pytest.mark.parametrize(
    ("prompt", "params", "kind", "message"),
    [
        ("x" * 400, {}, PromptTooLongError, "400 tokens"),
        ("x", {"max_tokens": 500}, PromptTooLongError, "max_tokens"),
        ("x", {"n": 2}, InvalidRequestError, "n is 2"),
        ("x", {"grammar": Regex("a+")}, UnsupportedConstraintError, "kind Regex"),
        ("x", {"stop_regex": ("a(?=b)",)}, InvalidRequestError, "lookaround"),
        ("x", {"stop_token_ids": (1000,)}, InvalidRequestError, "stop_token_ids"),
    ],
)
def test_what_cannot_run_is_refused_and_leaves_nothing(
    prompt: str, params: dict[str, Any], kind: type[Exception], message: str
) -> None:
    core = core_of()
    with pytest.raises(kind, match=message):
        core.add(ask("a", prompt, **params))
    assert not core.has_work()
    core.check_integrity()


def test_an_id_in_use_is_refused_and_its_owner_goes_on() -> None:
    core = core_of()
    core.add(ask("a", "say:one"))
    with pytest.raises(InvalidRequestError, match="belongs to a running request"):
        core.add(ask("a", "say:two"))
    assert text_of([output for outputs in steps(core) for output in outputs]) == "one"


def test_nothing_to_do_is_no_step() -> None:
    core = core_of()
    assert core.step() == []
    assert core.stats().steps == 0


def test_a_small_pool_preempts_and_the_texts_stay_the_same() -> None:
    core = core_of(kv_tokens=200, page_size=1)
    prompts = [f"prompt {i} " * 2 for i in range(6)]
    got = run(core, *(ask(prompt, prompt, max_tokens=40) for prompt in prompts))
    assert core.stats().preemptions > 0
    assert {prompt: text_of(outputs) for prompt, outputs in got.items()} == {
        prompt: answer_to(prompt, 40) for prompt in prompts
    }


@given(
    prompts=st.lists(st.text(alphabet="ab", min_size=1, max_size=30), min_size=1, max_size=12),
    budget=st.integers(1, 40),
    page_size=st.sampled_from([1, 2, 8]),
    running=st.integers(1, 5),
    prefix_cache=st.booleans(),
)
def test_texts_do_not_depend_on_how_they_are_computed(
    prompts: list[str], budget: int, page_size: int, running: int, prefix_cache: bool
) -> None:
    core = core_of(
        max_tokens_per_step=max(budget, running),
        page_size=page_size,
        max_running_requests=running,
        kv_tokens=64,
        enable_prefix_cache=prefix_cache,
    )
    got = run(core, *(ask(str(i), prompt, max_tokens=6) for i, prompt in enumerate(prompts)))
    assert [text_of(outputs) for outputs in got.values()] == [answer_to(prompt, 6) for prompt in prompts]
    stats = core.stats()
    assert stats.free_pages + stats.cached_pages == stats.total_pages
    assert stats.finished_requests == len(prompts)
    assert stats.output_tokens == 6 * len(prompts)
    assert stats.prompt_tokens == sum(len(prompt) for prompt in prompts)
