"""act(gate) * up in one pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ramet.kernels.gpu.launch import Launch, require_unit_stride

_BLOCK = 1024


def gated_activation(gate_up: Tensor, kind: str) -> Tensor:
    """See ``kernels.gated_activation``. gate_up: [..., 2 * intermediate]."""
    out = torch.empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2), dtype=gate_up.dtype, device=gate_up.device)
    activation_launch(gate_up.reshape(-1, gate_up.shape[-1]), kind, out).run()
    return out


def activation_launch(gate_up: Tensor, kind: str, out: Tensor) -> Launch:
    """gate_up: [rows, 2 * intermediate]; out: contiguous. Raises ValueError for another kind."""
    if kind not in ("silu", "gelu_tanh"):
        raise ValueError(f"unknown activation {kind!r}: silu or gelu_tanh")
    require_unit_stride("gate_up", gate_up)
    width = gate_up.shape[1] // 2
    return Launch(
        _activation_kernel,
        (gate_up.shape[0], -(-width // _BLOCK)),
        {"gate_up": gate_up, "out": out, "stride_row": gate_up.stride(0), "width": width},
        {"IS_SILU": kind == "silu", "BLOCK": _BLOCK},
        4,
        2,
    )


@triton.jit
def _activation_kernel(gate_up, out, stride_row, width, IS_SILU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    gate = tl.load(gate_up + row * stride_row + columns, mask=mask, other=0.0)
    up = tl.load(gate_up + row * stride_row + width + columns, mask=mask, other=0.0)
    x = gate.to(tl.float32)
    # exp(88) is the last below fp32's end.
    if IS_SILU:
        activated = x / (1.0 + tl.exp(tl.minimum(-x, 88.0)))
    else:
        # x * (1 + tanh(y)) / 2 is x * sigmoid(2 y), with y = sqrt(2 / pi) (x + 0.044715 x^3).
        activated = x / (1.0 + tl.exp(tl.minimum(-1.5957691216057308 * (x + 0.044715 * x * x * x), 88.0)))
    # Rounded before the product, as torch does between its two calls.
    product = activated.to(gate.dtype).to(tl.float32) * up.to(tl.float32)
    tl.store(out + row * width + columns, product.to(out.dtype.element_ty), mask=mask)
