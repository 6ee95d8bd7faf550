"""Tiny random models of transformers' own code, made once a session."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.decoder import DecoderModel
from ramet.runtime.models.hf_config import config_from_hf
from ramet.runtime.models.prepare import Quantization, prepare_weights

SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}


@dataclass(frozen=True)
class TinyModel:
    """transformers' model (eager attention, fp32), and what ramet reads of it."""

    reference: Any
    hf_config: dict[str, object]
    config: ModelConfig
    tensors: dict[str, Tensor]

    def expected(self, token_ids: list[int]) -> Tensor:
        """transformers' logits of a whole prompt: [num_tokens, vocab_size]."""
        with torch.inference_mode():
            logits: Tensor = self.reference(torch.tensor([token_ids]), use_cache=False).logits[0]
        return logits

    def decoder(self, quantization: Quantization = "none", dtype: torch.dtype = torch.float32) -> DecoderModel:
        weights = prepare_weights(self.config, self.tensors, quantization=quantization, dtype=dtype)
        return DecoderModel(self.config, weights, torch.device("cpu"), dtype)


MakeReference = Callable[[str, Mapping[str, Any]], Any]
MakeTiny = Callable[[str, Mapping[str, Any]], TinyModel]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for one another cost more than these tensors are worth."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_reference() -> MakeReference:
    """(class name, config fields on top of SIZES) -> a random model of transformers, no weight neutral."""
    transformers = pytest.importorskip("transformers")

    def make(architecture: str, fields: Mapping[str, Any]) -> Any:
        model_class = getattr(transformers, architecture)
        config = model_class.config_class(**{**SIZES, **fields})
        config.architectures = [architecture]
        config._attn_implementation = "eager"
        with torch.random.fork_rng():
            torch.manual_seed(7)
            model = model_class(config).eval()
            for parameter in model.parameters():
                # Biases are made as 0 and norms as 0 or 1, which would hide them.
                noise = torch.randn_like(parameter) * (
                    0.2 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
                )
                parameter.data = parameter.data * (parameter.dim() == 1) + noise
        return model

    return make


@pytest.fixture(scope="session")
def make_tiny(make_reference: MakeReference) -> MakeTiny:
    made: dict[str, TinyModel] = {}

    def make(architecture: str, fields: Mapping[str, Any]) -> TinyModel:
        key = f"{architecture} {fields!r}"
        if key not in made:
            reference = make_reference(architecture, fields)
            hf_config = reference.config.to_dict()
            made[key] = TinyModel(reference, hf_config, config_from_hf(hf_config), dict(reference.state_dict()))
        return made[key]

    return make
