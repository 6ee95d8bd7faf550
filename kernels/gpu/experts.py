"""The experts of a sparse MLP in three launches: pairs of a token and an expert are sorted by expert, blocks of
them are multiplied with the expert's weights, and each token's results are added up.

Nothing waits for the device, so it can be captured in a CUDA graph. Tiles are fixed and sums run in one order:
a token's result does not depend on the tokens beside it.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ramet.kernels.gpu.formats import PLAIN, format_of, stored_values
from ramet.kernels.gpu.launch import Launch, next_power_of_two, require_unit_stride

BLOCK = 32
"""Pairs of a block. With 128 experts of which 8 are chosen, a decoding step of 32 tokens has two for an expert:
a larger block would be padding."""
_CHANNELS, _DEPTH = 64, 64
_SUM_COLUMNS = 1024


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Of all experts, contiguous; in x's dtype, or int8 or e4m3 with one scale an output channel."""

    gate_up: Tensor  # [num_experts, 2 * intermediate, hidden], gate's channels first
    down: Tensor  # [num_experts, hidden, intermediate]
    gate_up_scale: Tensor | None = None  # [num_experts, 2 * intermediate] fp32
    down_scale: Tensor | None = None  # [num_experts, hidden] fp32


@dataclass(frozen=True, slots=True)
class Blocks:
    """Pairs sorted by expert, cut into blocks of BLOCK pairs of one expert."""

    pairs: Tensor  # [num_tokens * top_k] int64: token * top_k + rank, by expert
    experts: Tensor  # [max_blocks] int64; the number of experts behind the last block
    firsts: Tensor  # [max_blocks] int64: the block's first place in pairs
    ends: Tensor  # [max_blocks] int64: behind the expert's last place


def fused_experts(x: Tensor, weights: ExpertWeights, shares: Tensor, chosen: Tensor, kind: str) -> Tensor:
    """See ``reference.fused_experts``: [num_tokens, hidden] of x's dtype.

    x: [num_tokens, hidden]; shares: [num_tokens, top_k] fp32; chosen: [num_tokens, top_k] int64.
    """
    num_tokens, top_k = chosen.shape
    inner = weights.down.shape[2]
    blocks = sort_pairs(chosen, weights.gate_up.shape[0])
    activated = torch.empty((num_tokens * top_k, inner), dtype=x.dtype, device=x.device)
    parts = torch.empty((num_tokens * top_k, x.shape[1]), dtype=torch.float32, device=x.device)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    gate_up_launch(x, weights, blocks, top_k, kind, activated).run()
    down_launch(activated, weights, blocks, parts).run()
    sum_launch(parts, shares.float().contiguous(), out).run()
    return out


def sort_pairs(chosen: Tensor, num_experts: int) -> Blocks:
    """chosen: [num_tokens, top_k] int64. Pairs of an expert stay in the order of their tokens."""
    by_expert, pairs = chosen.flatten().sort(stable=True)
    experts = torch.arange(num_experts, device=chosen.device)
    ends = torch.searchsorted(by_expert, experts, right=True)
    starts = torch.searchsorted(by_expert, experts)
    num_blocks = (ends - starts + (BLOCK - 1)) // BLOCK
    last_blocks = num_blocks.cumsum(0)
    numbers = torch.arange(max_blocks(pairs.shape[0], num_experts), device=chosen.device)
    of_block = torch.searchsorted(last_blocks, numbers, right=True)
    known = of_block.clamp(max=num_experts - 1)
    firsts = starts[known] + (numbers - (last_blocks - num_blocks)[known]) * BLOCK
    return Blocks(pairs, of_block, firsts, ends[known])


