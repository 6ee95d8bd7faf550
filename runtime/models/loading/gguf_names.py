"""From GGUF's tensor names and conventions to those of Hugging Face checkpoints.

llama.cpp's converter renames every tensor and changes three things. It permutes the rows of q and k for its
"llama" architecture (rope there turns neighbouring pairs instead of halves): undone here. It stacks the
experts of a layer into one tensor: ``prepare_weights`` takes them so. It adds one to Gemma's norm weights:
``config_from_gguf`` says so (``norm_plus_one`` is False).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ramet.runtime.models.config import ModelConfig
from ramet.runtime.protocol.errors import ModelLoadError, UnsupportedModelError

Conversion = Literal["none", "unpermute_q", "unpermute_k"]


@dataclass(frozen=True, slots=True)
class TensorRecipe:
    """How one Hugging Face tensor comes from the file."""

    gguf_name: str
    conversion: Conversion = "none"


_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    # Llama 3.1's frequency factors as a tensor: RopeConfig.frequency_factors has prepare_weights look for it.
    "rope_freqs.weight": "rope_freqs.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_GEMMA_LAYER = _LAYER | {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERT = {"ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj"}
"""Files from before the experts were stacked have a tensor for each: blk.0.ffn_up.3.weight."""
_LAYER_NAME = re.compile(
    r"blk\.(?P<layer>0|[1-9]\d*)\.(?P<part>[a-z_]+)(?:\.(?P<expert>0|[1-9]\d*))?\.(?P<kind>weight|bias)", re.A
)


def tensor_recipes(architecture: str, gguf_names: Iterable[str]) -> dict[str, TensorRecipe]:
    """Hugging Face tensor name -> recipe.

    architecture is the file's ``general.architecture``. Raises UnsupportedModelError that names a tensor for
    which there is no place: it belongs to a feature that is not implemented, and leaving it out would change
    the model.
    """
    recipes: dict[str, TensorRecipe] = {}
    for gguf_name in gguf_names:
        name = _hf_name(gguf_name, architecture)
        if name is None:
            raise UnsupportedModelError(
                f"tensor {gguf_name!r} has no place in a {architecture!r} model as implemented here: "
                "the model has a feature that is not supported"
            )
        recipes[name] = TensorRecipe(gguf_name, _conversion(gguf_name, architecture))
    return recipes


def apply_conversion(tensor: Tensor, conversion: Conversion, config: ModelConfig) -> Tensor:
    """The tensor as the Hugging Face checkpoint has it."""
    match conversion:
        case "none":
            return tensor
        case "unpermute_q":
            return _unpermute(tensor, config.num_heads)
        case "unpermute_k":
            return _unpermute(tensor, config.num_kv_heads)


def _hf_name(gguf_name: str, architecture: str) -> str | None:
    if gguf_name in _TOP_LEVEL:
        return _TOP_LEVEL[gguf_name]
    match = _LAYER_NAME.fullmatch(gguf_name)
    if match is None:
        return None
    prefix = f"model.layers.{int(match['layer'])}."
    if match["expert"] is not None:
        expert = _EXPERT.get(match["part"])
        return (
            None if expert is None else f"{prefix}mlp.experts.{int(match['expert'])}.{expert}.{match['kind']}"
        )
    part = (_GEMMA_LAYER if architecture.startswith("gemma") else _LAYER).get(match["part"])
    return None if part is None else f"{prefix}{part}.{match['kind']}"


def _conversion(gguf_name: str, architecture: str) -> Conversion:
    match = _LAYER_NAME.fullmatch(gguf_name)
    if architecture == "llama" and match is not None:
        if match["part"] == "attn_q":
            return "unpermute_q"
        if match["part"] == "attn_k":
            return "unpermute_k"
    return "none"


def _unpermute(tensor: Tensor, num_heads: int) -> Tensor:
    """Rows in each head from (pair, half) to (half, pair) order. tensor: [num_heads * head_dim, ...]."""
    rows = tensor.shape[0]
    if rows % (2 * num_heads):
        raise ModelLoadError(f"{rows} rows of q or k do not divide into {num_heads} heads of even size")
    paired = tensor.reshape(num_heads, rows // num_heads // 2, 2, *tensor.shape[1:])
    return paired.transpose(1, 2).reshape(tensor.shape)
