"""Checkpoint tensors to the weights that DecoderModel computes with.

Input names are those of Hugging Face checkpoints. Experts may come one by one
(``mlp.experts.3.gate_proj.weight``, or Mixtral's ``block_sparse_moe.experts.3.w1.weight``), stacked
(``mlp.experts.gate_proj.weight``, [num_experts, ...], as GGUF files hold them), or stacked and fused
(``mlp.experts.gate_up_proj`` and ``mlp.experts.down_proj``, as transformers 5 holds them in memory).

Output names, all in one flat dict; ``*`` is ``.weight``, with ``.scale`` where quantised and ``.bias`` where
the model has one:

    embedding*  lm_head* (untied only)  final_norm.weight  rope_factors.weight (GGUF's llama3 only)
    layers.{i}.qkv*  .attention_output*  .attention_norm.weight  .mlp_norm.weight
    layers.{i}.gate_up*  .down*, or .router*  .experts.gate_up*  .experts.down*
    layers.{i}.q_norm.weight  .k_norm.weight  .after_attention_norm.weight  .after_mlp_norm.weight
"""

import re
from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from ramet.kernels import INT4_GROUP, quantize_int4, quantize_rows_e4m3, quantize_rows_int8
from ramet.runtime.layers.linear import quantize_rows_int16
from ramet.runtime.models.config import ModelConfig, MoeConfig
from ramet.runtime.protocol import ModelLoadError

Quantization = Literal["none", "int8", "fp8", "int4"]


