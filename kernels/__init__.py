"""One signature per op, dispatched by device. The meaning of each op is its oracle in ``reference.py``."""

from ramet.kernels.dispatch import (
    add_rms_norm,
    apply_bitmask,
    apply_rope,
    fused_experts,
    gated_activation,
    has_gpu_kernels,
    linear_e4m3,
    linear_int4,
    prepare_int4_weight,
    rms_norm,
)
from ramet.kernels.int8 import Int8Weight, PreparedInt8Weight, linear_int8, prepare_int8_weight
from ramet.kernels.reference import (
    INT4_GROUP,
    attention,
    dequantize_int4,
    quantize_int4,
    quantize_rows_e4m3,
    quantize_rows_int8,
)

__all__ = [
    "INT4_GROUP",
    "Int8Weight",
    "PreparedInt8Weight",
    "add_rms_norm",
    "apply_bitmask",
    "apply_rope",
    "attention",
    "dequantize_int4",
    "fused_experts",
    "gated_activation",
    "has_gpu_kernels",
    "linear_e4m3",
    "linear_int4",
    "linear_int8",
    "prepare_int4_weight",
    "prepare_int8_weight",
    "quantize_int4",
    "quantize_rows_e4m3",
    "quantize_rows_int8",
    "rms_norm",
]
