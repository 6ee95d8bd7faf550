"""Triton kernels for GPUs. Importing this package imports triton, which an engine on a CPU does not."""

from ramet.kernels.gpu.activation import gated_activation
from ramet.kernels.gpu.experts import ExpertWeights, fused_experts
from ramet.kernels.gpu.linear_int8 import linear_int8
from ramet.kernels.gpu.linear_weight_only import linear_e4m3, linear_int4
from ramet.kernels.gpu.rope import apply_rope, rope_write_kv
from ramet.kernels.gpu.row_norm import MAX_HIDDEN, add_rms_norm, rms_norm
from ramet.kernels.gpu.sampling import MAX_VOCAB, DrawParams, apply_bitmask, draw_tokens

__all__ = [
    "MAX_HIDDEN",
    "MAX_VOCAB",
    "DrawParams",
    "ExpertWeights",
    "add_rms_norm",
    "apply_bitmask",
    "apply_rope",
    "draw_tokens",
    "fused_experts",
    "gated_activation",
    "linear_e4m3",
    "linear_int4",
    "linear_int8",
    "rms_norm",
    "rope_write_kv",
]