def max_blocks(num_pairs: int, num_experts: int) -> int:
    """The most blocks that so many pairs can need: every expert but one may have one that is not full."""
    return min(num_pairs, num_pairs // BLOCK + num_experts)


def gate_up_launch(
    x: Tensor, weights: ExpertWeights, blocks: Blocks, top_k: int, kind: str, activated: Tensor
) -> Launch:
    """act(gate) * up of every pair: activated [num_pairs, intermediate], contiguous."""
    if kind not in ("silu", "gelu_tanh"):
        raise ValueError(f"unknown activation {kind!r}: silu or gelu_tanh")
    inner = activated.shape[1]
    _check(x, weights.gate_up, weights.gate_up_scale, (2 * inner, x.shape[1]))
    scale = weights.gate_up if weights.gate_up_scale is None else weights.gate_up_scale
    return Launch(
        _gate_up_kernel,
        (blocks.experts.shape[0], -(-inner // _CHANNELS)),
        {
            "x": x,
            "weight": weights.gate_up,
            "weight_scales": scale,
            "activated": activated,
            **_block_arguments(blocks),
            "num_experts": weights.gate_up.shape[0],
            "x_stride": x.stride(0),
            "top_k": top_k,
            "inner": inner,
            "depth": x.shape[1],
        },
        {
            "IS_SILU": kind == "silu",
            "FORMAT": format_of(weights.gate_up),
            "ROWS": BLOCK,
            "CHANNELS": _CHANNELS,
            "DEPTH": _DEPTH,
        },
        4,
        3,
    )


def down_launch(activated: Tensor, weights: ExpertWeights, blocks: Blocks, parts: Tensor) -> Launch:
    """parts: [num_pairs, hidden] fp32, contiguous: every pair's result."""
    hidden = parts.shape[1]
    _check(activated, weights.down, weights.down_scale, (hidden, activated.shape[1]))
    scale = weights.down if weights.down_scale is None else weights.down_scale
    return Launch(
        _down_kernel,
        (blocks.experts.shape[0], -(-hidden // _CHANNELS)),
        {
            "activated": activated,
            "weight": weights.down,
            "weight_scales": scale,
            "parts": parts,
            **_block_arguments(blocks),
            "num_experts": weights.down.shape[0],
            "hidden": hidden,
            "depth": activated.shape[1],
        },
        {"FORMAT": format_of(weights.down), "ROWS": BLOCK, "CHANNELS": _CHANNELS, "DEPTH": _DEPTH},
        4,
        3,
    )


def sum_launch(parts: Tensor, shares: Tensor, out: Tensor) -> Launch:
    """out[t] = sum of shares[t, i] * parts[t * top_k + i], i ascending."""
    num_tokens, hidden = out.shape
    columns = min(_SUM_COLUMNS, next_power_of_two(hidden))
    return Launch(
        _sum_kernel,
        (num_tokens, -(-hidden // columns)),
        {"parts": parts, "shares": shares, "out": out, "hidden": hidden, "top_k": shares.shape[1]},
        {"COLUMNS": columns},
        4,
        1,
    )


def _block_arguments(blocks: Blocks) -> dict[str, Tensor | int | float]:
    return {"pairs": blocks.pairs, "experts": blocks.experts, "firsts": blocks.firsts, "ends": blocks.ends}


def _check(x: Tensor, weight: Tensor, scale: Tensor | None, shape: tuple[int, int]) -> None:
    require_unit_stride("x", x)
    if weight.shape[1:] != shape or not weight.is_contiguous():
        raise ValueError(f"weights are {tuple(weight.shape)}: contiguous, {shape} an expert")
    if weight.dtype not in ((x.dtype,) if scale is None else (torch.int8, torch.uint8)):
        raise ValueError(f"weights are {weight.dtype}: {x.dtype}, or int8 or uint8 (e4m3) with scales")
    if scale is not None and (scale.shape != weight.shape[:2] or not scale.is_contiguous()):
        raise ValueError(f"scales are {tuple(scale.shape)}: contiguous, {tuple(weight.shape[:2])}")


@triton.jit
def _load_weights(weight, channels, at, in_channels, depth, FORMAT: tl.constexpr):
    """[depth block, channels], as numbers."""
    mask = in_channels[None, :] & (at < depth)[:, None]
    return stored_values(tl.load(weight + channels[None, :] * depth + at[:, None], mask=mask, other=0), FORMAT)


@triton.jit
def _gate_up_kernel(
    x,
    weight,
    weight_scales,
    activated,
    pairs,
    experts,
    firsts,
    ends,
    num_experts,
    x_stride,
    top_k,
    inner,
    depth,
    IS_SILU: tl.constexpr,
    FORMAT: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    expert = tl.load(experts + tl.program_id(0))
    if expert < num_experts:
        places = tl.load(firsts + tl.program_id(0)) + tl.arange(0, ROWS)
        active = places < tl.load(ends + tl.program_id(0))
        pair = tl.load(pairs + places, mask=active, other=0)
        row = x + (pair // top_k)[:, None] * x_stride
        channels = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)).to(tl.int64)
        in_channels = channels < inner
        own = weight + expert * 2 * inner * depth
        gate = tl.zeros([ROWS, CHANNELS], tl.float32)
        up = tl.zeros([ROWS, CHANNELS], tl.float32)
        for start in range(0, depth, DEPTH):
            at = start + tl.arange(0, DEPTH)
            values = tl.load(row + at[None, :], mask=active[:, None] & (at < depth)[None, :], other=0.0)
            w = _load_weights(own, channels, at, in_channels, depth, FORMAT)
            gate = tl.dot(values, w.to(values.dtype), gate, input_precision="ieee")
            w = _load_weights(own, channels + inner, at, in_channels, depth, FORMAT)
            up = tl.dot(values, w.to(values.dtype), up, input_precision="ieee")
        if FORMAT != PLAIN:
            scales = weight_scales + expert * 2 * inner + channels
            gate = gate * tl.load(scales, mask=in_channels, other=0.0)[None, :]
            up = up * tl.load(scales + inner, mask=in_channels, other=0.0)[None, :]
        # Rounded where separate calls round. exp(88) is the last below fp32's end.
        dtype: tl.constexpr = activated.dtype.element_ty
        gate = gate.to(dtype).to(tl.float32)
        up = up.to(dtype).to(tl.float32)
        if IS_SILU:
            gate = gate / (1.0 + tl.exp(tl.minimum(-gate, 88.0)))
        else:
            slope = -1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
            gate = gate / (1.0 + tl.exp(tl.minimum(slope, 88.0)))
        result = gate.to(dtype).to(tl.float32) * up
        tl.store(
            activated + pair[:, None] * inner + channels[None, :],
            result.to(dtype),
            mask=active[:, None] & in_channels[None, :],
        )


@triton.jit
def _down_kernel(
    activated,
    weight,
    weight_scales,
    parts,
    pairs,
    experts,
    firsts,
    ends,
    num_experts,
    hidden,
    depth,
    FORMAT: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    expert = tl.load(experts + tl.program_id(0))
    if expert < num_experts:
        places = tl.load(firsts + tl.program_id(0)) + tl.arange(0, ROWS)
        active = places < tl.load(ends + tl.program_id(0))
        pair = tl.load(pairs + places, mask=active, other=0)
        channels = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)).to(tl.int64)
        in_channels = channels < hidden
        own = weight + expert * hidden * depth
        total = tl.zeros([ROWS, CHANNELS], tl.float32)
        for start in range(0, depth, DEPTH):
            at = start + tl.arange(0, DEPTH)
            mask = active[:, None] & (at < depth)[None, :]
            values = tl.load(activated + pair[:, None] * depth + at[None, :], mask=mask, other=0.0)
            w = _load_weights(own, channels, at, in_channels, depth, FORMAT)
            total = tl.dot(values, w.to(values.dtype), total, input_precision="ieee")
        if FORMAT != PLAIN:
            scales = weight_scales + expert * hidden + channels
            total = total * tl.load(scales, mask=in_channels, other=0.0)[None, :]
        tl.store(
            parts + pair[:, None] * hidden + channels[None, :],
            total,
            mask=active[:, None] & in_channels[None, :],
        )


@triton.jit
def _sum_kernel(parts, shares, out, hidden, top_k, COLUMNS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = columns < hidden
    total = tl.zeros([COLUMNS], tl.float32)
    for rank in range(top_k):
        pair = token * top_k + rank
        part = tl.load(parts + pair * hidden + columns, mask=mask, other=0.0)
        total += part * tl.load(shares + pair)
    tl.store(out + token * hidden + columns, total.to(out.dtype.element_ty), mask=mask)
