from typing import TYPE_CHECKING

import pytest
import torch
from msgspec.structs import replace

from ramet.runtime.models.dense_attention import DenseSequence, dense_batch
from ramet.runtime.models.prepare import prepare_weights
from ramet.runtime.models.registry import build_model, support_of
from ramet.runtime.protocol import ModelLoadError, UnsupportedModelError

if TYPE_CHECKING:
    from tests.runtime.models.conftest import MakeTiny

CPU = torch.device("cpu")


def test_support_of_a_config() -> None:
    assert support_of({"architectures": ["Qwen3ForCausalLM"]}) == "implemented"
    assert support_of({"architectures": ["PhiForCausalLM"]}) == "transformers"
    multimodal = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {"model_type": "gemma3_text"},
    }
    assert support_of(multimodal) == "implemented"
    with pytest.raises(ModelLoadError, match="names no architecture"):
        support_of({"hidden_size": 64})


def test_builds_what_is_implemented(make_tiny: "MakeTiny") -> None:
    tiny = make_tiny("LlamaForCausalLM", {})
    weights = prepare_weights(tiny.config, tiny.tensors, quantization="none", dtype=torch.float32)
    model = build_model(tiny.config, weights, CPU, torch.float32)
    with torch.inference_mode():
        logits = model.forward(dense_batch([(DenseSequence(), [5, 6, 7])], CPU))
    assert model.config is tiny.config
    assert torch.allclose(logits, tiny.expected([5, 6, 7]), atol=1e-4)
    with pytest.raises(UnsupportedModelError, match="architecture 'PhiForCausalLM' is not implemented"):
        build_model(replace(tiny.config, architecture="PhiForCausalLM"), weights, CPU, torch.float32)
