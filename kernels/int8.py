"""Linear layers with int8 weights: one weight scale an output channel, activations quantised as they come.

The compiled kernel (``native``; x86 with AVX-512 VNNI and a C compiler) does everything in one call. Its
activations are one int8 digit with a scale for 32 inputs: half the products of two digits with one scale a
token, for little of their accuracy. The other ways could not scale in between without a call for each group.

The others take two digits, and are three ways to the same integers. FBGEMM's packed weights (x86 with VNNI)
multiply and scale by channel, and torch does the rest. On a GPU Triton's kernels (``gpu``) quantise in one call
and multiply in another. Elsewhere torch._int_mm multiplies, and where that is inexact or has no version for a
shape, fp32 matmuls over spans of k short enough that every sum is a whole number below 2^24.
"""

import functools
import threading
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from ramet.kernels import native
from ramet.kernels.dispatch import gpu_kernels
from ramet.kernels.native.library import NativeInt8Weight

GPU_MAX_DEPTH = 65536
"""The longest row that the GPU's kernel takes, ``gpu.linear_int8.MAX_DEPTH``."""
_LEVELS = 127
_LOW_LEVELS = 254
"""Half a level of the high digit is 127 of the low one."""
_ZERO_POINT = 128
_EXACT_FP32_SPAN = 1024
"""1024 * 127 * 127 < 2^24."""
_PROBE_LOCK = threading.Lock()
"""warnings.catch_warnings is not safe in two threads at once, and weights are prepared in several."""


@dataclass(frozen=True, slots=True, eq=False)
class Int8Weight:
    """An int8 weight and its scales in FBGEMM's layout, made by ``prepare_int8_weight``."""

    out_features: int
    in_features: int
    packed: torch.ScriptObject


PreparedInt8Weight = NativeInt8Weight | Int8Weight
"""What ``prepare_int8_weight`` makes."""


def prepare_int8_weight(weight: Tensor, weight_scale: Tensor) -> PreparedInt8Weight | Tensor:
    """The form of a weight that ``linear_int8`` is fastest with on its device: a copy of the same size, or the
    argument itself where no other form is faster.

    weight: [out_features, in_features] int8; weight_scale: [out_features] fp32. About 4 ns a weight, and the
    interpreter lock is not held meanwhile: many weights can be prepared in a thread pool.
    """
    if weight.device.type != "cpu":
        return weight
    library = native.library()
    if library is not None:
        return library.pack_int8(weight, weight_scale)
    if not fbgemm_is_exact():
        return weight
    return Int8Weight(weight.shape[0], weight.shape[1], _pack(weight, weight_scale))


