import builtins
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from ramet.runtime.models.dense_attention import DenseSequence, dense_batch
from ramet.runtime.models.transformers_model import TransformersModel, load_transformers_model
from ramet.runtime.protocol import ModelLoadError, UnsupportedModelError

if TYPE_CHECKING:
    from tests.runtime.models.conftest import MakeReference

CPU = torch.device("cpu")
SUPPORTED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-neox": ("GPTNeoXForCausalLM", {}),
    "phi": ("PhiForCausalLM", {}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "cohere": ("CohereForCausalLM", {"logit_scale": 0.25}),
    "cohere2-windows": ("Cohere2ForCausalLM", {"sliding_window": 6, "num_hidden_layers": 4}),
    "smollm3": ("SmolLM3ForCausalLM", {}),
    "gpt2": ("GPT2LMHeadModel", {}),
    "granite": ("GraniteForCausalLM", {"attention_multiplier": 0.2, "residual_multiplier": 0.7}),
    "starcoder2-window": ("Starcoder2ForCausalLM", {"sliding_window": 5}),
    "olmoe": ("OlmoeForCausalLM", {"num_experts": 4, "num_experts_per_tok": 2}),
}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "factor": 4.0}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "sinks": (
        "GptOssForCausalLM",
        {"num_local_experts": 4, "rope_parameters": {"rope_type": "default"}},
        "passes s_aux",
    ),
    "alibi": ("BloomForCausalLM", {}, "does not call transformers' AttentionInterface"),
    "no interface": ("StableLmForCausalLM", {}, "does not call transformers' AttentionInterface"),
    "recurrent": ("MambaForCausalLM", {}, "recurrent state"),
    "linear attention": ("MiniMaxForCausalLM", {}, "layer type 'linear_attention'"),
    "convolutions": (
        "Lfm2ForCausalLM",
        {"layer_types": ["conv", "full_attention", "conv"]},
        "layer type 'conv'",
    ),
    "chunked attention": (
        "Llama4ForCausalLM",
        {"num_local_experts": 2, "intermediate_size_mlp": 64},
        "layer type 'chunked_attention'",
    ),
    "encoder and decoder": ("T5ForConditionalGeneration", {}, "an encoder and a decoder"),
    "not causal": ("BertForMaskedLM", {}, "shows later tokens"),
    "value heads": (
        "DeepseekV3ForCausalLM",
        {"n_routed_experts": 8, "n_group": 1, "topk_group": 1},
        "value heads of size",
    ),
    "two attentions in a layer": ("DiffLlamaForCausalLM", {}, "attends more than once"),
    "its own mask": ("DogeForCausalLM", {}, "without a mask of transformers' masking functions"),
    "longrope": (
        "Phi3ForCausalLM",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
        "rope type 'longrope'",
    ),
    "no output head": ("LlamaForSequenceClassification", {}, "no output head over the vocabulary"),
}


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, 131, (length,), generator=generator).tolist()


