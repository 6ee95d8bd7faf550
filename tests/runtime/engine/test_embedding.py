"""Embeddings against transformers' hidden states, and against the states of an engine without a model."""

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from ramet.runtime.engine import Engine, EngineConfig, EngineFace
from ramet.runtime.engine.embedding import normalized
from ramet.runtime.engine.loop import EngineLoop
from ramet.runtime.protocol import InvalidRequestError, PromptTooLongError, RequestFailedError
from tests.runtime.engine.fake_engine import HIDDEN_SIZE, state_at
from tests.runtime.engine.speaking import build_speaking, open_speaking
from tests.runtime.models.loading.tiny_folder import write_tokenizer

TEXTS = ["Hello world", "The capital of France is Paris, and that of Germany Berlin."]


@pytest.fixture(scope="module")
def speaking() -> Iterator[EngineFace]:
    with open_speaking(EngineConfig(max_tokens_per_step=8)) as face:
        yield face
        face.check_integrity()


def mean_of(token_ids: list[int]) -> list[float]:
    states = np.array([state_at(token_ids, position) for position in range(len(token_ids))], dtype=np.float32)
    total = np.zeros(HIDDEN_SIZE)
    for state in states:
        total += state
    mean: list[float] = (total / len(states)).astype(np.float32).tolist()
    return mean


def test_of_prompts_in_chunks_cached_and_together(speaking: EngineFace) -> None:
    """The mean needs every position, whatever is cached; the last one alone takes the prefix from there."""
    texts = ["a prompt of several chunks", "a prompt of several chunks and more", "short"]
    for _ in range(2):
        found = speaking.embed(texts, pooling="mean", normalize=False)
        assert [one.embedding for one in found] == [mean_of(list(text.encode())) for text in texts]
        assert [one.num_cached_tokens for one in found] == [0, 0, 0]
    last = speaking.embed(texts[1], normalize=False)
    assert (
        last[0].embedding == np.array(state_at(list(texts[1].encode()), len(texts[1]) - 1), np.float32).tolist()
    )
    assert last[0].num_cached_tokens > 0
    assert last[0].token_ids == list(texts[1].encode())
    assert speaking.embed([list(texts[1].encode())], normalize=False)[0].embedding == last[0].embedding


def test_awaited_and_normalised(speaking: EngineFace) -> None:
    (plain,) = speaking.embed("a text", normalize=False)
    (found,) = asyncio.run(speaking.aembed(["a text"]))
    assert found.embedding == normalized(plain.embedding)
    assert math.isclose(math.fsum(value * value for value in found.embedding), 1.0, rel_tol=1e-12)
    assert normalized([0.0, 0.0]) == [0.0, 0.0]


def test_what_is_wrong_is_named(speaking: EngineFace) -> None:
    with pytest.raises(InvalidRequestError, match="pooling is 'max'"):
        speaking.embed("a", pooling="max")
    with pytest.raises(PromptTooLongError):
        speaking.embed(["a" * 1000])
    with pytest.raises(RequestFailedError, match="no token is allowed"):
        speaking.embed(["fine", "row error"])
    with pytest.raises(InvalidRequestError, match="prompt 1"):
        speaking.embed(["fine", ""])
    built = build_speaking()
    info = msgspec.structs.replace(built.info, embedding_size=0)
    with (
        EngineFace(EngineLoop(built.core, info), built.tokenizer) as without,
        pytest.raises(InvalidRequestError, match="gives no embeddings"),
    ):
        without.embed("a")


def reference(model: object, token_ids: list[int]) -> torch.Tensor:
    """[num_tokens, hidden_size] transformers' states behind the last norm."""
    with torch.inference_mode():
        out = model(input_ids=torch.tensor([token_ids]), output_hidden_states=True)  # type: ignore[operator]
    states: torch.Tensor = out.hidden_states[-1][0]
    return states.float()


def agrees(engine: EngineFace, model: object, prompts: list[list[int]], tolerance: float) -> None:
    for pooling in ("last", "mean"):
        found = engine.embed(prompts, pooling=pooling, normalize=False)
        for token_ids, one in zip(prompts, found, strict=True):
            states = reference(model, token_ids)
            expected = states[-1] if pooling == "last" else states.mean(dim=0)
            difference = (torch.tensor(one.embedding) - expected).norm() / expected.norm()
            assert difference < tolerance, (pooling, float(difference))


def test_a_tiny_random_model_agrees_with_transformers(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, 300)
    with Engine(
        str(tmp_path), quantization="none", dtype="float32", kv_tokens=256, max_tokens_per_step=16
    ) as engine:
        assert engine.info.embedding_size == 32
        agrees(engine, model, [[5, 6, 7], list(range(3, 60)), [9]], 1e-4)
        engine.check_integrity()