def linear_int8(
    x: Tensor, weight: Tensor | PreparedInt8Weight, weight_scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """x @ weight.T. The sums over k are exact, so a token's result does not depend on the tokens beside it.

    x: [num_tokens, k]; weight: [n, k] int8, or what was prepared from it; weight_scale: [n] fp32;
    bias: [n]. Returns [num_tokens, n] of x's dtype. A token that is not finite gives results that are not.

    In the compiled kernel activations are quantised in groups (``reference.linear_int8_grouped``). Elsewhere
    they are two int8 digits, x ~ (high + low / 254) * scale, and each digit is a row of the product: one digit
    with one scale a token would cost ten times what quantised weights do (benchmarks/quality.py).
    """
    if isinstance(weight, NativeInt8Weight):
        exact = weight.library.linear_int8(
            _converted(x, torch.float32), weight, None if bias is None else _converted(bias, torch.float32)
        )
        return _converted(exact, x.dtype)
    if isinstance(weight, Tensor) and weight.is_contiguous() and weight.shape[1] <= GPU_MAX_DEPTH:
        gpu = gpu_kernels(x)
        if gpu is not None:
            product: Tensor = gpu.linear_int8(x, weight, weight_scale, bias)
            return product
    num_tokens, depth = x.shape
    x32 = x.float()
    scale = x32.abs().amax(-1, keepdim=True).div_(_LEVELS)
    # A row of zeros becomes NaN here, which is quantised to some integer; times 0 that is the 0 wanted.
    digits = torch.empty((2, *x32.shape), dtype=torch.float32, device=x.device)
    high, low = digits.unbind(0)
    levels = x32 / scale
    # Rounded here: FBGEMM adds its zero point before it rounds, and loses the last bits that decide.
    torch.round(levels, out=high)
    torch.sub(levels, high, out=low).mul_(_LOW_LEVELS)
    if isinstance(weight, Int8Weight):
        products: Tensor = _fbgemm_linear()(digits.view(2 * num_tokens, depth), 1.0, _ZERO_POINT, weight.packed)
    else:
        whole = torch.round(digits).clamp_(-_LEVELS, _LEVELS).nan_to_num_(0.0).to(torch.int8)
        products = (
            integer_matmul(whole.view(2 * num_tokens, depth), weight).to(torch.float32).mul_(weight_scale)
        )
    high, low = products.view(2, num_tokens, products.shape[-1]).unbind(0)
    out: Tensor = low.mul_(1.0 / _LOW_LEVELS).add_(high).mul_(scale)
    if bias is not None:
        out.add_(bias)
    return out.to(x.dtype)


def _converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """As ``x.to(dtype)``, which gives the interpreter lock up even where there is nothing to do."""
    return x if x.dtype is dtype else x.to(dtype)


def integer_matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b.T of int8 matrices, exact. a: [m, k]; b: [n, k]. Returns [m, n] int32."""
    if a.device.type == "cuda":
        return _int_mm_padded(a, b)
    # torch 2.13's CPU _int_mm returns wrong sums for k == 1.
    if a.shape[1] > 1 and a.shape[0] > 0 and _int_mm_is_exact():
        return torch._int_mm(a, b.t())
    return _fp32_matmul(a, b)


def _int_mm_padded(a: Tensor, b: Tensor) -> Tensor:
    """CUDA's _int_mm takes more than 16 rows, and k and n that are multiples of 8."""
    (m, k), n = a.shape, b.shape[0]
    rows, depth, columns = max(32, _up(m, 8)), _up(k, 8), _up(n, 8)
    if (rows, depth) != (m, k):
        a = torch.nn.functional.pad(a, (0, depth - k, 0, rows - m))
    if (columns, depth) != (n, k):
        b = torch.nn.functional.pad(b, (0, depth - k, 0, columns - n))
    return torch._int_mm(a, b.t())[:m, :n]


def _fp32_matmul(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros((a.shape[0], b.shape[0]), dtype=torch.int32, device=a.device)
    for start in range(0, a.shape[1], _EXACT_FP32_SPAN):
        span = slice(start, start + _EXACT_FP32_SPAN)
        total += (a[:, span].float() @ b[:, span].float().t()).to(torch.int32)
    return total


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def fbgemm_is_exact() -> bool:
    """Whether FBGEMM's int8 product works on this CPU and is exact: before VNNI its 16-bit sums saturate."""
    with _PROBE_LOCK:
        return _probe_fbgemm()


@functools.cache
def _probe_fbgemm() -> bool:
    if torch.backends.quantized.engine not in ("fbgemm", "x86"):
        return False
    a, b = _extreme_matrices()
    with warnings.catch_warnings():
        # Once in a process torch announces that quantised tensors will go in a later release. It is pinned, and
        # FBGEMM's packed weights have no other constructor.
        warnings.filterwarnings("ignore", message=".*quantized tensor creation functions", category=UserWarning)
        packed = _pack(b, torch.ones(b.shape[0]))
    out = _fbgemm_linear()(a.float(), 1.0, _ZERO_POINT, packed)
    return torch.equal(out, _fp32_matmul(a, b).float())


@functools.cache
def _int_mm_is_exact() -> bool:
    a, b = _extreme_matrices()
    return torch.equal(torch._int_mm(a, b.t()), _fp32_matmul(a, b))


def _extreme_matrices() -> tuple[Tensor, Tensor]:
    """int8 matrices of the largest magnitudes, with every combination of neighbouring signs."""
    signs = torch.tensor([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [-1, -1, -1, -1]])
    levels = (signs * _LEVELS).to(torch.int8).repeat(8, 16)
    return levels, levels


def _pack(weight: Tensor, weight_scale: Tensor) -> torch.ScriptObject:
    zero_points = torch.zeros(weight.shape[0], dtype=torch.int64)
    quantized = torch._make_per_channel_quantized_tensor(
        weight.contiguous(), weight_scale.double(), zero_points, 0
    )
    packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(quantized, None)
    return packed


@functools.cache
def _fbgemm_linear() -> torch._ops.OpOverload:
    """fp32 in and out: quantise by a given scale and zero point, multiply in int32, scale by channel."""
    return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
