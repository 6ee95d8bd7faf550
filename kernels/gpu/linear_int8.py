"""Linear layers with int8 weights on the tensor cores' integer products: exact sums, and so the same bits
whatever the tile, the batch or the device."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ramet.kernels.gpu.launch import Launch, next_power_of_two, require_unit_stride

MAX_DEPTH = 65536
"""Digits of a longer row would not fit a program's registers; and 65,536 * 127 * 127 < 2^31 holds every sum."""
_TOKENS, _CHANNELS, _DEPTH = 64, 64, 64
"""A program's tile. Both digits of a token are two sums over the same weights, which are read once."""


def linear_int8(x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """See ``kernels.linear_int8``, for a plain weight: [num_tokens, n] of x's dtype.

    x: [num_tokens, k]; weight: [n, k] int8, contiguous; weight_scale: [n] fp32; bias: [n] or None.
    """
    if weight.dim() != 2 or weight.dtype is not torch.int8 or x.shape[1:] != weight.shape[1:]:
        raise ValueError(
            f"x is {tuple(x.shape)}, weight {tuple(weight.shape)} {weight.dtype}: [m, k] and int8 [n, k]"
        )
    if weight.shape[1] > MAX_DEPTH:
        raise ValueError(f"rows of {weight.shape[1]}: the kernel holds up to {MAX_DEPTH}")
    digits = torch.empty((2, *x.shape), dtype=torch.int8, device=x.device)
    scale = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    digits_launch(x, digits, scale).run()
    product_launch((digits, scale), (weight, weight_scale), bias, out).run()
    return out


def digits_launch(x: Tensor, digits: Tensor, scale: Tensor) -> Launch:
    """x ~ (digits[0] + digits[1] / 254) * scale. digits: [2, num_tokens, k] int8, contiguous."""
    require_unit_stride("x", x)
    num_tokens, depth = x.shape
    columns = next_power_of_two(depth)
    return Launch(
        _digits_kernel,
        (num_tokens,),
        {
            "x": x,
            "high": digits[0],
            "low": digits[1],
            "scales": scale,
            "x_stride": x.stride(0),
            "depth": depth,
        },
        {"COLUMNS": columns},
        max(1, min(16, columns // 512)),
        2,
    )


def product_launch(
    x: tuple[Tensor, Tensor], weight: tuple[Tensor, Tensor], bias: Tensor | None, out: Tensor
) -> Launch:
    """x: digits and scales of ``digits_launch``; weight: int8 and its scales; out: [num_tokens, n]."""
    digits, scale = x
    _, num_tokens, depth = digits.shape
    num_channels = weight[0].shape[0]
    if not weight[0].is_contiguous():
        raise ValueError("weight is not contiguous; pass weight.contiguous()")
    return Launch(
        _product_kernel,
        (-(-num_channels // _CHANNELS), -(-num_tokens // _TOKENS)),
        {
            "high": digits[0],
            "low": digits[1],
            "scales": scale,
            "weight": weight[0],
            "weight_scales": weight[1],
            "bias": weight[1] if bias is None else bias,
            "out": out,
            "num_tokens": num_tokens,
            "num_channels": num_channels,
            "depth": depth,
        },
        {"HAS_BIAS": bias is not None, "TOKENS": _TOKENS, "CHANNELS": _CHANNELS, "DEPTH": _DEPTH},
        4,
        3,
    )


@triton.jit
def _digits_kernel(x, high, low, scales, x_stride, depth, COLUMNS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    mask = columns < depth
    values = tl.load(x + token * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    finite = tl.abs(values) < float("inf")
    values = tl.where(finite, values, 0.0)
    # The division is IEEE's, as torch's is: the last bit of a level decides how it is rounded.
    scale = tl.div_rn(tl.max(tl.abs(values), 0), 127.0)
    levels = tl.div_rn(values, tl.zeros_like(values) + tl.where(scale == 0.0, 1.0, scale))
    first = _round_to_even(levels)
    second = _round_to_even((levels - first) * 254.0)
    tl.store(high + token * depth + columns, _as_int8(first), mask=mask)
    tl.store(low + token * depth + columns, _as_int8(second), mask=mask)
    # A row that is not finite has a scale that is not, and so has its result.
    broken = tl.max(tl.where(finite, 0, 1), 0)
    tl.store(scales + token, tl.where(broken > 0, float("nan"), scale))


@triton.jit
def _round_to_even(x):
    # Adding 1.5 * 2^23 leaves no bits behind the point, for magnitudes below 2^22.
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _as_int8(x):
    return tl.minimum(tl.maximum(x, -127.0), 127.0).to(tl.int8)


@triton.jit
def _product_kernel(
    high,
    low,
    scales,
    weight,
    weight_scales,
    bias,
    out,
    num_tokens,
    num_channels,
    depth,
    HAS_BIAS: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    channels = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    tokens = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    inner = tl.arange(0, DEPTH)
    in_rows = tokens < num_tokens
    in_channels = channels < num_channels
    row_start = tokens.to(tl.int64)[:, None] * depth
    channel_start = channels.to(tl.int64)[None, :] * depth
    high_sum = tl.zeros([TOKENS, CHANNELS], tl.int32)
    low_sum = tl.zeros([TOKENS, CHANNELS], tl.int32)
    for start in range(0, depth, DEPTH):
        at = start + inner
        x_mask = in_rows[:, None] & (at < depth)[None, :]
        w = tl.load(
            weight + channel_start + at[:, None], mask=in_channels[None, :] & (at < depth)[:, None], other=0
        )
        high_sum = tl.dot(tl.load(high + row_start + at[None, :], mask=x_mask, other=0), w, high_sum)
        low_sum = tl.dot(tl.load(low + row_start + at[None, :], mask=x_mask, other=0), w, low_sum)
    scale = tl.load(scales + tokens, mask=in_rows, other=0.0)
    channel_scale = tl.load(weight_scales + channels, mask=in_channels, other=0.0)[None, :]
    # In the order of the other versions: by channel, the digits together, by token.
    total = (low_sum.to(tl.float32) * channel_scale) * (1.0 / 254.0) + high_sum.to(tl.float32) * channel_scale
    total = total * scale[:, None]
    if HAS_BIAS:
        total = total + tl.load(bias + channels, mask=in_channels, other=0.0).to(tl.float32)[None, :]
    at_out = out + tokens.to(tl.int64)[:, None] * num_channels + channels[None, :]
    tl.store(at_out, total.to(out.dtype.element_ty), mask=in_rows[:, None] & in_channels[None, :])
