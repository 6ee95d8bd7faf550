"""ModelConfig from a Hugging Face config.json."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from ramet.runtime.models.config import ModelConfig, MoeConfig
from ramet.runtime.models.config_fields import ConfigFields
from ramet.runtime.models.rope_config import ropes_from_hf
from ramet.runtime.protocol import ModelLoadError, UnsupportedModelError


class _Variant(TypedDict, total=False):
    """The ModelConfig fields in which architectures differ."""

    sliding_window: int | None
    sliding_layers: tuple[int, ...]
    attention_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    attention_scale: float | None
    attention_softcap: float | None
    logit_softcap: float | None
    norm_plus_one: bool
    sandwich_norms: bool
    embedding_scale: float | None
    moe: MoeConfig | None


@dataclass(frozen=True, slots=True)
class _Family:
    """How one architecture reads its config.json; the defaults are those of its transformers config class."""

    model_type: str
    variant: Callable[[ConfigFields], _Variant]
    activation_field: str = "hidden_act"
    activation: str = "silu"
    num_kv_heads: int | None = None
    """None: as many as query heads."""
    head_dim: int | None = None
    """None: hidden_size / num_heads."""
    tie_embeddings: bool = False
    theta: float = 10000.0
    local_theta: float | None = None
    norm_eps: float = 1e-6
    integers: Mapping[str, int] = field(default_factory=dict)
    """Defaults of the size fields, for nested configs that are written without them."""


def config_from_hf(d: Mapping[str, object]) -> ModelConfig:
    """Read a config.json.

    Both layouts of rope parameters are read (see ``rope_config``). Of a multimodal checkpoint the text decoder
    is described, with ``text_part_of`` set. Raises UnsupportedModelError, with the name of the field, for an
    architecture or a feature that is not implemented, and ModelLoadError for fields that are missing or wrong.
    """
    architecture, fields, parent = _text_part(d)
    family = _FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedModelError(
            f"architecture {architecture!r} is not implemented (implemented: {', '.join(sorted(_FAMILIES))})"
        )
    _refuse_features(fields)
    num_heads = fields.integer("num_attention_heads", family.integers.get("num_attention_heads"))
    hidden_size = fields.integer("hidden_size")
    num_kv_heads = fields.integer("num_key_value_heads", family.num_kv_heads or num_heads)
    if num_heads % num_kv_heads:
        raise ModelLoadError(
            f"{fields.source}: num_attention_heads={num_heads} is "
            f"not a multiple of num_key_value_heads={num_kv_heads}"
        )
    rope, local_rope = ropes_from_hf(fields, theta=family.theta, local_theta=family.local_theta)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size", family.integers.get("vocab_size")),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(fields, family, hidden_size, num_heads),
        max_positions=fields.integer("max_position_embeddings", family.integers.get("max_position_embeddings")),
        norm_eps=fields.number("rms_norm_eps", family.norm_eps),
        rope=rope,
        local_rope=local_rope,
        activation=_activation(fields, family),
        tie_embeddings=fields.flag("tie_word_embeddings", family.tie_embeddings),
        bos_token_id=fields.token_id("bos_token_id"),
        eos_token_ids=fields.token_ids("eos_token_id"),
        checkpoint_dtype=_checkpoint_dtype(fields),
        text_part_of=parent,
        **family.variant(fields),
    )


def architecture_of(d: Mapping[str, object]) -> str:
    """The architecture that a config.json names, of its text part where that can be run alone."""
    return _text_part(d)[0]


def _text_part(d: Mapping[str, object]) -> tuple[str, ConfigFields, str | None]:
    """(architecture, its fields, the multimodal class around it)."""
    named = d.get("architectures")
    model_type = d.get("model_type")
    outer = named[0] if isinstance(named, list) and named else _BY_MODEL_TYPE.get(str(model_type))
    if not isinstance(outer, str):
        raise ModelLoadError(
            f"config.json names no architecture (architectures={named!r}, model_type={model_type!r})"
        )
    if outer not in _WITH_TEXT_PART:
        return outer, ConfigFields(d, source=f"config.json of {outer}"), None
    text = d.get("text_config")
    if not isinstance(text, Mapping):
        raise ModelLoadError(f"config.json of {outer} has no text_config")
    inner = _BY_MODEL_TYPE.get(str(text.get("model_type")))
    if inner is None:
        raise UnsupportedModelError(
            f"config.json of {outer}: text_config.model_type={text.get('model_type')!r} is not implemented"
        )
    inherited = {name: d[name] for name in _INHERITED if d.get(name) is not None and text.get(name) is None}
    return inner, ConfigFields({**text, **inherited}, source=f"config.json of {outer}, text_config"), outer


def _refuse_features(fields: ConfigFields) -> None:
    for name, (neutral, feature) in _NOT_IMPLEMENTED.items():
        fields.refuse_unless(name, neutral, feature)


def _head_dim(fields: ConfigFields, family: _Family, hidden_size: int, num_heads: int) -> int:
    head_dim = fields.optional_integer("head_dim") or family.head_dim
    if head_dim is None:
        if hidden_size % num_heads:
            raise ModelLoadError(
                f"{fields.source}: hidden_size={hidden_size} is "
                f"not a multiple of num_attention_heads={num_heads}"
            )
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise UnsupportedModelError(f"{fields.source}: head_dim={head_dim} (an odd size) is not implemented")
    return head_dim


def _activation(fields: ConfigFields, family: _Family) -> Literal["silu", "gelu_tanh"]:
    """Gemma 2's older configs say hidden_act where newer ones say hidden_activation."""
    other = fields.text("hidden_act", family.activation)
    name = fields.text(family.activation_field, other)
    match name:
        case "silu" | "swish":
            return "silu"
        case "gelu_pytorch_tanh":
            return "gelu_tanh"
        case _:
            raise UnsupportedModelError(
                f"{fields.source}: activation {family.activation_field}={name!r} is not implemented "
                "(implemented: silu, gelu_pytorch_tanh)"
            )


