"""RMS norm, alone or with the residual's sum: one program a row, which is read once and kept in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ramet.kernels.gpu.launch import Launch, next_power_of_two, require_unit_stride

MAX_HIDDEN = 16384
"""A row of more would not fit the registers of a program."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See ``kernels.rms_norm``. Returns a new contiguous tensor."""
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    norm_launch(x, None, weight, eps, (normed, normed)).run()
    return normed


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See ``kernels.add_rms_norm``: (normed, residual + x), new tensors of x's dtype.

    The sum is rounded to x's dtype before it is normed, as the oracle does.
    """
    if residual.shape != x.shape or residual.dtype is not x.dtype:
        raise ValueError(
            f"x is {tuple(x.shape)} {x.dtype}, residual {tuple(residual.shape)} {residual.dtype}: "
            "they must be equal"
        )
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(normed)
    norm_launch(x, residual, weight, eps, (normed, total)).run()
    return normed, total


def norm_launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, outs: tuple[Tensor, Tensor]
) -> Launch:
    """The call behind both ops. outs: contiguous; the second one is written where there is a residual."""
    hidden = x.shape[-1]
    if hidden > MAX_HIDDEN or weight.shape != (hidden,):
        raise ValueError(
            f"rows of {hidden} with a weight of {tuple(weight.shape)}; rows hold up to {MAX_HIDDEN}"
        )
    require_unit_stride("x", x)
    x = _as_blocks(x)
    if residual is not None:
        require_unit_stride("residual", residual)
    residual = x if residual is None else _as_blocks(residual)
    columns = next_power_of_two(hidden)
    return Launch(
        _norm_kernel,
        (x.shape[0] * x.shape[1],),
        {
            "x": x,
            "residual": residual,
            "weight": weight,
            "normed": outs[0],
            "total": outs[1],
            "x_stride_block": x.stride(0),
            "x_stride_row": x.stride(1),
            "residual_stride_block": residual.stride(0),
            "residual_stride_row": residual.stride(1),
            "rows_per_block": x.shape[1],
            "eps": eps,
        },
        {"HAS_RESIDUAL": outs[0] is not outs[1], "HIDDEN": hidden, "COLUMNS": columns},
        max(1, min(16, columns // 512)),
        2,
    )


def _as_blocks(x: Tensor) -> Tensor:
    """[..., hidden] as [blocks, rows, hidden]: no copy of the heads inside a joint projection's output."""
    if x.dim() == 3:
        return x
    return x.reshape(-1, 1, x.shape[-1])


@triton.jit
def _norm_kernel(
    x,
    residual,
    weight,
    normed,
    total,
    x_stride_block,
    x_stride_row,
    residual_stride_block,
    residual_stride_row,
    rows_per_block,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = row // rows_per_block
    inside = row % rows_per_block
    columns = tl.arange(0, COLUMNS)
    mask = columns < HIDDEN
    values = tl.load(x + block * x_stride_block + inside * x_stride_row + columns, mask=mask, other=0.0)
    if HAS_RESIDUAL:
        at = residual + block * residual_stride_block + inside * residual_stride_row + columns
        added = tl.load(at, mask=mask, other=0.0)
        values = (values.to(tl.float32) + added.to(tl.float32)).to(values.dtype)
        tl.store(total + row * HIDDEN + columns, values, mask=mask)
    wide = values.to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(wide * wide, 0) / HIDDEN + eps)
    factors = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(normed + row * HIDDEN + columns, (wide * scale * factors).to(normed.dtype.element_ty), mask=mask)
