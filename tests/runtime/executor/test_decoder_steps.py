"""The runner over a real decoder: whatever the steps look like, a request's tokens are the same."""

from typing import Any

import numpy as np
import pytest

from ramet.runtime.executor.model_runner import HeadApart, ModelRunner
from ramet.runtime.models.decoder import DecoderModel
from ramet.runtime.protocol import SamplingParams
from tests.runtime.executor.fakes import DrivenRequest, step
from tests.runtime.executor.tiny_decoder import CONFIG, decoder_runner, random_decoder

PAGE_SIZE = 8
MIXES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "logprobs": 3},
    {"top_p": 0.9, "frequency_penalty": 0.3},
    {"top_k": 20, "repetition_penalty": 1.1},
]


@pytest.fixture(scope="module", params=["none", "int8"])
def model(request: pytest.FixtureRequest) -> DecoderModel:
    return random_decoder(request.param)


def make_request(number: int, length: int = 45, **params: Any) -> DrivenRequest:
    rng = np.random.default_rng(number)
    return DrivenRequest(
        request_id=f"request {number}",
        history=rng.integers(0, CONFIG.vocab_size, length).tolist(),
        params=SamplingParams(**params),
        slot=number,
        pages=(rng.permutation(30) + 30 * number).tolist(),
        seed=number,
    )


def alone(model: DecoderModel, number: int, count: int, **params: Any) -> DrivenRequest:
    """The whole prompt in one step, then one token a step, with nothing beside it."""
    runner, request = decoder_runner(model, page_size=PAGE_SIZE), make_request(number, **params)
    for _ in range(count):
        step(runner, PAGE_SIZE, [request])
    return request


def logprobs_of(request: DrivenRequest) -> list[float]:
    return [entry.chosen.logprob for result in request.results for entry in result.logprobs or []]


@pytest.mark.parametrize("chunk", [1, 7, 8, 44])
@pytest.mark.parametrize("params", MIXES, ids=str)
def test_a_prompt_in_chunks(model: DecoderModel, params: dict[str, Any], chunk: int) -> None:
    runner, request = decoder_runner(model, page_size=PAGE_SIZE), make_request(0, **params)
    while len(request.output) < 8:
        step(runner, PAGE_SIZE, [request], max_tokens=chunk)
    expected = alone(model, 0, 8, **params)
    assert request.output == expected.output
    assert logprobs_of(request) == pytest.approx(logprobs_of(expected), abs=1e-4)


def test_requests_together_some_joining_later(model: DecoderModel) -> None:
    runner = decoder_runner(model, page_size=PAGE_SIZE)
    requests = [make_request(number, **params) for number, params in enumerate(MIXES)]
    for joined in range(1, 5):
        step(runner, PAGE_SIZE, requests[:joined], max_tokens=20)
    for _ in range(12):
        step(runner, PAGE_SIZE, requests, max_tokens=20)
    for number, (request, params) in enumerate(zip(requests, MIXES, strict=True)):
        assert len(request.output) >= 10
        assert request.output == alone(model, number, len(request.output), **params).output


@pytest.mark.parametrize("params", MIXES, ids=str)
def test_preempted_and_resumed(model: DecoderModel, params: dict[str, Any]) -> None:
    runner = decoder_runner(model, page_size=PAGE_SIZE)
    request, other = make_request(0, **params), make_request(1)
    for _ in range(5):
        step(runner, PAGE_SIZE, [request, other])
    request.preempt(slot=7, pages=list(range(300, 330)))
    for _ in range(8):
        step(runner, PAGE_SIZE, [request, other], max_tokens=17)
    assert len(request.output) >= 8
    assert request.output == alone(model, 0, len(request.output), **params).output


@pytest.mark.parametrize("params", MIXES, ids=str)
def test_drafts(model: DecoderModel, params: dict[str, Any]) -> None:
    plain = alone(model, 0, 24, **params).output
    runner, request = decoder_runner(model, page_size=PAGE_SIZE), make_request(0, **params)
    while len(request.output) < 18:
        done = len(request.output)
        drafts = plain[done : done + 4]
        if done % 2:
            drafts[2] = (drafts[2] + 1) % CONFIG.vocab_size
        step(runner, PAGE_SIZE, [request], drafts=drafts)
    assert request.output == plain[: len(request.output)]


def test_a_prefix_computed_by_another_row_of_the_same_step(model: DecoderModel) -> None:
    """Rows may read pages that another row writes in the same step."""
    runner = decoder_runner(model, page_size=PAGE_SIZE)
    first, second = make_request(0), make_request(0)
    second.request_id, second.slot = "second", 1
    # The first four pages are the first request's; the second computes only what is behind them.
    second.pages = first.pages[:4] + list(range(300, 326))
    second.num_computed_tokens = 32
    for _ in range(6):
        step(runner, PAGE_SIZE, [first, second])
    assert first.output == second.output == alone(model, 0, 6).output


class TestPromptLogprobs:
    def test_the_head_can_be_applied_piece_by_piece(self, model: DecoderModel) -> None:
        assert isinstance(model, HeadApart)

    def run(self, runner: ModelRunner, chunk: int) -> DrivenRequest:
        request = make_request(0, prompt_logprobs=3)
        while not request.output:
            step(runner, PAGE_SIZE, [make_request(1), request], max_tokens=chunk)
        return request

    @pytest.mark.parametrize("chunk", [1, 10, 45])
    @pytest.mark.parametrize("positions", [1, 7, 1000])
    def test_whole_or_piece_by_piece(self, model: DecoderModel, chunk: int, positions: int) -> None:
        whole = self.run(decoder_runner(model, page_size=PAGE_SIZE), 45).prompt_logprobs
        runner = decoder_runner(model, page_size=PAGE_SIZE, max_logit_elements=positions * CONFIG.vocab_size)
        found = self.run(runner, chunk).prompt_logprobs
        assert len(whole) == len(found) == 44
        for one, other in zip(whole, found, strict=True):
            assert one.chosen.token_id == other.chosen.token_id
            assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=1e-4)
            assert [top.logprob for top in one.top] == pytest.approx(
                [top.logprob for top in other.top], abs=1e-4
            )


def test_warmup_and_a_chunk_that_wants_no_logits(model: DecoderModel) -> None:
    runner = decoder_runner(model, page_size=PAGE_SIZE)
    runner.warmup(3)
    request = make_request(0)
    step(runner, PAGE_SIZE, [request], max_tokens=5)
    assert request.results[0].token_ids == []
    step(runner, PAGE_SIZE, [request])
    assert request.output == alone(model, 0, 1).output
