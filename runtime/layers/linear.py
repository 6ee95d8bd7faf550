"""Linear projections, by how their weight is stored.

``linear_from`` chooses once, when the model is built; a layer only calls.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from ramet.kernels import (
    dequantize_int4,
    linear_e4m3,
    linear_int4,
    linear_int8,
    native,
    prepare_int4_weight,
    prepare_int8_weight,
    quantize_rows_int8,
)
from ramet.runtime.protocol import ModelLoadError


class Linear(Protocol):
    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, in_features] -> [num_tokens, out_features], of x's dtype."""
        ...


class FloatLinear:
    """weight: [out_features, in_features], of the activations' dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self._weight, self._bias)


class Int8Linear:
    """weight: [out_features, in_features] int8 with one scale an output channel, [out_features] fp32.

    The weight is copied into the form that the device's kernel is fastest with, where there is one; this takes
    time and lets other threads run. A token's result does not depend on the tokens beside it
    (``kernels.linear_int8``).
    """

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        self._weight = prepare_int8_weight(weight, scale)
        self._scale = scale
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return linear_int8(x, self._weight, self._scale, self._bias)


class E4M3Linear:
    """weight: [out_features, in_features] e4m3 codes (uint8) with one scale an output channel, [out_features]
    fp32. Activations stay in their dtype (``kernels.linear_e4m3``)."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight.contiguous()
        self._scale = scale.contiguous()
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return linear_e4m3(x, self._weight, self._scale, self._bias)


class Int4Linear:
    """weight: [out_features, in_features / 2] uint8, two weights each, with a scale for 32 neighbouring ones,
    [out_features, in_features / 32] fp32. On a CPU it takes the compiled kernels (``kernels.linear_int4``)."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        self._weight = prepare_int4_weight(weight.contiguous(), scale)
        self._scale = scale.contiguous()
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return linear_int4(x, self._weight, self._scale, self._bias)


class Int16Linear:
    """weight: [out_features, in_features] int16 with one scale an output channel, [out_features] fp32.

    For small projections whose result is compared rather than summed (the router of experts): near fp32's
    precision, and exact sums. Both factors are whole numbers of at most 15 bits, so a product has 30 and the
    sum of 2^22 of them is exact in fp64 in whatever order it is taken: a token's result does not depend on the
    tokens beside it, which an fp32 matmul does not promise.
    """

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        self._weight = weight.double()
        self._scale = scale.double()

    def __call__(self, x: Tensor) -> Tensor:
        q, scale = quantize_rows_int16(x)
        total = torch.nn.functional.linear(q.double(), self._weight)
        return (total * (scale.double()[:, None] * self._scale)).to(x.dtype)


def quantize_rows_int16(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int16 with one scale a row: (q [rows, k] int16, scale [rows] fp32), x ~ q * scale[:, None]."""
    x = x.float()
    scale = x.abs().amax(-1).clamp_min(1e-30) / 32767.0
    return torch.round(x / scale[:, None]).clamp(-32767, 32767).to(torch.int16), scale


def linear_from(weights: Mapping[str, Tensor], name: str) -> Linear:
    """The projection whose tensors are ``{name}.weight`` and, where present, ``{name}.scale`` and
    ``{name}.bias``."""
    weight, scale, bias = weights[f"{name}.weight"], weights.get(f"{name}.scale"), weights.get(f"{name}.bias")
    return linear_of(weight, scale, bias)


def linear_of(weight: Tensor, scale: Tensor | None, bias: Tensor | None = None) -> Linear:
    if scale is None:
        return FloatLinear(weight, bias)
    if weight.dtype == torch.int8:
        return Int8Linear(weight, scale, bias)
    if weight.dtype == torch.uint8:
        return E4M3Linear(weight, scale, bias) if scale.dim() == 1 else _int4_linear(weight, scale, bias)
    if weight.dtype == torch.int16 and bias is None:
        return Int16Linear(weight, scale)
    raise ModelLoadError(
        f"no linear layer has a scaled weight of dtype {weight.dtype}; prepare the weights again"
    )


def _int4_linear(weight: Tensor, scale: Tensor, bias: Tensor | None) -> Linear:
    """On a CPU without compiled kernels 4-bit weights are computed with as int8: unpacking them at each call
    takes many times as long, and int8 errs a fraction of what 4 bits do."""
    if weight.device.type == "cpu" and native.library() is None:
        return Int8Linear(*quantize_rows_int8(dequantize_int4(weight, scale)), bias)
    return Int4Linear(weight, scale, bias)
