"""Linear layers whose weights have 4 or 8 bits and whose activations stay as they are: what is read is a
quarter or half of 16-bit weights, products and sums are those of the tensor cores in the activations' dtype.

The tile is the same for every shape and sums run over k in order, so a token's result does not depend on the
tokens beside it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ramet.kernels.gpu.formats import from_e4m3
from ramet.kernels.gpu.launch import Launch, require_unit_stride
from ramet.kernels.reference import INT4_GROUP as GROUP

_TOKENS, _CHANNELS, _DEPTH = 64, 32, 128
"""A program's tile. Narrow in channels: 4,096 of them are 128 programs, about one a multiprocessor."""


def linear_int4(x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """See ``reference.linear_int4``: [num_tokens, n] of x's dtype.

    x: [num_tokens, k]; weight: [n, k / 2] uint8, contiguous; weight_scale: [n, k / 32] fp32 or x's dtype.
    """
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    int4_launch(x, (weight, weight_scale), bias, out).run()
    return out


def linear_e4m3(x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """See ``reference.linear_e4m3``. weight: [n, k] uint8, contiguous; weight_scale: [n] fp32."""
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    e4m3_launch(x, (weight, weight_scale), bias, out).run()
    return out


def int4_launch(x: Tensor, weight: tuple[Tensor, Tensor], bias: Tensor | None, out: Tensor) -> Launch:
    """weight: packed, and its scales."""
    depth, channels = x.shape[1], weight[0].shape[0]
    if (
        depth % GROUP
        or weight[0].shape != (channels, depth // 2)
        or weight[1].shape != (channels, depth // GROUP)
    ):
        raise ValueError(
            f"x has rows of {depth}, weight is {tuple(weight[0].shape)} with scales {tuple(weight[1].shape)}: "
            f"k is a multiple of {GROUP}, weight [n, k / 2], scales [n, k / {GROUP}]"
        )
    return _launch(_int4_kernel, x, weight, bias, out)


def e4m3_launch(x: Tensor, weight: tuple[Tensor, Tensor], bias: Tensor | None, out: Tensor) -> Launch:
    """weight: of e4m3, and its scales."""
    channels, depth = weight[0].shape
    if x.shape[1] != depth or weight[1].shape != (channels,):
        raise ValueError(
            f"x is {tuple(x.shape)}, weight {tuple(weight[0].shape)} with scales {tuple(weight[1].shape)}: "
            "[m, k], [n, k] and [n]"
        )
    return _launch(_e4m3_kernel, x, weight, bias, out)


def _launch(
    kernel: object, x: Tensor, weight: tuple[Tensor, Tensor], bias: Tensor | None, out: Tensor
) -> Launch:
    require_unit_stride("x", x)
    if weight[0].dtype is not torch.uint8 or not weight[0].is_contiguous() or not weight[1].is_contiguous():
        raise ValueError(f"weight is {weight[0].dtype}: contiguous uint8, with contiguous scales")
    num_tokens, num_channels = out.shape
    return Launch(
        kernel,
        (-(-num_channels // _CHANNELS), -(-num_tokens // _TOKENS)),
        {
            "x": x,
            "weight": weight[0],
            "weight_scales": weight[1],
            "bias": weight[1] if bias is None else bias,
            "out": out,
            "x_stride": x.stride(0),
            "num_tokens": num_tokens,
            "num_channels": num_channels,
            "depth": x.shape[1],
        },
        {"HAS_BIAS": bias is not None, "TOKENS": _TOKENS, "CHANNELS": _CHANNELS, "DEPTH": _DEPTH},
        4,
        3,
    )


@triton.jit
def _store_tile(total, bias, out, tokens, channels, num_tokens, num_channels, HAS_BIAS: tl.constexpr):
    in_channels = channels < num_channels
    if HAS_BIAS:
        total = total + tl.load(bias + channels, mask=in_channels, other=0.0).to(tl.float32)[None, :]
    at = out + tokens.to(tl.int64)[:, None] * num_channels + channels[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=(tokens < num_tokens)[:, None] & in_channels[None, :])


@triton.jit
def _int4_kernel(
    x,
    weight,
    weight_scales,
    bias,
    out,
    x_stride,
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
    in_rows, in_channels = tokens < num_tokens, channels < num_channels
    x_row = x + tokens.to(tl.int64)[:, None] * x_stride
    half: tl.constexpr = DEPTH // 2
    inner = tl.arange(0, half)
    total = tl.zeros([TOKENS, CHANNELS], tl.float32)
    for start in range(0, depth, DEPTH):
        # A group's 16 bytes hold its first 16 weights in their low digits and the others in the high ones.
        low_at = start + inner // 16 * 32 + inner % 16
        inside = low_at < depth
        w_mask = in_channels[None, :] & inside[:, None]
        x_mask = in_rows[:, None] & inside[None, :]
        at = channels.to(tl.int64)[None, :] * (depth // 2) + (start // 2 + inner)[:, None]
        packed = tl.load(weight + at, mask=w_mask, other=0x88)
        scale_at = channels.to(tl.int64)[None, :] * (depth // 32) + ((start + inner * 2) // 32)[:, None]
        scale = tl.load(weight_scales + scale_at, mask=w_mask, other=0.0).to(tl.float32)
        low = ((packed & 0xF).to(tl.float32) - 8.0) * scale
        high = ((packed >> 4).to(tl.float32) - 8.0) * scale
        first = tl.load(x_row + low_at[None, :], mask=x_mask, other=0.0)
        second = tl.load(x_row + low_at[None, :] + 16, mask=x_mask, other=0.0)
        total = tl.dot(first, low.to(first.dtype), total, input_precision="ieee")
        total = tl.dot(second, high.to(first.dtype), total, input_precision="ieee")
    _store_tile(total, bias, out, tokens, channels, num_tokens, num_channels, HAS_BIAS)


@triton.jit
def _e4m3_kernel(
    x,
    weight,
    weight_scales,
    bias,
    out,
    x_stride,
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
    in_rows, in_channels = tokens < num_tokens, channels < num_channels
    x_row = x + tokens.to(tl.int64)[:, None] * x_stride
    w_row = weight + channels.to(tl.int64)[None, :] * depth
    inner = tl.arange(0, DEPTH)
    total = tl.zeros([TOKENS, CHANNELS], tl.float32)
    for start in range(0, depth, DEPTH):
        at = start + inner
        inside = at < depth
        codes = tl.load(w_row + at[:, None], mask=in_channels[None, :] & inside[:, None], other=0)
        values = tl.load(x_row + at[None, :], mask=in_rows[:, None] & inside[None, :], other=0.0)
        total = tl.dot(values, from_e4m3(codes).to(values.dtype), total, input_precision="ieee")
    total = total * tl.load(weight_scales + channels, mask=in_channels, other=0.0)[None, :]
    _store_tile(total, bias, out, tokens, channels, num_tokens, num_channels, HAS_BIAS)
