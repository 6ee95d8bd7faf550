"""Numbers of eight bits in memory: int8 with a scale beside it, and e4m3 (OCP's floating point, up to 448).

e4m3 is made and read by integer operations on bytes: the same bits on GPUs that have such numbers and on those
that do not, or have others (gfx942).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PLAIN = tl.constexpr(0)
E4M3 = tl.constexpr(1)
INT8 = tl.constexpr(2)
E4M3_MAX = 448.0


def format_of(stored: Tensor) -> int:
    """Of keys, values or weights: fp16, bf16 and fp32 are plain, uint8 is e4m3."""
    match stored.dtype:
        case torch.uint8:
            return int(E4M3.value)
        case torch.int8:
            return int(INT8.value)
        case _:
            return int(PLAIN.value)


@triton.jit
def stored_values(x, FORMAT: tl.constexpr):
    """What was loaded as numbers; int8 without its scale."""
    if FORMAT == E4M3:
        x = from_e4m3(x)
    elif FORMAT == INT8:
        x = x.to(tl.float16)
    return x


@triton.jit
def from_e4m3(code):
    """uint8 as fp16, exact; NaN becomes 480."""
    wide = code.to(tl.uint16)
    # fp16 has the same mantissa's beginning and one exponent bit more, whose bias is greater by 8.
    half = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)
    return (half.to(tl.float32) * 256.0).to(tl.float16)


@triton.jit
def to_e4m3(x):
    """fp32 as uint8, rounded to even once; beyond 448 it is 448. NaN stays NaN."""
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = tl.minimum(tl.abs(x), 448.0)
    rounded = magnitude.to(tl.uint32, bitcast=True)
    rounded = (rounded + 0x7FFFF + ((rounded >> 20) & 1)) >> 20
    # Exponents are counted from 127 in fp32, from 7 here. Below 2^-6 steps are 2^-9 wide.
    steps = (magnitude * 512.0 + 12582912.0) - 12582912.0
    code = tl.where(magnitude < 0.015625, steps.to(tl.uint32), rounded - 960)
    code = tl.where(x == x, code, 0x7F)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def to_int8(x, scale):
    """x / scale, rounded to even: -127 to 127."""
    levels = tl.div_rn(x, tl.where(scale == 0.0, 1.0, scale))
    levels = (levels + 12582912.0) - 12582912.0
    return tl.minimum(tl.maximum(levels, -127.0), 127.0).to(tl.int8)
