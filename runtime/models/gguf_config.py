"""ModelConfig from a GGUF file's metadata.

Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and the gguf package's constants. What
llama.cpp fixes in code instead of metadata (Gemma's window pattern and scales, Mixtral's normalised experts) is
fixed here.
"""

import math
from collections.abc import Collection, Mapping
from typing import Literal

from ramet.runtime.models.config import ModelConfig, MoeConfig, RopeConfig
from ramet.runtime.models.config_fields import ConfigFields
from ramet.runtime.protocol import ModelLoadError, UnsupportedModelError

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
_NEUTRAL: dict[str, tuple[tuple[object, ...], str]] = {
    "attention.causal": ((True,), "attention to later tokens"),
    "attention.clamp_kqv": ((0, 0.0), "clipped projections"),
    "attention.max_alibi_bias": ((0, 0.0), "attention biases by distance"),
    "attention.shared_kv_layers": ((0,), "layers that share keys and values"),
    "attention.temperature_length": ((0,), "temperature by position"),
    "attention.temperature_scale": ((0, 0.0), "temperature by position"),
    "embedding_scale": ((1, 1.0), "scaled embeddings"),
    "expert_gating_func": ((0, 1), "an expert gate other than softmax"),
    "expert_shared_count": ((0,), "shared experts"),
    "expert_weights_scale": ((0, 0.0, 1, 1.0), "scaled expert weights"),
    "expert_group_count": ((0, 1), "grouped experts"),
    "logit_scale": ((0, 0.0, 1, 1.0), "scaled logits"),
    "residual_scale": ((0, 0.0, 1, 1.0), "scaled residuals"),
    "rope.scaling.yarn_log_multiplier": ((0, 0.0), "YaRN with a log multiplier"),
    "rope.scaling.yarn_ext_factor": ((1, 1.0, -1, -1.0), "YaRN with an extrapolation factor"),
}


