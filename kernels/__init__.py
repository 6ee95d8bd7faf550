"""One signature per op, dispatched by device. The meaning of each op is its oracle in ``reference.py``."""

from ramet.kernels.reference import (
    add_rms_norm,
    apply_rope,
    attention,
    gated_activation,
    linear_int8,
    quantize_rows_int8,
    rms_norm,
)

__all__ = [
    "add_rms_norm",
    "apply_rope",
    "attention",
    "gated_activation",
    "linear_int8",
    "quantize_rows_int8",
    "rms_norm",
]