def _checkpoint_dtype(fields: ConfigFields) -> Literal["float32", "float16", "bfloat16"] | None:
    value = fields.get("dtype") or fields.get("torch_dtype")
    match value:
        case None:
            return None
        case "float32" | "torch.float32":
            return "float32"
        case "float16" | "torch.float16":
            return "float16"
        case "bfloat16" | "torch.bfloat16":
            return "bfloat16"
        case _:
            raise UnsupportedModelError(f"{fields.source}: dtype={value!r} is not implemented")


def _llama(fields: ConfigFields) -> _Variant:
    bias = fields.flag("attention_bias", False)
    return {
        "attention_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": fields.flag("mlp_bias", False),
    }


def _mistral(fields: ConfigFields) -> _Variant:
    """Every layer slides where there is a window; per-layer types belong to other architectures (Ministral)."""
    fields.refuse_unless("attention_bias", (False,), "biases of the attention projections")
    window = fields.optional_integer("sliding_window")
    num_layers = fields.integer("num_hidden_layers")
    layers = tuple(range(num_layers)) if window is not None else ()
    if fields.get("layer_types") is not None and _sliding_layers(fields) != layers:
        raise UnsupportedModelError(
            f"{fields.source}: layer_types that differ from sliding_window are not implemented"
        )
    return {"sliding_window": window, "sliding_layers": layers}


def _mixtral(fields: ConfigFields) -> _Variant:
    moe = MoeConfig(
        num_experts=fields.integer("num_local_experts", fields.optional_integer("num_experts") or 8),
        num_experts_per_token=fields.integer("num_experts_per_tok", 2),
        intermediate_size=fields.integer("intermediate_size"),
        normalize_top_k=True,
        sparse_layers=tuple(range(fields.integer("num_hidden_layers"))),
    )
    return {**_mistral(fields), "moe": _checked_moe(fields, moe)}


def _qwen2(fields: ConfigFields) -> _Variant:
    return {"attention_bias": True, **_optional_window(fields)}


def _qwen3(fields: ConfigFields) -> _Variant:
    bias = fields.flag("attention_bias", False)
    return {"attention_bias": bias, "attention_output_bias": bias, "qk_norm": True, **_optional_window(fields)}


