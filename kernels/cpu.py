"""CPU versions of the ops for fp32, in as few torch calls as each allows.

A call costs 1-3 us, as much as the arithmetic of one token, so calls are what is saved. Every op here gives a
row the same bits whatever the other rows are. That excludes some torch ops: where a vectorised loop ends or
changes threads, the last few elements go through a scalar version, and for silu, gelu, sigmoid, lerp and
softmax its last bit differs. exp, tanh, log, rsqrt and the IEEE operations agree in both.
"""

import functools
import math

import torch
from torch import Tensor

_LOOP_ELEMENTS = 32
"""A vectorised loop of torch takes two vectors of at most 512 bits at a time."""
_USUAL_THREADS = 4
"""Up to so many threads a row has the same bits, whatever their number."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """reference.rms_norm for fp32 x and weight, in half the time of torch's, which is not fused on CPU."""
    norm = torch.linalg.vector_norm(x, 2, -1, True)
    scale = torch.addcmul(_scalar(eps), norm, norm, value=1.0 / x.shape[-1]).rsqrt_()
    return torch.mul(x, scale).mul_(weight)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """reference.add_rms_norm for fp32 tensors."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """reference.apply_rope for fp32 tensors whose whole head rotates (rotary_dim == head_dim)."""
    num_heads, num_kv_heads = q.shape[1], k.shape[1]
    half = cos.shape[1]
    cos, sin = (
        cos.view(-1, 1, 1, half),
        sin.view(-1, 1, half),
    )  # views cost half of what indexing with None does
    joint = _adjacent_heads(q, k)
    if joint is None:
        return _rotate(q, cos, sin), _rotate(k, cos, sin)
    turned_q, turned_k = _rotate(joint, cos, sin).split_with_sizes((num_heads, num_kv_heads), 1)
    return turned_q, turned_k


def gated_activation(gate_up: Tensor, kind: str) -> Tensor:
    """reference.gated_activation for fp32 tensors."""
    gate, up = gate_up.chunk(2, -1)
    whole_loops = _ends_on_whole_loops(gate.shape[-1], max(_USUAL_THREADS, torch.get_num_threads()))
    if kind == "silu":
        activated = torch.nn.functional.silu(gate) if whole_loops else _silu(gate)
    elif kind == "gelu_tanh":
        activated = torch.nn.functional.gelu(gate, approximate="tanh") if whole_loops else _gelu_tanh(gate)
    else:
        raise ValueError(f"unknown activation {kind!r}: silu or gelu_tanh")
    return activated.mul_(up)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [num_tokens, heads, head_dim]; cos: [num_tokens, 1, 1, head_dim / 2]; sin: without the second 1."""
    halves = x.view(x.shape[0], x.shape[1], 2, -1)
    turned = halves * cos
    first, second = halves.unbind(2)
    turned_first, turned_second = turned.unbind(2)
    turned_first.addcmul_(second, sin, value=-1)
    turned_second.addcmul_(first, sin)
    return turned.view(x.shape)


def _adjacent_heads(q: Tensor, k: Tensor) -> Tensor | None:
    """One view of q's and k's heads where k's follow q's in memory, as in the output of a joint projection."""
    num_heads, head_dim = q.shape[1], q.shape[2]
    strides = q.stride()
    if (
        k.data_ptr() != q.data_ptr() + num_heads * head_dim * q.element_size()
        or strides != k.stride()
        or strides[1:] != (head_dim, 1)
        or strides[0] < (num_heads + k.shape[1]) * head_dim
        or q.untyped_storage().data_ptr() != k.untyped_storage().data_ptr()
    ):
        return None
    return q.as_strided((q.shape[0], num_heads + k.shape[1], head_dim), strides)


@functools.cache
def _ends_on_whole_loops(width: int, num_threads: int) -> bool:
    """True where no row of this width is ever cut inside a vectorised loop, however many rows there are: torch
    divides all elements evenly among 1 to num_threads threads."""
    return width % (_LOOP_ELEMENTS * math.lcm(*range(1, num_threads + 1))) == 0


def _silu(x: Tensor) -> Tensor:
    return x / torch.neg(x).exp_().add_(1.0)


def _gelu_tanh(x: Tensor) -> Tensor:
    slope = math.sqrt(2.0 / math.pi)
    inner = (x * x).mul_(0.044715 * slope).add_(slope).mul_(x)
    return inner.tanh_().add_(1.0).mul_(x).mul_(0.5)


@functools.cache
def _scalar(value: float) -> Tensor:
    """A constant as a tensor: torch takes 1.5 us longer to wrap a Python float at each call."""
    return torch.tensor([value])
