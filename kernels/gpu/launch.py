"""One call of a kernel, as a record: it can be run on a device, or compiled for one that is not there."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

FP_FUSION = False
"""Products and sums are fused where a kernel says ``fma`` and nowhere else: a compiler that chose by itself
could choose differently in two kernels that have to give a token the same bits."""

_POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_ALIGNMENT = 16
_INT32_END = 1 << 31


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel, its grid, its arguments in order, its compile-time constants and how many warps run it."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Tensor | int | float]
    constants: Mapping[str, object]
    num_warps: int
    num_stages: int

    def run(self) -> None:
        """Start it on the device of its tensors, without waiting. A grid without programs is no call."""
        if 0 in self.grid:
            return
        device = next(value.device for value in self.arguments.values() if isinstance(value, Tensor))
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": FP_FUSION}
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                self.kernel[self.grid](**self.arguments, **self.constants, **options)
        else:
            self.kernel[self.grid](**self.arguments, **self.constants, **options)

    def source(self) -> Any:
        """What ``run`` would compile, as triton's ``ASTSource``. Tensors may be on "meta"."""
        signature: dict[str, str] = {}
        constants = dict(self.constants)
        attributes: dict[tuple[int, ...], list[list[object]]] = {}
        for index, name in enumerate(self.kernel.arg_names):
            value = self.arguments.get(name)
            if name in constants or value is None or (isinstance(value, int) and value == 1):
                # Triton makes a constant of every integer that is 1.
                constants.setdefault(name, value)
                signature[name] = "constexpr"
                continue
            signature[name] = _type_of(value)
            if isinstance(value, Tensor) or (isinstance(value, int) and value % _ALIGNMENT == 0):
                attributes[index,] = [["tt.divisibility", _ALIGNMENT]]
        return triton.compiler.ASTSource(self.kernel, signature, constants, attributes)

    @property
    def options(self) -> dict[str, object]:
        """What ``triton.compile`` is to be told besides the source."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": FP_FUSION}


@functools.cache
def next_power_of_two(value: int) -> int:
    """The least power of two that is not below ``value``, at least 1."""
    return 1 << max(0, value - 1).bit_length()


def require_unit_stride(name: str, x: Tensor) -> None:
    """Kernels read whole vectors: raises ValueError where the last dimension of x is not contiguous."""
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        raise ValueError(f"{name}'s last dimension has stride {x.stride(-1)}; pass {name}.contiguous()")


def _type_of(value: Tensor | int | float) -> str:
    if isinstance(value, Tensor):
        return _POINTERS[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if value < _INT32_END else "i64"