def own_logits(reference: Any, token_ids: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = reference(torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", SUPPORTED)
def test_chunks_and_mixed_rows_agree_with_its_own_attention(name: str, make_reference: "MakeReference") -> None:
    architecture, fields = SUPPORTED[name]
    reference = make_reference(architecture, fields)
    first, second = prompt(40, seed=1), prompt(23, seed=2)
    expected = own_logits(reference, first), own_logits(reference, second)
    model = TransformersModel(reference)
    a, b = DenseSequence(), DenseSequence()
    steps: list[list[tuple[DenseSequence, list[int]]]] = [
        [(a, first[:17])],
        [(b, second[:20]), (a, first[17:38])],
        [(a, first[38:39]), (b, second[20:22])],
        [(b, second[22:]), (a, first[39:])],
    ]
    got: dict[int, list[Tensor]] = {id(a): [], id(b): []}
    for rows in steps:
        with torch.inference_mode():
            logits = model.forward(dense_batch(rows, CPU))
        assert logits.dtype == torch.float32
        for (sequence, _), part in zip(
            rows, logits.split_with_sizes([len(ids) for _, ids in rows]), strict=True
        ):
            got[id(sequence)].append(part)
    assert relative_error(torch.cat(got[id(a)]), expected[0]) < 1e-4
    assert relative_error(torch.cat(got[id(b)]), expected[1]) < 1e-4


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_be_right_is_refused_by_name(name: str, make_reference: "MakeReference") -> None:
    architecture, fields, reason = REFUSED[name]
    reference = make_reference(architecture, fields)
    with pytest.raises(UnsupportedModelError, match=re.escape(reason)) as caught:
        TransformersModel(reference)
    family = architecture.split("For")[0]
    assert family in str(caught.value)


def test_windows_are_found_beyond_the_length_of_the_self_test(make_reference: "MakeReference") -> None:
    """A window of 100 hides nothing from a prompt of 13 tokens; the mask function tells of it all the same."""
    reference = make_reference("Cohere2ForCausalLM", {"sliding_window": 100, "num_hidden_layers": 4})
    token_ids = prompt(130)
    expected = own_logits(reference, token_ids)
    model = TransformersModel(reference)
    with torch.inference_mode():
        got = model.forward(dense_batch([(DenseSequence(), token_ids)], CPU))
    assert relative_error(got, expected) < 1e-4


def test_the_config_describes_the_kv_pool(make_reference: "MakeReference") -> None:
    config = TransformersModel(make_reference("PhiForCausalLM", {})).config
    assert (config.architecture, config.num_layers, config.num_heads) == ("PhiForCausalLM", 3, 4)
    assert (config.num_kv_heads, config.head_dim, config.vocab_size) == (2, 16, 131)
    assert (config.max_positions, config.bos_token_id, config.eos_token_ids) == (256, 1, (2, 3))


def test_only_the_wanted_logits_are_returned(make_reference: "MakeReference") -> None:
    reference = make_reference("Olmo2ForCausalLM", {})
    token_ids = prompt(9)
    expected = own_logits(reference, token_ids)
    model = TransformersModel(reference)
    batch = dense_batch([(DenseSequence(), token_ids), (DenseSequence(), token_ids[:4])], CPU, all_logits=False)
    with torch.inference_mode():
        got = model.forward(batch)
    assert relative_error(got, expected[[8, 3]]) < 1e-4


def test_a_model_that_differs_from_itself_fails_the_self_test(make_reference: "MakeReference") -> None:
    """A convolution over neighbouring tokens, which no config field tells of."""
    reference = make_reference("Olmo2ForCausalLM", {})
    layer = reference.model.layers[0]
    plain = layer.forward

    def mixing(hidden_states: Tensor, **options: Any) -> Any:
        return plain(hidden_states + hidden_states.roll(1, dims=1), **options)

    layer.forward = mixing
    with pytest.raises(UnsupportedModelError, match=r"logits differ from those of its own attention"):
        TransformersModel(reference)


def test_attention_outside_of_a_step_is_an_error(make_reference: "MakeReference") -> None:
    reference = make_reference("PhiForCausalLM", {})
    TransformersModel(reference)
    with pytest.raises(RuntimeError, match="PhiAttention attends outside of a step"):
        own_logits(reference, prompt(4))


def test_loads_a_folder(make_reference: "MakeReference", tmp_path: Path) -> None:
    reference = make_reference("GPTNeoXForCausalLM", {})
    token_ids = prompt(20)
    expected = own_logits(reference, token_ids)
    reference.save_pretrained(tmp_path)
    model = load_transformers_model(tmp_path, device=CPU, dtype=torch.float32)
    with torch.inference_mode():
        got = model.forward(dense_batch([(DenseSequence(), token_ids)], CPU))
    assert relative_error(got, expected) < 1e-4
    half = load_transformers_model(tmp_path, device=CPU, dtype=torch.bfloat16)
    with torch.inference_mode():
        got = half.forward(dense_batch([(DenseSequence(), token_ids)], CPU))
    assert got.dtype == torch.float32
    assert float((got - expected).norm() / expected.norm()) < 0.1


def test_a_folder_is_refused_before_its_weights_are_read(
    make_reference: "MakeReference", tmp_path: Path
) -> None:
    make_reference("BloomForCausalLM", {}).config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="BloomForCausalLM cannot run"):
        load_transformers_model(tmp_path, device=CPU, dtype=torch.float32)


def test_missing_and_left_over_tensors_of_a_folder(make_reference: "MakeReference", tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    make_reference("PhiForCausalLM", {}).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    whole = dict(tensors)
    del tensors["model.layers.1.mlp.fc1.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"missing tensors \(1\): model\.layers\.1\.mlp\.fc1\.weight"):
        load_transformers_model(tmp_path, device=CPU, dtype=torch.float32)
    save_file({**whole, "model.extra": torch.zeros(1)}, path, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"unexpected tensors \(1\): model\.extra"):
        load_transformers_model(tmp_path, device=CPU, dtype=torch.float32)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelLoadError, match="cannot load"):
        load_transformers_model(tmp_path, device=CPU, dtype=torch.float32)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "unheard-of", "architectures": ["UnheardOfForCausalLM"]}, "does not know the model"),
        ({"model_type": "phi", "architectures": ["PhiForNothing"]}, "names 'PhiForNothing'"),
        ({"model_type": "phi"}, "names 'no architecture'"),
    ],
)
def test_folders_that_transformers_does_not_know(
    config: dict[str, object], message: str, make_reference: "MakeReference", tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=message):
        load_transformers_model(tmp_path, device=CPU, dtype=torch.float32)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **options: Any) -> Any:
        if name == "transformers":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ModelLoadError, match=re.escape("pip install 'ramet[transformers]'")):
        load_transformers_model(tmp_path, device=CPU, dtype=torch.float32)
