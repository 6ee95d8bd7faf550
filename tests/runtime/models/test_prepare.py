from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from ramet.kernels import reference
from ramet.runtime.models.hf_config import config_from_hf
from ramet.runtime.models.prepare import Quantization, prepare_weights
from ramet.runtime.protocol import ModelLoadError

if TYPE_CHECKING:
    from tests.runtime.models.conftest import MakeTiny, TinyModel

MOE: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "qwen3moe": (
        "Qwen3MoeForCausalLM",
        {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "mlp_only_layers": [0]},
    ),
}


def prepare(
    tiny: "TinyModel", tensors: dict[str, Tensor], quantization: Quantization = "none"
) -> dict[str, Tensor]:
    return prepare_weights(tiny.config, tensors, quantization=quantization, dtype=torch.float32)


def assert_same_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.fixture
def llama(make_tiny: "MakeTiny") -> "TinyModel":
    return make_tiny("LlamaForCausalLM", {"attention_bias": True})


@pytest.fixture
def tied(make_tiny: "MakeTiny") -> "TinyModel":
    return make_tiny("Gemma3ForCausalLM", {"head_dim": 16, "sliding_window": 8})


def test_projections_are_fused(llama: "TinyModel") -> None:
    weights, tensors = prepare(llama, llama.tensors), llama.tensors
    prefix = "model.layers.1.self_attn"
    expected = torch.cat([tensors[f"{prefix}.{name}_proj.weight"] for name in "qkv"])
    assert torch.equal(weights["layers.1.qkv.weight"], expected)
    assert torch.equal(
        weights["layers.1.qkv.bias"], torch.cat([tensors[f"{prefix}.{n}_proj.bias"] for n in "qkv"])
    )
    gate_up = torch.cat([tensors[f"model.layers.1.mlp.{name}_proj.weight"] for name in ("gate", "up")])
    assert torch.equal(weights["layers.1.gate_up.weight"], gate_up)


def test_gemma_norms_hold_one_plus_weight_in_fp32(tied: "TinyModel") -> None:
    weights = prepare_weights(tied.config, tied.tensors, quantization="none", dtype=torch.bfloat16)
    for ours, theirs in {
        "final_norm": "model.norm",
        "layers.0.mlp_norm": "model.layers.0.pre_feedforward_layernorm",
        "layers.0.q_norm": "model.layers.0.self_attn.q_norm",
    }.items():
        assert weights[f"{ours}.weight"].dtype == torch.float32
        assert torch.equal(weights[f"{ours}.weight"], 1.0 + tied.tensors[f"{theirs}.weight"])
    assert weights["embedding.weight"].dtype == torch.bfloat16


def test_gguf_norms_are_taken_as_they_are(tied: "TinyModel") -> None:
    weights = prepare_weights(
        replace(tied.config, norm_plus_one=False), tied.tensors, quantization="none", dtype=torch.float32
    )
    assert torch.equal(weights["final_norm.weight"], tied.tensors["model.norm.weight"])


def test_tied_embeddings_are_kept_once(tied: "TinyModel") -> None:
    assert "lm_head.weight" in tied.tensors
    assert "lm_head.weight" not in prepare(tied, tied.tensors)
    quantized = prepare(tied, tied.tensors, "int8")
    assert quantized["embedding.weight"].dtype == torch.int8
    assert "lm_head.weight" not in quantized


def test_a_tied_config_with_a_head_of_its_own_keeps_the_head(tied: "TinyModel") -> None:
    head = torch.randn(tied.tensors["lm_head.weight"].shape, generator=torch.Generator().manual_seed(1))
    weights = prepare(tied, {**tied.tensors, "lm_head.weight": head})
    assert torch.equal(weights["lm_head.weight"], head)


def test_int8_rows_come_back_within_half_a_step(llama: "TinyModel") -> None:
    weights = prepare(llama, llama.tensors, "int8")
    assert weights["embedding.weight"].dtype == torch.float32  # untied: a table, not a projection
    original = llama.tensors["lm_head.weight"]
    scale = weights["lm_head.scale"][:, None]
    assert weights["lm_head.weight"].dtype == torch.int8
    assert bool(((weights["lm_head.weight"] * scale - original).abs() <= scale * 0.501).all())
    assert weights["layers.0.qkv.bias"].dtype == torch.float32


