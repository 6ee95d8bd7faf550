from typing import TYPE_CHECKING, Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from ramet.runtime.layers.rotary import inverse_frequencies, llama3_frequencies
from ramet.runtime.models.config import RopeConfig
from ramet.runtime.models.decoder import DecoderModel
from ramet.runtime.models.dense_attention import DenseSequence, dense_batch
from ramet.runtime.models.model import Model
from ramet.runtime.models.prepare import Quantization, prepare_weights
from ramet.runtime.protocol import ModelLoadError

if TYPE_CHECKING:
    from tests.runtime.models.conftest import MakeTiny, TinyModel

CPU = torch.device("cpu")
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama-tied-biased": (
        "LlamaForCausalLM",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "llama-odd-sizes": (
        "LlamaForCausalLM",
        {
            "hidden_size": 51,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 22,
            "intermediate_size": 77,
        },
    ),
    "llama-linear": (
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1000.0}},
    ),
    "llama-llama3": ("LlamaForCausalLM", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("LlamaForCausalLM", {"rope_parameters": YARN}),
    "llama-yarn-untruncated": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {
                **YARN,
                "truncate": False,
                "mscale": 0.7,
                "mscale_all_dim": 0.4,
                "beta_fast": 20.0,
            }
        },
    ),
    "mistral-window": ("MistralForCausalLM", {"sliding_window": 7, "num_key_value_heads": 1}),
    "mistral-full": ("MistralForCausalLM", {"sliding_window": None, "head_dim": 24}),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2-window": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "rope_parameters": YARN},
    ),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32, "attention_bias": True}),
    "qwen3-window": (
        "Qwen3ForCausalLM",
        {
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        {
            "head_dim": 24,
            "sliding_window": 5,
            "query_pre_attn_scalar": 17,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 2.0,
        },
    ),
    "gemma2-uncapped": (
        "Gemma2ForCausalLM",
        {
            "head_dim": 16,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "attention_bias": True,
        },
    ),
    "gemma3": ("Gemma3ForCausalLM", {"head_dim": 24, "sliding_window": 6, "sliding_window_pattern": 3}),
    "gemma3-linear": (
        "Gemma3ForCausalLM",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "sliding_window": 5,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "final_logit_softcapping": 4.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            },
        },
    ),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral-window": (
        "MixtralForCausalLM",
        {"num_local_experts": 3, "num_experts_per_tok": 3, "sliding_window": 6},
    ),
    "qwen3moe-normalized": (
        "Qwen3MoeForCausalLM",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3moe": (
        "Qwen3MoeForCausalLM",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": False,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "sliding_window": 9,
        },
    ),
}
QUANTIZED = ["llama", "llama-tied-biased", "qwen3", "gemma3-linear", "mixtral", "qwen3moe"]


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, 131, (length,), generator=generator).tolist()


def run(model: Model, *rows: tuple[DenseSequence, list[int]]) -> list[Tensor]:
    """Logits of one step, row by row."""
    with torch.inference_mode():
        logits = model.forward(dense_batch(rows, CPU))
    return list(logits.split_with_sizes([len(token_ids) for _, token_ids in rows]))


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).abs().max() / expected.abs().max())


@pytest.fixture(params=CASES)
def tiny(request: pytest.FixtureRequest, make_tiny: "MakeTiny") -> "TinyModel":
    return make_tiny(*CASES[request.param])


@pytest.fixture(params=QUANTIZED)
def quantized(request: pytest.FixtureRequest, make_tiny: "MakeTiny") -> "TinyModel":
    return make_tiny(*CASES[request.param])


def test_whole_prompt_agrees_with_transformers(tiny: "TinyModel") -> None:
    token_ids = prompt(90)
    [got] = run(tiny.decoder(), (DenseSequence(), token_ids))
    assert got.dtype == torch.float32
    assert relative_error(got, tiny.expected(token_ids)) < 1e-4


def test_chunks_cached_prefixes_and_mixed_rows_agree_with_transformers(tiny: "TinyModel") -> None:
    """Three sequences, batch after batch: chunks of several sizes, a branch of a cached prefix, decode
    steps."""
    model, sequence, other = tiny.decoder(), DenseSequence(), DenseSequence()
    first, second = prompt(30, seed=1), prompt(25, seed=2)
    branch_ids = first[:18] + prompt(6, seed=3)
    parts = [run(model, (sequence, first[:11]))[0]]
    a, b = run(model, (sequence, first[11:18]), (other, second[:20]))
    branch = sequence.copy()
    c, branched, d = run(model, (sequence, first[18:29]), (branch, branch_ids[18:]), (other, second[20:24]))
    e, f = run(model, (other, second[24:]), (sequence, first[29:]))
    assert relative_error(torch.cat([*parts, a, c, f]), tiny.expected(first)) < 1e-4
    assert relative_error(torch.cat([b, d, e]), tiny.expected(second)) < 1e-4
    assert relative_error(branched, tiny.expected(branch_ids)[18:]) < 1e-4


def test_only_the_wanted_logits_are_returned(tiny: "TinyModel") -> None:
    token_ids = prompt(12)
    model = tiny.decoder()
    batch = dense_batch([(DenseSequence(), token_ids), (DenseSequence(), token_ids[:5])], CPU, all_logits=False)
    with torch.inference_mode():
        got = model.forward(batch)
    expected = torch.stack((tiny.expected(token_ids)[-1], tiny.expected(token_ids[:5])[-1]))
    assert relative_error(got, expected) < 1e-4


