"""Names of GGUF tensors, against the gguf package's own table, and what the converter permuted."""

import gguf
import pytest
import torch

from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.loading.gguf_names import TensorRecipe, apply_conversion, tensor_recipes
from ramet.runtime.protocol import ModelLoadError, UnsupportedModelError

ATTENTION = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
MLP = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
NORMS = ["input_layernorm", "post_attention_layernorm"]
HEAD_NORMS = ["self_attn.q_norm", "self_attn.k_norm"]
GEMMA_NORMS = [*NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm"]
EXPERTS = ["mlp.gate", "mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj"]
PARTS = {
    gguf.MODEL_ARCH.LLAMA: ATTENTION + MLP + NORMS,
    gguf.MODEL_ARCH.QWEN2: ATTENTION + MLP + NORMS,
    gguf.MODEL_ARCH.QWEN3: ATTENTION + MLP + NORMS + HEAD_NORMS,
    gguf.MODEL_ARCH.QWEN3MOE: ATTENTION + EXPERTS + NORMS + HEAD_NORMS,
    gguf.MODEL_ARCH.GEMMA2: ATTENTION + MLP + GEMMA_NORMS,
    gguf.MODEL_ARCH.GEMMA3: ATTENTION + MLP + GEMMA_NORMS + HEAD_NORMS,
}
CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=10,
    hidden_size=16,
    intermediate_size=16,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    max_positions=8,
)


def hf_name(gguf_name: str, architecture: str = "llama") -> str:
    ((name, recipe),) = tensor_recipes(architecture, [gguf_name]).items()
    assert recipe.gguf_name == gguf_name
    return name


@pytest.mark.parametrize("arch", PARTS, ids=lambda arch: gguf.MODEL_ARCH_NAMES[arch])
def test_every_name_is_the_packages(arch: gguf.MODEL_ARCH) -> None:
    num_layers = 12
    table = gguf.get_tensor_name_map(arch, num_layers)
    expected = {f"{name}.weight" for name in ("model.embed_tokens", "model.norm", "lm_head")}
    for layer in (0, 9, 11):
        expected |= {f"model.layers.{layer}.{part}.weight" for part in PARTS[arch]}
        expected |= {f"model.layers.{layer}.{part}.bias" for part in ATTENTION}
    if arch == gguf.MODEL_ARCH.GEMMA2:  # always tied: the table has no head
        expected.remove("lm_head.weight")
    of_gguf = {table.get_name(name, try_suffixes=(".weight", ".bias")): name for name in expected}
    recipes = tensor_recipes(gguf.MODEL_ARCH_NAMES[arch], of_gguf)
    assert {recipe.gguf_name: name for name, recipe in recipes.items()} == of_gguf
    assert len(of_gguf) == len(expected)


def test_experts_of_old_files_come_one_by_one() -> None:
    assert hf_name("blk.1.ffn_down.3.weight") == "model.layers.1.mlp.experts.3.down_proj.weight"
    assert hf_name("blk.10.ffn_up.12.weight") == "model.layers.10.mlp.experts.12.up_proj.weight"
    assert hf_name("blk.0.ffn_gate.0.weight") == "model.layers.0.mlp.experts.0.gate_proj.weight"


def test_frequency_factors_keep_their_name() -> None:
    assert hf_name("rope_freqs.weight") == "rope_freqs.weight"


def test_only_q_and_k_of_the_llama_architecture_were_permuted() -> None:
    names = [f"blk.0.attn_{part}.{kind}" for part in ("q", "k", "v", "output") for kind in ("weight", "bias")]
    conversions = {r.gguf_name: r.conversion for r in tensor_recipes("llama", names).values()}
    assert conversions == {
        name: f"unpermute_{name[11]}" if name[11:13] in ("q.", "k.") else "none" for name in names
    }
    for architecture in ("qwen2", "qwen3", "gemma3"):
        assert {r.conversion for r in tensor_recipes(architecture, names).values()} == {"none"}
    assert TensorRecipe("x").conversion == "none"


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_sinks.weight",
        "blk.0.attn_q.lora",
        "blk.0.attn_q",
        "blk.0.attn_q.weight.scale",
        "blk.0.attn_q.3.weight",
        "blk.x.attn_q.weight",
        "blk.-1.attn_q.weight",
        # Another spelling of a name that is there too would take its place.
        "blk.00.attn_q.weight",
        "blk.0.ffn_up.03.weight",
        "blk.٣.attn_q.weight",
        "blk.0.post_ffw_norm.weight",
        "v.patch_embd.weight",
        "output.bias",
        "token_embd.weight\n",
        "",
    ],
)
def test_a_tensor_without_a_place_is_named(name: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        tensor_recipes("llama", ["token_embd.weight", name])
    assert str(caught.value).startswith(f"tensor {name!r} has no place in a 'llama' model")


def test_norms_around_the_mlp_are_gemmas() -> None:
    assert hf_name("blk.0.ffn_norm.weight", "gemma2") == "model.layers.0.pre_feedforward_layernorm.weight"
    assert hf_name("blk.0.ffn_norm.weight", "qwen2") == "model.layers.0.post_attention_layernorm.weight"


@pytest.mark.parametrize("shape", [(24, 16), (24,)])
def test_rows_come_back_in_the_checkpoints_order(shape: tuple[int, ...]) -> None:
    """The converter's permutation, row by row: pair i of a head is rows i and i + head_dim / 2."""
    original = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for conversion, num_heads in (("unpermute_q", 4), ("unpermute_k", 2)):
        head_dim = shape[0] // num_heads
        order = [
            head * head_dim + half * (head_dim // 2) + pair
            for head in range(num_heads)
            for pair in range(head_dim // 2)
            for half in range(2)
        ]
        written = original[order]
        assert not torch.equal(written, original)
        assert torch.equal(apply_conversion(written, conversion, CONFIG), original)  # type: ignore[arg-type]
        assert torch.equal(apply_conversion(written, "none", CONFIG), written)


@pytest.mark.parametrize("rows", [20, 4, 7])
def test_rows_that_are_no_whole_pairs_of_the_heads_are_damage(rows: int) -> None:
    with pytest.raises(ModelLoadError, match=f"{rows} rows of q or k do not divide into 4 heads of even size"):
        apply_conversion(torch.zeros(rows, 3), "unpermute_q", CONFIG)
