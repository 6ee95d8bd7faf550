"""The runner over a model whose logits are a hash of the history: one wrong page or position changes the
tokens.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ramet.runtime.executor.model_runner import HeadApart, ModelRunner, RunnerConfig
from ramet.runtime.executor.sampler import NOT_FINITE
from ramet.runtime.protocol import SamplingParams, TokenLogprobs
from ramet.runtime.scheduler.batch import ScheduledBatch, Targets
from tests.runtime.executor import sampling_oracle
from tests.runtime.executor.fakes import DrivenRequest, HashAttention, HashModel, HeadedHashModel, hashes, step
from tests.runtime.executor.rows import decode_row

VOCAB_SIZE = 50
CPU = torch.device("cpu")


def make_runner(
    model: HashModel | None = None, page_size: int = 4, max_logit_elements: int = 1 << 20
) -> ModelRunner:
    config = RunnerConfig(
        max_running_requests=16,
        max_tokens_per_request=200,
        page_size=page_size,
        max_logit_elements=max_logit_elements,
    )
    return ModelRunner(model or HashModel(VOCAB_SIZE), HashAttention(800, page_size), config, CPU)


def make_request(number: int = 0, length: int = 17, **params: Any) -> DrivenRequest:
    rng = np.random.default_rng(number)
    return DrivenRequest(
        request_id=f"request {number}",
        history=rng.integers(0, VOCAB_SIZE, length).tolist(),
        params=SamplingParams(**params),
        slot=number,
        pages=rng.permutation(50).astype(int).tolist()
        if number == 0
        else list(range(number * 50, number * 50 + 50)),
        seed=number,
    )


def expected_output(request: DrivenRequest, count: int) -> list[int]:
    """Plain decoding by the oracle, from the prompt alone."""
    prompt, output = request.history[: request.num_prompt_tokens], list[int]()
    for _ in range(count):
        logits = np.random.default_rng(hashes(prompt + output)[-1]).standard_normal(VOCAB_SIZE) * 3
        row = replace(decode_row(prompt, output, seed=request.seed), params=request.params)
        output.append(sampling_oracle.token(logits.astype(np.float32).astype(np.float64), row))
    return output


MIXES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.3},
    {"top_p": 0.8, "frequency_penalty": 0.5},
    {"top_k": 5, "repetition_penalty": 1.2},
    {"min_p": 0.1, "presence_penalty": 1.0, "logit_bias": {3: 2.0}},
]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_tokens_are_those_of_the_oracle_however_the_prompt_is_cut(page_size: int, chunk: int) -> None:
    runner = make_runner(page_size=page_size)
    request = make_request(top_p=0.9)
    while len(request.output) < 8:
        step(runner, page_size, [request], max_tokens=chunk)
    assert request.output == expected_output(request, 8)


def test_a_row_in_a_batch_has_the_tokens_it_has_alone() -> None:
    alone, together = [], make_runner()
    for number, params in enumerate(MIXES):
        request = make_request(number, **params)
        runner = make_runner()
        for _ in range(10):
            step(runner, 4, [request])
        alone.append(request.output)
    requests = [make_request(number, **params) for number, params in enumerate(MIXES)]
    step(together, 4, requests[:2])
    for _ in range(12):
        step(together, 4, requests, max_tokens=6)
    for request, output in zip(requests, alone, strict=True):
        assert request.output[: len(output)] == output[: len(request.output)]
        assert len(request.output) >= 8
        assert output == expected_output(request, 10)


@pytest.mark.parametrize("params", MIXES, ids=str)
def test_preempted_and_resumed(params: dict[str, Any]) -> None:
    runner = make_runner()
    request, other = make_request(0, **params), make_request(1, **params)
    for _ in range(4):
        step(runner, 4, [request, other])
    # Another request takes the slot, under the same name too.
    slot = request.slot
    request.preempt(slot=5, pages=list(range(700, 750)))
    stranger = make_request(2, **params)
    stranger.slot, stranger.request_id = slot, request.request_id
    for _ in range(4):
        step(runner, 4, [stranger, other])
    for _ in range(6):
        step(runner, 4, [request, stranger, other], max_tokens=9)
    for driven in (request, other, stranger):
        assert driven.output == expected_output(driven, len(driven.output))
        assert len(driven.output) >= 6


@pytest.mark.parametrize("params", MIXES, ids=str)
def test_drafts_change_no_token(params: dict[str, Any]) -> None:
    request = make_request(0, **params)
    plain = expected_output(request, 30)
    runner, rng = make_runner(), np.random.default_rng(1)
    steps = 0
    while len(request.output) < 25:
        done = len(request.output)
        # Right ones, then perhaps a wrong one among them.
        drafts = plain[done : done + int(rng.integers(0, 5))]
        if drafts and rng.random() < 0.5:
            drafts[int(rng.integers(len(drafts)))] = int(rng.integers(VOCAB_SIZE))
        step(runner, 4, [request], drafts=drafts)
        steps += 1
    assert request.output == plain[: len(request.output)]
    assert steps < 20


class TestPromptLogprobs:
    def expected(self, request: DrivenRequest) -> list[float]:
        prompt = request.history[: request.num_prompt_tokens]
        out = []
        for position in range(max(1, request.params.prompt_logprobs_start), len(prompt)):
            logits = np.random.default_rng(hashes(prompt[:position])[-1]).standard_normal(VOCAB_SIZE) * 3
            out.append(float(sampling_oracle.logprobs(logits)[prompt[position]]))
        return out

    def run(self, runner: ModelRunner, chunk: int, **params: Any) -> tuple[DrivenRequest, list[TokenLogprobs]]:
        request = make_request(0, **params)
        bystander = make_request(1)
        while len(request.output) < 3:
            step(runner, 4, [bystander, request], max_tokens=chunk)
        return request, request.prompt_logprobs

    @pytest.mark.parametrize("chunk", [1, 4, 7, 100])
    @pytest.mark.parametrize("start", [0, 1, 9, 16, 17, 50])
    def test_every_position_once_however_the_prompt_is_cut(self, chunk: int, start: int) -> None:
        request, found = self.run(make_runner(), chunk, prompt_logprobs=2, prompt_logprobs_start=start)
        assert [entry.chosen.logprob for entry in found] == pytest.approx(self.expected(request), abs=1e-5)
        assert [entry.chosen.token_id for entry in found] == request.history[max(1, start) : 17]
        assert all(len(entry.top) == 2 for entry in found)

    @pytest.mark.parametrize(
        "model", [HashModel(VOCAB_SIZE), HeadedHashModel(VOCAB_SIZE)], ids=["whole", "headed"]
    )
    @pytest.mark.parametrize("positions", [1, 3, 16])
    def test_few_logits_in_memory_at_a_time(self, model: HashModel, positions: int) -> None:
        _, whole = self.run(make_runner(), 100, prompt_logprobs=2)
        model.num_forwards = model.most_logits = 0
        runner = make_runner(model, max_logit_elements=positions * VOCAB_SIZE)
        request, found = self.run(runner, 100, prompt_logprobs=2)
        assert found == whole
        assert request.output == expected_output(request, 3)
        assert model.most_logits <= positions
        if isinstance(model, HeadApart):
            assert model.num_forwards == 3

    def test_they_are_the_models_own_distribution(self) -> None:
        _, plain = self.run(make_runner(), 100, prompt_logprobs=0)
        _, edited = self.run(
            make_runner(), 100, prompt_logprobs=0, logit_bias={3: 50.0}, repetition_penalty=2.0, temperature=0.1
        )
        assert plain == edited

    def test_none_where_none_are_asked_for(self) -> None:
        request, _ = self.run(make_runner(), 100)
        assert all(result.prompt_logprobs is None for result in request.results)

    def test_rows_behind_the_prompt_have_none_to_give(self) -> None:
        request, _ = self.run(make_runner(), 100, prompt_logprobs=1)
        assert [len(result.prompt_logprobs or []) for result in request.results] == [16, 0, 0]


class TestTargets:
    TARGETS = Targets(5, ((3,), (), tuple(range(VOCAB_SIZE)), *[(1, 2, 2)] * 9))
    """Up to the last position of the prompt."""

    def run(self, runner: ModelRunner, chunk: int, **params: Any) -> DrivenRequest:
        request, bystander = make_request(0, **params), make_request(1)
        request.targets = self.TARGETS
        while not request.output:
            step(runner, 4, [bystander, request], max_tokens=chunk)
        return request

    @pytest.mark.parametrize("chunk", [1, 4, 7, 100])
    @pytest.mark.parametrize("positions", [1, 3, 1 << 10])
    def test_each_token_behind_its_position_however_the_prompt_is_cut(self, chunk: int, positions: int) -> None:
        runner = make_runner(max_logit_elements=positions * VOCAB_SIZE)
        request = self.run(runner, chunk, prompt_logprobs=0, temperature=0.3, logit_bias={3: 9.0})
        assert request.output == expected_output(request, 1)
        assert len(request.target_logprobs) == len(self.TARGETS.token_ids)
        for position, token_ids, found in zip(
            range(5, 17), self.TARGETS.token_ids, request.target_logprobs, strict=True
        ):
            logits = np.random.default_rng(hashes(request.history[: position + 1])[-1]).standard_normal(
                VOCAB_SIZE
            )
            expected = sampling_oracle.logprobs(logits * 3)[list(token_ids)]
            assert found == pytest.approx(expected.tolist(), abs=1e-5)
        # The prompt's own tokens have the bits that prompt_logprobs have.
        entry = request.prompt_logprobs[7]
        assert request.target_logprobs[2][entry.chosen.token_id] == entry.chosen.logprob

    def test_a_position_that_is_not_finite_fails_its_row(self) -> None:
        runner = make_runner(HashModel(VOCAB_SIZE, broken=[7]))
        requests = [make_request(number, length=5) for number in range(3)]
        for request in requests:
            request.history[:] = [1, 2, 3, 4, 5]
            request.targets = Targets(2, ((0, 1), (2,)))
        requests[1].history[2] = 7
        step(runner, 4, requests)
        failed = requests[1].results[0]
        assert (failed.token_ids, failed.error, failed.target_logprobs) == ([], NOT_FINITE, None)
        for request in (requests[0], requests[2]):
            assert [len(one) for one in request.target_logprobs] == [2, 1]


class TestErrors:
    def test_a_row_that_is_not_finite_fails_alone(self) -> None:
        runner = make_runner(HashModel(VOCAB_SIZE, broken=[7]))
        requests = [make_request(number, length=5) for number in range(3)]
        for request in requests:
            request.history[:] = [token if token != 7 else 8 for token in request.history]
        requests[1].history[-1] = 7
        step(runner, 4, requests)
        assert [request.results[0].error for request in requests] == [None, NOT_FINITE, None]
        assert [len(request.results[0].token_ids) for request in requests] == [1, 0, 1]

    @pytest.mark.parametrize("max_logit_elements", [VOCAB_SIZE, 1 << 20])
    def test_a_prompt_position_that_is_not_finite_fails_its_row(self, max_logit_elements: int) -> None:
        runner = make_runner(HashModel(VOCAB_SIZE, broken=[7]), max_logit_elements=max_logit_elements)
        requests = [make_request(number, length=5, prompt_logprobs=2) for number in range(3)]
        for request in requests:
            request.history[:] = [1, 2, 3, 4, 5]
        requests[1].history[2] = 7
        step(runner, 4, requests)
        failed = requests[1].results[0]
        assert (failed.token_ids, failed.error, failed.prompt_logprobs) == ([], NOT_FINITE, None)
        for request in (requests[0], requests[2]):
            assert request.results[0].error is None
            assert len(request.prompt_logprobs) == 4

    def test_no_rows(self) -> None:
        assert make_runner().run(ScheduledBatch(step_id=0, rows=())) == []


@pytest.mark.parametrize("num_pages", [1, 3, 60])
def test_warmup_leaves_no_trace_in_tokens(num_pages: int) -> None:
    runner = make_runner()
    runner.warmup(num_pages)
    request = make_request(0, top_p=0.9, frequency_penalty=0.5)
    for _ in range(6):
        step(runner, 4, [request])
    assert request.output == expected_output(request, 6)