@pytest.mark.parametrize("name", MOE)
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_every_layout_of_experts_gives_the_same_weights(
    name: str, quantization: Quantization, make_tiny: "MakeTiny"
) -> None:
    tiny = make_tiny(*MOE[name])
    assert tiny.config.moe is not None
    fused = {key: tensor for key, tensor in tiny.tensors.items() if ".experts." not in key}
    stacked, single, mixtral = dict(fused), dict(fused), dict(fused)
    for layer in tiny.config.moe.sparse_layers:
        prefix = f"model.layers.{layer}.mlp.experts"
        gate, up = tiny.tensors[f"{prefix}.gate_up_proj"].chunk(2, dim=1)
        parts = {"gate_proj": gate, "up_proj": up, "down_proj": tiny.tensors[f"{prefix}.down_proj"]}
        for part, tensor in parts.items():
            stacked[f"{prefix}.{part}.weight"] = tensor
            for expert in range(3):
                single[f"{prefix}.{expert}.{part}.weight"] = tensor[expert]
                short = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}[part]
                old = prefix.replace("mlp", "block_sparse_moe")
                mixtral[f"{old}.{expert}.{short}.weight"] = tensor[expert]
    expected = prepare(tiny, tiny.tensors, quantization)
    for layout in (stacked, single, mixtral):
        assert_same_weights(prepare(tiny, layout, quantization), expected)
    router = expected[f"layers.{tiny.config.moe.sparse_layers[0]}.router.weight"]
    assert router.dtype == (torch.int16 if quantization == "int8" else torch.float32)


@pytest.mark.parametrize("name", MOE)
def test_a_saved_checkpoint_gives_the_same_weights(name: str, make_tiny: "MakeTiny", tmp_path: Path) -> None:
    """transformers writes the names of the published checkpoints, not those it has in memory."""
    from safetensors.torch import load_file

    tiny = make_tiny(*MOE[name])
    tiny.reference.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert_same_weights(prepare(tiny, saved), prepare(tiny, tiny.tensors))