def config_from_gguf(metadata: Mapping[str, object], tensor_names: Collection[str]) -> ModelConfig:
    """Read the metadata of a GGUF file; tensor_names are the names in the file (``blk.0.attn_q.weight``).

    What the tensors show: tied embeddings (no ``output.weight``), biases, sparse layers, and Llama 3's
    frequency factors (``rope_freqs.weight``, a tensor that ``prepare_weights`` then needs). The norms of Gemma
    are stored as 1 + weight in GGUF files, so ``norm_plus_one`` is False for them. The q and k rows of "llama"
    files are in the interleaved order: whoever reads the tensors reorders them into halves.

    The vocabulary's size is ``{arch}.vocab_size``, or else the length of ``tokenizer.ggml.tokens``. Raises
    UnsupportedModelError naming the key for what is not implemented, ModelLoadError for missing or wrong
    values.
    """
    arch = ConfigFields(metadata, source="GGUF metadata").text("general.architecture")
    if arch not in _ARCHITECTURES:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise UnsupportedModelError(f"GGUF architecture {arch!r} is not implemented (implemented: {known})")
    prefix = arch + "."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    fields = ConfigFields(own, source=f"GGUF metadata {arch}.*")
    for name, (neutral, feature) in _NEUTRAL.items():
        fields.refuse_unless(name, neutral, feature)
    num_layers = fields.integer("block_count")
    hidden_size = fields.integer("embedding_length")
    num_heads = _uniform(fields, "attention.head_count")
    num_kv_heads = _uniform(fields, "attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise ModelLoadError(
            f"{fields.source}: {num_heads} query heads are not a multiple of {num_kv_heads} KV heads"
        )
    head_dim = _head_dim(fields, hidden_size, num_heads)
    window, sliding = _sliding(arch, fields, num_layers)
    moe = _moe(arch, fields, num_layers, tensor_names)
    gemma = arch in ("gemma2", "gemma3")
    return ModelConfig(
        architecture="MixtralForCausalLM" if arch == "llama" and moe else _ARCHITECTURES[arch],
        vocab_size=_vocab_size(fields, metadata),
        hidden_size=hidden_size,
        intermediate_size=_uniform(fields, "feed_forward_length", moe.intermediate_size if moe else None),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=fields.integer("context_length"),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(arch, fields, head_dim, tensor_names),
        local_rope=RopeConfig(theta=fields.number("rope.freq_base_swa", 10000.0)) if arch == "gemma3" else None,
        sliding_window=window,
        sliding_layers=sliding,
        activation="gelu_tanh" if gemma else "silu",
        attention_bias="blk.0.attn_q.bias" in tensor_names,
        attention_output_bias="blk.0.attn_output.bias" in tensor_names,
        mlp_bias="blk.0.ffn_down.bias" in tensor_names,
        qk_norm=arch in ("qwen3", "qwen3moe", "gemma3"),
        attention_scale=_attention_scale(arch, fields, num_layers, hidden_size // num_heads, head_dim),
        attention_softcap=_cap(fields, "attn_logit_softcapping", 50.0 if arch == "gemma2" else None),
        logit_softcap=_cap(fields, "final_logit_softcapping", 30.0 if arch == "gemma2" else None),
        sandwich_norms=gemma,
        embedding_scale=hidden_size**0.5 if gemma else None,
        tie_embeddings="output.weight" not in tensor_names,
        moe=moe,
        bos_token_id=ConfigFields(metadata, source="GGUF metadata").token_id("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_end_tokens(metadata),
    )


def _uniform(fields: ConfigFields, name: str, default: int | None = None) -> int:
    """A size that GGUF gives once or once a layer; layers that differ are not implemented."""
    value = fields.get(name)
    if isinstance(value, list | tuple):
        if len(set(value)) != 1:
            raise UnsupportedModelError(
                f"{fields.source}: {name} differs from layer to layer, which is not implemented"
            )
        return ConfigFields({name: value[0]}, source=fields.source).integer(name)
    return fields.integer(name, default)


def _head_dim(fields: ConfigFields, hidden_size: int, num_heads: int) -> int:
    head_dim = fields.integer("attention.key_length", hidden_size // num_heads)
    value_dim = fields.integer("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise UnsupportedModelError(
            f"{fields.source}: attention.value_length={value_dim} "
            f"other than key_length={head_dim} is not implemented"
        )
    return head_dim


def _vocab_size(fields: ConfigFields, metadata: Mapping[str, object]) -> int:
    if (size := fields.optional_integer("vocab_size")) is not None:
        return size
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list | tuple) or not tokens:
        raise ModelLoadError(f"{fields.source}: vocab_size is missing and so is tokenizer.ggml.tokens")
    return len(tokens)


def _rope(arch: str, fields: ConfigFields, head_dim: int, tensor_names: Collection[str]) -> RopeConfig:
    for name in ("rope_factors_long.weight", "rope_factors_short.weight"):
        if name in tensor_names:
            raise UnsupportedModelError(f"GGUF tensor {name} (rope type longrope) is not implemented")
    fields.refuse_unless("rope.dimension_count_swa", (head_dim,), "rotating a part of each head")
    rotary_dim = fields.integer("rope.dimension_count", head_dim)
    if rotary_dim > head_dim or (arch == "llama" and rotary_dim != head_dim):
        raise UnsupportedModelError(
            f"{fields.source}: rope.dimension_count={rotary_dim} with heads of {head_dim} is not implemented"
        )
    theta = fields.number("rope.freq_base", 10000.0)
    partial = None if rotary_dim == head_dim else rotary_dim
    factors = "rope_freqs.weight" in tensor_names
    scaling, factor = _scaling(fields)
    if scaling == "none":
        return RopeConfig(theta=theta, rotary_dim=partial, frequency_factors=factors)
    if scaling == "linear":
        return RopeConfig(
            theta=theta, rotary_dim=partial, frequency_factors=factors, scaling="linear", factor=factor
        )
    attention = fields.number("rope.scaling.yarn_attn_factor", fields.number("rope.scaling.attn_factor", 1.0))
    return RopeConfig(
        theta=theta,
        rotary_dim=partial,
        frequency_factors=factors,
        scaling="yarn",
        factor=factor,
        original_max_positions=fields.integer(
            "rope.scaling.original_context_length", fields.integer("context_length")
        ),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=attention * (1.0 + 0.1 * math.log(factor)) if factor > 1 else attention,
    )


def _scaling(fields: ConfigFields) -> tuple[Literal["none", "linear", "yarn"], float]:
    """(type, factor); files from before 2023-10 have only rope.scale_linear."""
    old = fields.optional_number("rope.scale_linear")
    kind = fields.text("rope.scaling.type", "linear" if old is not None else "none")
    match kind:
        case "none":
            return "none", 1.0
        case "linear":
            return "linear", fields.number("rope.scaling.factor", old)
        case "yarn":
            return "yarn", fields.number("rope.scaling.factor")
        case _:
            raise UnsupportedModelError(f"{fields.source}: rope.scaling.type={kind!r} is not implemented")


def _sliding(arch: str, fields: ConfigFields, num_layers: int) -> tuple[int | None, tuple[int, ...]]:
    window = fields.optional_integer("attention.sliding_window")
    if window is None:
        return None, ()
    given = fields.get("attention.sliding_window_pattern")
    if isinstance(given, list | tuple):
        if len(given) != num_layers:
            raise ModelLoadError(
                f"{fields.source}: attention.sliding_window_pattern has "
                f"{len(given)} entries, the model {num_layers} layers"
            )
        return window, tuple(i for i, slides in enumerate(given) if slides)
    match arch:
        case "llama":  # Mistral: every layer
            return window, tuple(range(num_layers))
        case "gemma2" | "gemma3":
            every = fields.integer("attention.sliding_window_pattern", 2 if arch == "gemma2" else 6)
            return window, tuple(i for i in range(num_layers) if (i + 1) % every)
        case _ if window >= fields.integer("context_length"):
            return None, ()
        case _:
            raise UnsupportedModelError(
                f"{fields.source}: attention.sliding_window={window} without a pattern is not implemented"
            )


def _moe(arch: str, fields: ConfigFields, num_layers: int, tensor_names: Collection[str]) -> MoeConfig | None:
    if fields.get("expert_count") in (None, 0):
        return None
    if arch not in ("llama", "qwen3moe"):
        raise UnsupportedModelError(
            f"{fields.source}: expert_count={fields.get('expert_count')} is not implemented"
        )
    size = fields.optional_integer("expert_feed_forward_length")
    moe = MoeConfig(
        num_experts=fields.integer("expert_count"),
        num_experts_per_token=fields.integer("expert_used_count"),
        intermediate_size=size if size is not None else _uniform(fields, "feed_forward_length"),
        normalize_top_k=fields.flag("expert_weights_norm", True),
        sparse_layers=tuple(i for i in range(num_layers) if f"blk.{i}.ffn_gate_inp.weight" in tensor_names),
    )
    if moe.num_experts_per_token > moe.num_experts:
        raise ModelLoadError(
            f"{fields.source}: expert_used_count {moe.num_experts_per_token} "
            f"is above expert_count {moe.num_experts}"
        )
    return moe


def _attention_scale(
    arch: str, fields: ConfigFields, num_layers: int, hidden_per_head: int, head_dim: int
) -> float | None:
    """Gemma's 27B models scale by hidden_size / num_heads; the metadata tells them by their number of layers
    only."""
    if (scale := fields.optional_number("attention.scale")) is not None:
        return scale
    if arch not in _GEMMA_27B_LAYERS:
        return None
    return 1.0 / math.sqrt(hidden_per_head if num_layers == _GEMMA_27B_LAYERS[arch] else head_dim)


def _cap(fields: ConfigFields, name: str, default: float | None) -> float | None:
    if fields.get(name) in (0, 0.0):
        return None
    return fields.number(name, default) if default is not None else fields.optional_number(name)


def _end_tokens(metadata: Mapping[str, object]) -> tuple[int, ...]:
    """End of text, of turn and of message."""
    tokens = ConfigFields(metadata, source="GGUF metadata")
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    return tuple(dict.fromkeys(token for name in names for token in tokens.token_ids(f"tokenizer.ggml.{name}")))
