import re
from typing import Any

import pytest

from ramet.runtime.models.config import ModelConfig, RopeConfig
from ramet.runtime.models.hf_config import IMPLEMENTED_ARCHITECTURES, architecture_of, config_from_hf
from ramet.runtime.protocol import ModelLoadError, UnsupportedModelError

LLAMA: dict[str, Any] = {
    # meta-llama/Llama-3.1-8B-Instruct
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
GEMMA3_4B: dict[str, Any] = {
    # google/gemma-3-4b-it: the text part leaves out what equals the class's defaults
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "eos_token_id": [1, 106],
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152},
}
QWEN3_MOE: dict[str, Any] = {
    # Qwen/Qwen3-30B-A3B
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def small(architecture: str = "LlamaForCausalLM", **fields: object) -> ModelConfig:
    base: dict[str, object] = {
        "architectures": [architecture],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 256,
    }
    return config_from_hf({**base, **fields})


def test_llama_3_1() -> None:
    config = config_from_hf(LLAMA)
    assert config == ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_positions=131072,
        norm_eps=1e-5,
        rope=RopeConfig(
            theta=500000.0,
            scaling="llama3",
            factor=8.0,
            original_max_positions=8192,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
        ),
        bos_token_id=128000,
        eos_token_ids=(128001, 128008, 128009),
        checkpoint_dtype="bfloat16",
    )


def test_both_layouts_of_rope_parameters_read_alike() -> None:
    new = {
        name: value
        for name, value in LLAMA.items()
        if name not in ("rope_scaling", "rope_theta", "torch_dtype")
    }
    new["rope_parameters"] = {**LLAMA["rope_scaling"], "rope_theta": 500000.0}
    new["dtype"] = "bfloat16"
    assert config_from_hf(new) == config_from_hf(LLAMA)


def test_gemma3_text_part_of_a_multimodal_checkpoint() -> None:
    config = config_from_hf(GEMMA3_4B)
    assert config.architecture == "Gemma3ForCausalLM"
    assert config.text_part_of == "Gemma3ForConditionalGeneration"
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262208)
    assert config.rope == RopeConfig(theta=1e6, scaling="linear", factor=8.0)
    assert config.local_rope == RopeConfig(theta=10000.0)
    assert config.sliding_layers == tuple(i for i in range(34) if i % 6 != 5)
    assert config.attention_scale == 256**-0.5
    assert config.tie_embeddings
    assert config.eos_token_ids == (1, 106)
    assert config.checkpoint_dtype == "bfloat16"


def test_gemma3_rope_parameters_by_layer_type() -> None:
    config = small(
        "Gemma3ForCausalLM",
        head_dim=16,
        layer_types=["full_attention", "sliding_attention"] * 2,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        },
    )
    assert config.rope == RopeConfig(theta=1e6, scaling="linear", factor=8.0)
    assert config.local_rope == RopeConfig(theta=5e3)
    assert config.sliding_layers == (1, 3)


def test_gemma3_older_fields() -> None:
    config = small(
        "Gemma3ForCausalLM",
        rope_theta=2e6,
        rope_local_base_freq=7e3,
        sliding_window_pattern=2,
        sliding_window=32,
    )
    assert config.rope == RopeConfig(theta=2e6)
    assert config.local_rope == RopeConfig(theta=7e3)
    assert (config.sliding_window, config.sliding_layers) == (32, (0, 2))


def test_gemma2() -> None:
    config = small("Gemma2ForCausalLM", query_pre_attn_scalar=144, head_dim=32, sliding_window=8)
    assert config.attention_scale == 144**-0.5
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)
    assert config.sliding_layers == (0, 2)
    assert config.activation == "gelu_tanh"
    assert config.norm_plus_one
    assert config.sandwich_norms
    assert config.embedding_scale == 8.0
    assert config.local_rope is None
    assert small("Gemma2ForCausalLM", attn_logit_softcapping=None).attention_softcap is None


def test_qwen3_moe() -> None:
    config = config_from_hf(QWEN3_MOE)
    assert config.moe is not None
    assert config.moe.sparse_layers == tuple(range(48))
    assert (config.moe.num_experts, config.moe.num_experts_per_token, config.moe.intermediate_size) == (
        128,
        8,
        768,
    )
    assert config.moe.normalize_top_k
    assert config.qk_norm
    dense = config_from_hf(
        {**QWEN3_MOE, "mlp_only_layers": [0, 47], "decoder_sparse_step": 2, "norm_topk_prob": False}
    )
    assert dense.moe is not None
    assert dense.moe.sparse_layers == tuple(range(1, 47, 2))
    assert not dense.moe.normalize_top_k