def test_the_text_part_of_a_multimodal_checkpoint(tied: "TinyModel") -> None:
    text = {name: value for name, value in tied.hf_config.items() if name != "architectures"}
    config = config_from_hf({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    plain = {name: tensor for name, tensor in tied.tensors.items() if name != "lm_head.weight"}
    published = {f"language_model.{name}": tensor for name, tensor in plain.items()}
    published |= {"vision_tower.x": torch.zeros(1), "multi_modal_projector.y": torch.zeros(1)}
    newer = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in plain.items()}
    newer |= {"model.vision_tower.x": torch.zeros(1)}
    for tensors in (published, newer):
        weights = prepare_weights(config, tensors, quantization="none", dtype=torch.float32)
        assert_same_weights(weights, prepare(tied, tied.tensors))
    with pytest.raises(ModelLoadError, match="vision_tower"):
        prepare(tied, {**tied.tensors, "vision_tower.x": torch.zeros(1)})


def test_a_checkpoint_saved_without_its_head_class(tied: "TinyModel") -> None:
    bare = {
        name.removeprefix("model."): tensor for name, tensor in tied.tensors.items() if name != "lm_head.weight"
    }
    assert_same_weights(prepare(tied, bare), prepare(tied, tied.tensors))


def test_buffers_of_old_checkpoints_are_passed_over(llama: "TinyModel") -> None:
    tensors = {**llama.tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    assert_same_weights(prepare(llama, tensors), prepare(llama, llama.tensors))


def test_a_missing_tensor_is_named_with_its_shape(llama: "TinyModel") -> None:
    name = "model.layers.2.mlp.down_proj.weight"
    tensors = {key: tensor for key, tensor in llama.tensors.items() if key != name}
    with pytest.raises(ModelLoadError, match=r"lacks model\.layers\.2\.mlp\.down_proj\.weight.* \[64, 96\]"):
        prepare(llama, tensors)
    head = {key: tensor for key, tensor in llama.tensors.items() if key != "lm_head.weight"}
    with pytest.raises(ModelLoadError, match=r"lacks lm_head\.weight"):
        prepare(llama, head)


def test_a_misshaped_tensor_is_named_with_both_shapes(llama: "TinyModel") -> None:
    tensors = {**llama.tensors, "model.layers.0.self_attn.k_proj.weight": torch.zeros(16, 64)}
    with pytest.raises(ModelLoadError, match=r"k_proj\.weight has shape \[16, 64\];.* asks for \[32, 64\]"):
        prepare(llama, tensors)


def test_tensors_left_over_are_named(llama: "TinyModel") -> None:
    extra = {f"model.layers.0.self_attn.{name}.weight": torch.zeros(16) for name in ("q_norm", "k_norm")}
    with pytest.raises(
        ModelLoadError, match=r"2 tensors unknown to LlamaForCausalLM: .*k_norm\.weight, .*q_norm"
    ):
        prepare(llama, {**llama.tensors, **extra})


def test_whole_numbers_are_no_weights(llama: "TinyModel") -> None:
    tensors = {**llama.tensors, "model.norm.weight": torch.zeros(64, dtype=torch.int32)}
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight has dtype torch\.int32"):
        prepare(llama, tensors)


def test_an_unknown_quantization_is_refused(llama: "TinyModel") -> None:
    with pytest.raises(ModelLoadError, match="quantization 'int3' is not implemented"):
        prepare(llama, llama.tensors, "int3")  # type: ignore[arg-type]


def test_frequency_factors_have_to_be_there(llama: "TinyModel") -> None:
    config = replace(llama.config, rope=replace(llama.config.rope, frequency_factors=True))
    with pytest.raises(ModelLoadError, match=r"lacks rope_freqs\.weight.* \[8\]"):
        prepare_weights(config, llama.tensors, quantization="none", dtype=torch.float32)


@pytest.mark.parametrize("quantization", ["fp8", "int4"])
def test_few_bits_leave_the_ends_and_norms_as_they_are(
    quantization: Quantization, make_tiny: "MakeTiny"
) -> None:
    tiny = make_tiny("LlamaForCausalLM", {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16})
    plain, few = prepare(tiny, tiny.tensors), prepare(tiny, tiny.tensors, quantization)
    for name in ("embedding.weight", "lm_head.weight", "layers.0.mlp_norm.weight"):
        if (quantization, name) == ("int4", "lm_head.weight"):
            assert few[name].dtype is torch.int8  # in fp32 it would be most of what a step reads
        else:
            assert torch.equal(few[name], plain[name])
    for name in ("qkv", "attention_output", "gate_up", "down"):
        weight, scale = few[f"layers.1.{name}.weight"], few[f"layers.1.{name}.scale"]
        assert weight.dtype is torch.uint8
        back = (
            reference.from_e4m3(weight) * scale[:, None]
            if quantization == "fp8"
            else reference.dequantize_int4(weight, scale)
        )
        wanted = plain[f"layers.1.{name}.weight"]
        assert (back - wanted).abs().max() < 0.2 * wanted.abs().max()


def test_what_has_no_four_bits_is_refused(make_tiny: "MakeTiny") -> None:
    odd = make_tiny("LlamaForCausalLM", {"hidden_size": 80, "head_dim": 16})
    with pytest.raises(ModelLoadError, match=r"rows of 80 weights.*'fp8'"):
        prepare(odd, odd.tensors, "int4")
    experts = make_tiny(*MOE["mixtral"])
    with pytest.raises(ModelLoadError, match="models with experts"):
        prepare(experts, experts.tensors, "int4")
    fp8 = prepare(experts, experts.tensors, "fp8")
    assert fp8["layers.0.experts.gate_up.weight"].dtype is torch.uint8
    assert fp8["layers.0.experts.gate_up.scale"].shape == fp8["layers.0.experts.gate_up.weight"].shape[:2]