def test_a_batch_may_want_no_logits(make_tiny: "MakeTiny") -> None:
    tiny = make_tiny(*CASES["qwen3moe"])
    model, sequence, token_ids = tiny.decoder(), DenseSequence(), prompt(10)
    batch = dense_batch([(sequence, token_ids[:9])], CPU)
    silent = type(batch)(batch.input_ids, batch.positions, batch.attention, torch.empty(0, dtype=torch.int64))
    with torch.inference_mode():
        assert model.forward(silent).shape == (0, 131)
    [got] = run(model, (sequence, token_ids[9:]))
    assert relative_error(got, tiny.expected(token_ids)[9:]) < 1e-4


def test_int8_stays_near_its_dequantized_weights(quantized: "TinyModel") -> None:
    """What is left of the error is the activations' 8 bits, on random weights, which amplify it."""
    weights = prepare_weights(quantized.config, quantized.tensors, quantization="int8", dtype=torch.float32)
    plain = {name: tensor for name, tensor in weights.items() if not name.endswith(".scale")}
    for name, tensor in weights.items():
        if name.endswith(".scale"):
            name = name.removesuffix(".scale") + ".weight"
            plain[name] = plain[name].float() * tensor[..., None]
    token_ids = prompt(40)
    [got] = run(quantized.decoder("int8"), (DenseSequence(), token_ids))
    [expected] = run(
        DecoderModel(quantized.config, plain, CPU, torch.float32),
        (DenseSequence(), token_ids),
    )
    assert float((got - expected).norm() / expected.norm()) < 0.1
    unquantized = quantized.expected(token_ids)
    assert float((got - unquantized).norm() / unquantized.norm()) < 0.1


@pytest.mark.parametrize(
    ("name", "quantization"), [*((name, "int8") for name in QUANTIZED), ("llama", "int4"), ("qwen3", "int4")]
)
def test_quantised_rows_do_not_depend_on_the_batch(
    name: str, quantization: Quantization, make_tiny: "MakeTiny"
) -> None:
    # 128 and 32: multiples of the vector width, so that no element of a row is a call's scalar remainder.
    architecture, fields = CASES[name]
    sizes = {"hidden_size": 128, "intermediate_size": 64, "head_dim": 64, "vocab_size": 128}
    if "moe_intermediate_size" in fields:
        sizes["moe_intermediate_size"] = 32
    tiny = make_tiny(architecture, {**fields, **sizes})
    model = tiny.decoder(quantization)
    prompts = [[token % 128 for token in prompt(length, seed=length)] for length in (13, 1, 6, 22)]
    alone = [run(model, (DenseSequence(), token_ids))[0] for token_ids in prompts]
    together = run(model, *[(DenseSequence(), token_ids) for token_ids in prompts])
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama-tied-biased", "gemma3", "mixtral"])
def test_half_precision_stays_near_fp32(name: str, dtype: torch.dtype, make_tiny: "MakeTiny") -> None:
    tiny, token_ids = make_tiny(*CASES[name]), prompt(30)
    [got] = run(tiny.decoder(dtype=dtype), (DenseSequence(), token_ids))
    assert got.dtype == torch.float32
    expected = tiny.expected(token_ids)
    # The median token: one whose router sees a near tie may go to another expert.
    error = ((got - expected).norm(dim=-1) / expected.norm(dim=-1)).median()
    assert float(error) < (0.05 if dtype == torch.bfloat16 else 0.01)


def test_int8_runs_with_half_precision_activations(make_tiny: "MakeTiny") -> None:
    tiny, token_ids = make_tiny(*CASES["gemma3"]), prompt(30)
    [got] = run(tiny.decoder("int8", torch.bfloat16), (DenseSequence(), token_ids))
    expected = tiny.expected(token_ids)
    assert float((got - expected).norm() / expected.norm()) < 0.2


def test_frequency_factors_of_gguf_equal_llama3_scaling(make_tiny: "MakeTiny") -> None:
    tiny, token_ids = make_tiny(*CASES["llama-llama3"]), prompt(90)
    plain = inverse_frequencies(500.0, 16)
    scaled = llama3_frequencies(
        plain, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=64
    )
    config = replace(tiny.config, rope=RopeConfig(theta=500.0, frequency_factors=True))
    tensors = {**tiny.tensors, "rope_freqs.weight": plain / scaled}
    weights = prepare_weights(config, tensors, quantization="none", dtype=torch.float32)
    [got] = run(DecoderModel(config, weights, CPU, torch.float32), (DenseSequence(), token_ids))
    assert relative_error(got, tiny.expected(token_ids)) < 1e-4


def test_weights_of_another_dtype_are_refused(make_tiny: "MakeTiny") -> None:
    tiny = make_tiny(*CASES["llama"])
    weights = prepare_weights(tiny.config, tiny.tensors, quantization="none", dtype=torch.bfloat16)
    with pytest.raises(
        ModelLoadError, match=r"embedding\.weight was prepared as torch\.bfloat16, not torch\.float32"
    ):
        DecoderModel(tiny.config, weights, CPU, torch.float32)
