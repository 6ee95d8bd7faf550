"""Small GGUF files, written with the gguf package the way llama.cpp's converter writes large ones."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

Array = npt.NDArray[Any]
TensorKind = Callable[[str], Kind]

ARCHITECTURES = {
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "MistralForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "MixtralForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
    "Qwen3MoeForCausalLM": gguf.MODEL_ARCH.QWEN3MOE,
    "Gemma2ForCausalLM": gguf.MODEL_ARCH.GEMMA2,
    "Gemma3ForCausalLM": gguf.MODEL_ARCH.GEMMA3,
}


def float32_only(_: str) -> Kind:
    return Kind.F32


def write_gguf(
    path: Path,
    hf_config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    kind_of: TensorKind = float32_only,
    *,
    edit: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    split_max_tensors: int = 0,
) -> None:
    """A model of transformers as GGUF. kind_of: GGUF tensor name -> its format, used for matrices only."""
    arch = ARCHITECTURES[hf_config["architectures"][0]]
    writer = gguf.GGUFWriter(
        path, gguf.MODEL_ARCH_NAMES[arch], split_max_tensors=split_max_tensors, small_first_shard=False
    )
    _add_metadata(writer, hf_config)
    add_tokenizer(writer, hf_config["vocab_size"])
    edit(writer)
    for name, values in gguf_tensors(hf_config, tensors).items():
        kind = kind_of(name) if values.ndim > 1 else Kind.F32
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(hf_config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Renamed by the gguf package's own table, permuted and shifted as llama.cpp's converter does it."""
    arch = ARCHITECTURES[hf_config["architectures"][0]]
    names = gguf.get_tensor_name_map(arch, hf_config["num_hidden_layers"])
    heads = {"q_proj": hf_config["num_attention_heads"], "k_proj": hf_config["num_key_value_heads"]}
    out: dict[str, Array] = {}
    for name, tensor in _unfused(tensors).items():
        values = tensor.float().numpy()
        part = name.split(".")[-2]
        if arch == gguf.MODEL_ARCH.LLAMA and part in heads:
            values = values.reshape(heads[part], 2, len(values) // heads[part] // 2, *values.shape[1:])
            values = values.swapaxes(1, 2).reshape(-1, *values.shape[3:])
        if "gemma" in gguf.MODEL_ARCH_NAMES[arch] and part.endswith("norm"):
            values = values + 1
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        out[gguf_name] = np.ascontiguousarray(values)
    return out


def _unfused(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """transformers holds a layer's experts as gate_up_proj [experts, 2 * inner, hidden]; files do not."""
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(".experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            prefix = name.removesuffix("gate_up_proj")
            out |= {f"{prefix}gate_proj.weight": gate, f"{prefix}up_proj.weight": up}
        elif name.endswith(".experts.down_proj"):
            out[f"{name}.weight"] = tensor
        elif name != "lm_head.weight" or tensor.data_ptr() != tensors["model.embed_tokens.weight"].data_ptr():
            out[name] = tensor
    return out


def _add_metadata(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    rope = config.get("rope_parameters") or {}
    local = rope.get("sliding_attention") or rope
    rope = rope.get("full_attention") or rope
    writer.add_type("model")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if "gemma" in config["model_type"]:
        writer.add_sliding_window(config["sliding_window"])
        if config["model_type"].startswith("gemma3"):
            writer.add_rope_freq_base_swa(local.get("rope_theta", 10000.0))
    experts = config.get("num_local_experts") or config.get("num_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        if "moe_intermediate_size" in config:
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def vocabulary(size: int) -> tuple[list[str], list[int]]:
    """(tokens, types): three control tokens, printable ASCII as GPT-2 spells it, two merges, padding."""
    tokens = ["<unk>", "<s>", "</s>"]
    tokens += ["Ġ", *(chr(code) for code in range(33, 127)), "th", "the"]
    types = [3] * 3 + [1] * (len(tokens) - 3)
    padding = [f"[PAD{number}]" for number in range(size - len(tokens))]
    return (tokens + padding)[:size], (types + [5] * len(padding))[:size]


def add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    tokens, types = vocabulary(size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")


def tiny_llama(seed: int = 0, **fields: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(config, random tensors) of a two-layer Llama, without transformers."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 131,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        **fields,
    }
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * float(shape[-1] ** -0.5)

    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    tensors = {"model.embed_tokens.weight": random(vocab, hidden), "model.norm.weight": 1 + random(hidden)}
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = random(vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        tensors |= {f"{prefix}{name}.weight": random(*shape) for name, shape in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{norm}.weight"] = 1 + random(hidden)
    return config, tensors