def test_mixtral() -> None:
    config = small("MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2)
    assert config.moe is not None
    assert (config.moe.num_experts, config.moe.intermediate_size, config.moe.normalize_top_k) == (4, 96, True)
    assert config.rope.theta == 1e6
    assert config.norm_eps == 1e-5


def test_windows() -> None:
    assert small("MistralForCausalLM", sliding_window=16).sliding_layers == (0, 1, 2, 3)
    assert small("MistralForCausalLM", sliding_window=None).sliding_layers == ()
    assert small("Qwen2ForCausalLM", sliding_window=16).sliding_window is None
    qwen = small("Qwen2ForCausalLM", use_sliding_window=True, sliding_window=16, max_window_layers=3)
    assert (qwen.sliding_window, qwen.sliding_layers) == (16, (3,))
    assert small("LlamaForCausalLM", sliding_window=16).sliding_window is None  # the class does not read it


def test_defaults() -> None:
    config = small(num_key_value_heads=None)
    assert config.num_kv_heads == 4
    assert small("Qwen3ForCausalLM").head_dim == 128
    assert small(head_dim=None).head_dim == 16
    assert small(dtype=None).checkpoint_dtype is None


def test_architecture_by_model_type_alone() -> None:
    assert architecture_of({"model_type": "qwen3"}) == "Qwen3ForCausalLM"
    assert architecture_of(GEMMA3_4B) == "Gemma3ForCausalLM"
    assert architecture_of({"architectures": ["PhiForCausalLM"]}) == "PhiForCausalLM"
    with pytest.raises(ModelLoadError, match="names no architecture"):
        architecture_of({})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope type 'longrope' is not implemented"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0\.5 .* is not implemented"),
        ({"hidden_act": "gelu"}, "activation hidden_act='gelu' is not implemented"),
        ({"hidden_act": "relu2"}, "activation hidden_act='relu2' is not implemented"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config=.*awq"),
        ({"dtype": "float8_e4m3fn"}, "dtype='float8_e4m3fn' is not implemented"),
        ({"head_dim": 15}, "head_dim=15"),
        ({"is_causal": False}, "is_causal=False"),
        ({"logits_scaling": 8.0}, r"logits_scaling=8\.0"),
        (
            {"architectures": ["Gemma2ForCausalLM"], "use_bidirectional_attention": True},
            "use_bidirectional_attention",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["linear_attention"] * 4},
            "'linear_attention'",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["sliding_attention"] * 4},
            "use_sliding_window=true",
        ),
        (
            {
                "architectures": ["MistralForCausalLM"],
                "sliding_window": 8,
                "layer_types": ["full_attention"] * 4,
            },
            "layer_types that differ",
        ),
        ({"architectures": ["MambaForCausalLM"]}, "architecture 'MambaForCausalLM' is not implemented"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        small("LlamaForCausalLM", **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": None}, "the field hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64'; expected a whole number above 0"),
        ({"vocab_size": 0}, "vocab_size is 0; expected a whole number above 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True; expected a whole number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; expected a number above 0"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 is not a multiple of num_key_value_heads=3"),
        ({"hidden_size": 65}, "hidden_size=65 is not a multiple of num_attention_heads=4"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; expected true or false"),
        ({"eos_token_id": [1, -2]}, "eos_token_id is .* expected token ids"),
        ({"rope_scaling": 3}, "rope_scaling is 3; expected a mapping"),
        ({"hidden_act": 5}, "hidden_act is 5; expected a string"),
        (
            {"architectures": ["Gemma3ForCausalLM"], "layer_types": ["full_attention"]},
            "one for each of 4 layers",
        ),
        (
            {"architectures": ["MixtralForCausalLM"], "num_local_experts": 2, "num_experts_per_tok": 3},
            "num_experts_per_tok=3 is above num_experts=2",
        ),
        ({"architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": 3}, "mlp_only_layers is 3"),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "use_sliding_window": True,
                "sliding_window": 4,
                "max_window_layers": -1,
            },
            "max_window_layers is -1",
        ),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message) as caught:
        small("LlamaForCausalLM", **fields)
    assert not isinstance(caught.value, UnsupportedModelError)
    assert re.search("config.json of", str(caught.value))


def test_multimodal_text_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"text_config\.model_type='phi'"):
        config_from_hf(
            {"architectures": ["LlavaForConditionalGeneration"], "text_config": {"model_type": "phi"}}
        )
    with pytest.raises(ModelLoadError, match="has no text_config"):
        config_from_hf({"architectures": ["LlavaForConditionalGeneration"]})


def test_every_listed_architecture_reads_a_small_config() -> None:
    for architecture in IMPLEMENTED_ARCHITECTURES:
        assert small(architecture).architecture == architecture