def _qwen3_moe(fields: ConfigFields) -> _Variant:
    bias = fields.flag("attention_bias", False)
    num_layers = fields.integer("num_hidden_layers")
    slides = fields.flag("use_sliding_window", False) and fields.get("sliding_window") is not None
    step = fields.integer("decoder_sparse_step", 1)
    dense = fields.get("mlp_only_layers") or []
    if not isinstance(dense, list | tuple):
        raise ModelLoadError(f"{fields.source}: mlp_only_layers is {dense!r}; expected a list of layer numbers")
    moe = MoeConfig(
        num_experts=fields.integer("num_experts", fields.optional_integer("num_local_experts") or 128),
        num_experts_per_token=fields.integer("num_experts_per_tok", 8),
        intermediate_size=fields.integer("moe_intermediate_size", 768),
        normalize_top_k=fields.flag("norm_topk_prob", False),
        sparse_layers=tuple(i for i in range(num_layers) if i not in dense and (i + 1) % step == 0),
    )
    return {
        "attention_bias": bias,
        "attention_output_bias": bias,
        "qk_norm": True,
        "sliding_window": fields.integer("sliding_window") if slides else None,
        "sliding_layers": tuple(range(num_layers)) if slides else (),
        "moe": _checked_moe(fields, moe),
    }


def _gemma(
    fields: ConfigFields, *, pattern: int, attention_cap: float | None, logit_cap: float | None
) -> _Variant:
    """Gemma 2 and 3. attention_cap, logit_cap: of a config that does not speak of them; null switches a cap
    off."""
    fields.refuse_unless("use_bidirectional_attention", (False,), "attention to later tokens")
    bias = fields.flag("attention_bias", False)
    window = fields.optional_integer("sliding_window") if fields.mentions("sliding_window") else 4096
    every = fields.integer(
        "sliding_window_pattern", fields.optional_integer("_sliding_window_pattern") or pattern
    )
    if fields.get("layer_types") is not None:
        layers = _sliding_layers(fields)
    else:
        layers = tuple(i for i in range(fields.integer("num_hidden_layers")) if (i + 1) % every)
    return {
        "attention_bias": bias,
        "attention_output_bias": bias,
        "sliding_window": window,
        "sliding_layers": layers,
        "attention_scale": fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        "attention_softcap": _cap(fields, "attn_logit_softcapping", attention_cap),
        "logit_softcap": _cap(fields, "final_logit_softcapping", logit_cap),
        "norm_plus_one": True,
        "sandwich_norms": True,
        "embedding_scale": fields.integer("hidden_size") ** 0.5,
    }


def _gemma2(fields: ConfigFields) -> _Variant:
    return _gemma(fields, pattern=2, attention_cap=50.0, logit_cap=30.0)


def _gemma3(fields: ConfigFields) -> _Variant:
    return {**_gemma(fields, pattern=6, attention_cap=None, logit_cap=None), "qk_norm": True}


def _cap(fields: ConfigFields, name: str, default: float | None) -> float | None:
    return fields.optional_number(name) if fields.mentions(name) else default


def _optional_window(fields: ConfigFields) -> _Variant:
    """Qwen 2 and 3: a window only where use_sliding_window says so."""
    if not fields.flag("use_sliding_window", False):
        if fields.get("layer_types") is not None and _sliding_layers(fields):
            raise UnsupportedModelError(
                f"{fields.source}: layer_types with sliding_attention need use_sliding_window=true"
            )
        return {}
    window = fields.optional_integer("sliding_window") if fields.mentions("sliding_window") else 4096
    if window is None:
        return {}
    if fields.get("layer_types") is not None:
        return {"sliding_window": window, "sliding_layers": _sliding_layers(fields)}
    first = fields.get("max_window_layers")
    if first is None:
        first = 28
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise ModelLoadError(f"{fields.source}: max_window_layers is {first!r}; expected a number of layers")
    return {
        "sliding_window": window,
        "sliding_layers": tuple(range(first, fields.integer("num_hidden_layers"))),
    }