def prepare_weights(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    *,
    quantization: Quantization,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Check, fuse, fold and quantise a checkpoint's tensors.

    dtype: of the activations, and of every weight that is not quantised; norms are kept in fp32, where Gemma's
    1 + weight loses nothing. With "int8" the projections and the output head become int8 with one fp32 scale an
    output channel; a tied embedding table shares the head's rows, an untied one stays in dtype; the routers of
    experts become int16 (see ``Int16Linear``). With "fp8" and "int4" the projections become e4m3 codes with a
    scale an output channel, or digits with a scale for 32 weights (``kernels.linear_int4``); table, head and
    routers stay in dtype, save that with "int4" in fp32 the head becomes int8.

    tensors may load lazily: each is read once. Where nothing had to be changed the results share memory with
    it. Raises ModelLoadError naming the tensor, with the shape expected and found, where one is missing,
    misshaped or not known to the architecture. Tensors that are known to carry no weights are passed over.
    """
    if quantization not in get_args(Quantization):
        raise ModelLoadError(
            f"quantization {quantization!r} is not implemented; use {', '.join(get_args(Quantization))}"
        )
    if quantization == "int4" and config.moe is not None:
        raise ModelLoadError("quantization 'int4' is not there for models with experts; use 'fp8' or 'int8'")
    source = _Checkpoint(config, tensors)
    out = _Prepared(quantization, dtype)
    _prepare_ends(config, source, out)
    for layer in range(config.num_layers):
        _prepare_attention(config, source, out, layer)
        _prepare_norms(config, source, out, layer)
        if config.moe is not None and layer in config.moe.sparse_layers:
            _prepare_experts(config, config.moe, source, out, layer)
        else:
            _prepare_mlp(config, source, out, layer)
    source.check_all_used()
    return out.weights


class _Checkpoint:
    """The input tensors under canonical names, each taken once."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._names = _canonical_names(config, tensors)
        self._unused = {name for name in self._names if not _carries_no_weights(config, name)}
        self._architecture = config.architecture

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def take(self, name: str, *shape: int) -> Tensor:
        if name not in self._names:
            raise ModelLoadError(
                f"the checkpoint lacks {name}, which {self._architecture} needs with shape {list(shape)}"
            )
        self._unused.discard(name)
        tensor = self._tensors[self._names[name]]
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(
                f"{self._names[name]} has shape {list(tensor.shape)}; "
                f"config.json of {self._architecture} asks for {list(shape)}"
            )
        if not tensor.is_floating_point():
            raise ModelLoadError(
                f"{self._names[name]} has dtype {tensor.dtype}; expected floating-point weights"
            )
        return tensor

    def check_all_used(self) -> None:
        if self._unused:
            some = ", ".join(sorted(self._names[name] for name in self._unused)[:3])
            raise ModelLoadError(
                f"the checkpoint has {len(self._unused)} tensors unknown to {self._architecture}: {some}"
                f"{', ...' if len(self._unused) > 3 else ''}"
            )


class _Prepared:
    """The weights so far."""

    def __init__(self, quantization: Quantization, dtype: torch.dtype) -> None:
        self.weights: dict[str, Tensor] = {}
        self._quantization = quantization
        self._int8 = quantization == "int8"
        self._dtype = dtype

    def norm(self, name: str, weight: Tensor, plus_one: bool) -> None:
        weight = weight.float()
        self.weights[f"{name}.weight"] = weight + 1.0 if plus_one else weight

    def linear(self, name: str, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight: [..., out_features, in_features]."""
        rows = weight.reshape(-1, weight.shape[-1])
        match self._quantization:
            case "int8":
                stored, scale = quantize_rows_int8(rows)
                self.weights[f"{name}.scale"] = scale.view(weight.shape[:-1])
            case "fp8":
                stored, scale = quantize_rows_e4m3(rows)
                self.weights[f"{name}.scale"] = scale.view(weight.shape[:-1])
            case "int4":
                if rows.shape[1] % INT4_GROUP:
                    raise ModelLoadError(
                        f"{name} has rows of {rows.shape[1]} weights, and int4 takes a multiple of "
                        f"{INT4_GROUP}; use quantization 'fp8' or 'int8'"
                    )
                stored, scale = quantize_int4(rows)
                self.weights[f"{name}.scale"] = scale
            case _:
                stored = rows.to(self._dtype).contiguous()
        self.weights[f"{name}.weight"] = stored.view(*weight.shape[:-1], stored.shape[-1])
        if bias is not None:
            self.weights[f"{name}.bias"] = bias.to(self._dtype).contiguous()

    def end(self, name: str, weight: Tensor) -> None:
        """The output head, and the table that shares its rows. Beside fp8 or int4 it stays in the activations'
        dtype; not in fp32, where reading it beside int4 would take longer than all the others."""
        if self._int8 or (self._quantization == "int4" and self._dtype is torch.float32):
            self.weights[f"{name}.weight"], self.weights[f"{name}.scale"] = quantize_rows_int8(weight)
        else:
            self.plain(name, weight)

    def router(self, name: str, weight: Tensor) -> None:
        if self._int8:
            self.weights[f"{name}.weight"], self.weights[f"{name}.scale"] = quantize_rows_int16(weight)
        else:
            self.plain(name, weight)

    def plain(self, name: str, weight: Tensor) -> None:
        self.weights[f"{name}.weight"] = weight.to(self._dtype).contiguous()


def _prepare_ends(config: ModelConfig, source: _Checkpoint, out: _Prepared) -> None:
    table_shape = (config.vocab_size, config.hidden_size)
    table = source.take("model.embed_tokens.weight", *table_shape)
    head = None
    if not config.tie_embeddings or "lm_head.weight" in source:
        head = source.take("lm_head.weight", *table_shape)
    # A checkpoint may say "tied" and yet hold a head of its own; transformers then uses the head, and so do we.
    if head is None or (config.tie_embeddings and torch.equal(head, table)):
        out.end("embedding", table)
    else:
        out.plain("embedding", table)
        out.end("lm_head", head)
    out.norm("final_norm", source.take("model.norm.weight", config.hidden_size), config.norm_plus_one)
    if config.rope.frequency_factors:
        rotary_dim = config.rope.rotary_dim or config.head_dim
        out.weights["rope_factors.weight"] = source.take("rope_freqs.weight", rotary_dim // 2).float()


def _prepare_attention(config: ModelConfig, source: _Checkpoint, out: _Prepared, layer: int) -> None:
    prefix = f"model.layers.{layer}.self_attn"
    sizes = {
        "q_proj": config.num_heads * config.head_dim,
        "k_proj": config.num_kv_heads * config.head_dim,
        "v_proj": config.num_kv_heads * config.head_dim,
    }
    weight = [source.take(f"{prefix}.{name}.weight", size, config.hidden_size) for name, size in sizes.items()]
    bias = [source.take(f"{prefix}.{name}.bias", size) for name, size in sizes.items() if config.attention_bias]
    out.linear(f"layers.{layer}.qkv", torch.cat(weight), torch.cat(bias) if bias else None)
    out.linear(
        f"layers.{layer}.attention_output",
        source.take(f"{prefix}.o_proj.weight", config.hidden_size, sizes["q_proj"]),
        source.take(f"{prefix}.o_proj.bias", config.hidden_size) if config.attention_output_bias else None,
    )
    if config.qk_norm:
        for name in ("q_norm", "k_norm"):
            norm = source.take(f"{prefix}.{name}.weight", config.head_dim)
            out.norm(f"layers.{layer}.{name}", norm, config.norm_plus_one)


def _prepare_norms(config: ModelConfig, source: _Checkpoint, out: _Prepared, layer: int) -> None:
    names = {"attention_norm": "input_layernorm"}
    if config.sandwich_norms:
        names |= {
            "after_attention_norm": "post_attention_layernorm",
            "mlp_norm": "pre_feedforward_layernorm",
            "after_mlp_norm": "post_feedforward_layernorm",
        }
    else:
        names |= {"mlp_norm": "post_attention_layernorm"}
    for ours, theirs in names.items():
        weight = source.take(f"model.layers.{layer}.{theirs}.weight", config.hidden_size)
        out.norm(f"layers.{layer}.{ours}", weight, config.norm_plus_one)


def _prepare_mlp(config: ModelConfig, source: _Checkpoint, out: _Prepared, layer: int) -> None:
    prefix = f"model.layers.{layer}.mlp"
    inner, hidden = config.intermediate_size, config.hidden_size
    weight = [source.take(f"{prefix}.{name}.weight", inner, hidden) for name in ("gate_proj", "up_proj")]
    bias = [source.take(f"{prefix}.{name}.bias", inner) for name in ("gate_proj", "up_proj") if config.mlp_bias]
    out.linear(f"layers.{layer}.gate_up", torch.cat(weight), torch.cat(bias) if bias else None)
    out.linear(
        f"layers.{layer}.down",
        source.take(f"{prefix}.down_proj.weight", hidden, inner),
        source.take(f"{prefix}.down_proj.bias", hidden) if config.mlp_bias else None,
    )


def _prepare_experts(
    config: ModelConfig, moe: MoeConfig, source: _Checkpoint, out: _Prepared, layer: int
) -> None:
    prefix = f"model.layers.{layer}.mlp"
    count, inner, hidden = moe.num_experts, moe.intermediate_size, config.hidden_size
    out.router(f"layers.{layer}.router", source.take(f"{prefix}.gate.weight", count, hidden))
    experts = f"{prefix}.experts"
    if f"{experts}.gate_up_proj" in source:
        gate_up = source.take(f"{experts}.gate_up_proj", count, 2 * inner, hidden)
        down = source.take(f"{experts}.down_proj", count, hidden, inner)
    else:
        gate = _stacked(source, experts, "gate_proj", (count, inner, hidden))
        up = _stacked(source, experts, "up_proj", (count, inner, hidden))
        gate_up = torch.cat((gate, up), dim=1)
        down = _stacked(source, experts, "down_proj", (count, hidden, inner))
    out.linear(f"layers.{layer}.experts.gate_up", gate_up)
    out.linear(f"layers.{layer}.experts.down", down)


def _stacked(source: _Checkpoint, experts: str, name: str, shape: tuple[int, int, int]) -> Tensor:
    if f"{experts}.{name}.weight" in source:
        return source.take(f"{experts}.{name}.weight", *shape)
    return torch.stack([source.take(f"{experts}.{i}.{name}.weight", *shape[1:]) for i in range(shape[0])])


_MIXTRAL_NAMES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
_MIXTRAL_EXPERT = re.compile(r"(\.experts\.\d+\.)(w[123])(\.weight)$")
_OTHER_PARTS = (
    "vision_tower.",
    "model.vision_tower.",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
)


def _canonical_names(config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Canonical name -> name in the checkpoint."""
    without_head = "embed_tokens.weight" in tensors  # saved from the model without its output head's class
    names: dict[str, str] = {}
    for original in tensors:
        name = original
        if config.text_part_of is not None:
            name = re.sub(r"^(language_model\.model\.|model\.language_model\.)", "model.", name)
            name = name.removeprefix("language_model.")
        elif without_head and name != "lm_head.weight":
            name = "model." + name
        name = name.replace(".block_sparse_moe.", ".mlp.")
        name = _MIXTRAL_EXPERT.sub(lambda m: m[1] + _MIXTRAL_NAMES[m[2]] + m[3], name)
        names[name] = original
    return names


def _carries_no_weights(config: ModelConfig, name: str) -> bool:
    """Buffers that old versions of transformers saved, and the parts beside a multimodal model's text
    decoder."""
    return name.endswith(".rotary_emb.inv_freq") or (
        config.text_part_of is not None and name.startswith(_OTHER_PARTS)
    )