def _sliding_layers(fields: ConfigFields) -> tuple[int, ...]:
    types = fields.get("layer_types")
    num_layers = fields.integer("num_hidden_layers")
    if not isinstance(types, list | tuple) or len(types) != num_layers:
        raise ModelLoadError(
            f"{fields.source}: layer_types is {types!r}; expected one for each of {num_layers} layers"
        )
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(f"{fields.source}: layer type {kind!r} is not implemented")
    return tuple(i for i, kind in enumerate(types) if kind == "sliding_attention")


def _checked_moe(fields: ConfigFields, moe: MoeConfig) -> MoeConfig:
    if moe.num_experts_per_token > moe.num_experts:
        raise ModelLoadError(
            f"{fields.source}: num_experts_per_tok={moe.num_experts_per_token} "
            f"is above num_experts={moe.num_experts}"
        )
    return moe


_FAMILIES = {
    "LlamaForCausalLM": _Family("llama", _llama, integers={"max_position_embeddings": 2048}),
    "MistralForCausalLM": _Family(
        "mistral", _mistral, num_kv_heads=8, integers={"max_position_embeddings": 131072}
    ),
    "Qwen2ForCausalLM": _Family("qwen2", _qwen2, integers={"max_position_embeddings": 32768}),
    "Qwen3ForCausalLM": _Family("qwen3", _qwen3, head_dim=128, integers={"max_position_embeddings": 32768}),
    "Gemma2ForCausalLM": _Family(
        "gemma2",
        _gemma2,
        activation_field="hidden_activation",
        activation="gelu_pytorch_tanh",
        num_kv_heads=4,
        head_dim=256,
        tie_embeddings=True,
        integers={"max_position_embeddings": 8192, "num_attention_heads": 8, "vocab_size": 256000},
    ),
    "Gemma3ForCausalLM": _Family(
        "gemma3_text",
        _gemma3,
        activation_field="hidden_activation",
        activation="gelu_pytorch_tanh",
        num_kv_heads=4,
        head_dim=256,
        tie_embeddings=True,
        theta=1_000_000.0,
        local_theta=10_000.0,
        integers={"max_position_embeddings": 131072, "num_attention_heads": 8, "vocab_size": 262208},
    ),
    "MixtralForCausalLM": _Family(
        "mixtral",
        _mixtral,
        num_kv_heads=8,
        theta=1_000_000.0,
        norm_eps=1e-5,
        integers={"max_position_embeddings": 131072},
    ),
    "Qwen3MoeForCausalLM": _Family(
        "qwen3_moe", _qwen3_moe, num_kv_heads=4, integers={"max_position_embeddings": 32768}
    ),
}
IMPLEMENTED_ARCHITECTURES = frozenset(_FAMILIES)
_BY_MODEL_TYPE = {family.model_type: name for name, family in _FAMILIES.items()}
_WITH_TEXT_PART = frozenset(
    {"Gemma3ForConditionalGeneration", "LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration"}
)
_INHERITED = (
    "tie_word_embeddings",
    "dtype",
    "torch_dtype",
    "bos_token_id",
    "eos_token_id",
    "quantization_config",
)
_NOT_IMPLEMENTED: dict[str, tuple[tuple[object, ...], str]] = {
    # Features of related architectures that would change the result: name -> (values without effect, feature).
    "quantization_config": ((), "weights that are published quantised"),
    "is_encoder_decoder": ((False,), "an encoder and a decoder"),
    "is_causal": ((True,), "attention to later tokens"),
    "alibi": ((False,), "attention biases by distance"),
    "attention_chunk_size": ((), "chunked attention"),
    "attention_multiplier": ((), "Granite's attention scale"),
    "attention_sinks": ((False,), "attention sinks"),
    "attn_temperature_tuning": ((False, 0), "temperature by position"),
    "clip_qkv": ((), "clipped projections"),
    "embedding_multiplier": ((1, 1.0), "scaled embeddings"),
    "logit_scale": ((1, 1.0), "scaled logits"),
    "logits_scaling": ((1, 1.0), "scaled logits"),
    "no_rope_layers": (([],), "layers without positions"),
    "residual_multiplier": ((1, 1.0), "scaled residuals"),
    "cross_attention_layers": (([],), "cross attention"),
    "num_shared_experts": ((0,), "shared experts"),
    "n_shared_experts": ((0,), "shared experts"),
}
