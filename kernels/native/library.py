"""The compiled kernels as Python functions over torch tensors."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ramet.kernels.native.build import NativeBuildError

_ALIGNMENT = 64
MAX_DEPTH = 1 << 16
"""255 * 127 * 2^16 < 2^31: a sum over more terms could overflow int32."""

_POINTER = ctypes.c_void_p
_INT64 = ctypes.c_int64
_INT = ctypes.c_int


@dataclass(frozen=True, slots=True, eq=False)
class NativeInt8Weight:
    """An int8 weight in the layout of the compiled kernel, made by ``NativeLibrary.pack_int8``."""

    library: "NativeLibrary"
    out_features: int
    in_features: int
    packed: Tensor
    scale: Tensor


class NativeLibrary:
    """Thread-safe; the interpreter lock is not held in a call. All tensors on CPU."""

    def __init__(self, path: Path, name: str) -> None:
        """Raises NativeBuildError where the file is no library of this version."""
        self.path = path
        self.name = name
        try:
            library = ctypes.CDLL(str(path))
            self._packed_int8_bytes = library.ramet_packed_int8_bytes
            self._pack_int8 = library.ramet_pack_int8
            self._linear_int8 = library.ramet_linear_int8
        except (OSError, AttributeError) as error:
            raise NativeBuildError(f"{path} cannot be loaded: {error}") from error
        self._packed_int8_bytes.argtypes = [_INT64, _INT64]
        self._packed_int8_bytes.restype = _INT64
        self._pack_int8.argtypes = [_POINTER, _INT64, _INT64, _POINTER]
        self._pack_int8.restype = None
        self._linear_int8.argtypes = [
            *(_POINTER, _INT64, _INT64, _POINTER, _POINTER, _POINTER, _INT64, _POINTER, _INT)
        ]
        self._linear_int8.restype = _INT

    def pack_int8(self, weight: Tensor, scale: Tensor) -> NativeInt8Weight:
        """weight: [out_features, in_features] int8, in_features up to MAX_DEPTH; scale: [out_features] fp32."""
        weight, scale = weight.contiguous(), scale.contiguous()
        rows, depth = weight.shape
        size = self._packed_int8_bytes(rows, depth)
        memory = torch.empty(size + _ALIGNMENT, dtype=torch.uint8)
        packed = memory.narrow(0, -memory.data_ptr() % _ALIGNMENT, size)
        self._pack_int8(weight.data_ptr(), rows, depth, packed.data_ptr())
        return NativeInt8Weight(self, rows, depth, packed, scale)

    def linear_int8(self, x: Tensor, weight: NativeInt8Weight, bias: Tensor | None) -> Tensor:
        """x: [num_tokens, in_features] fp32; bias: [out_features] fp32. Returns [num_tokens, out_features]."""
        x = x.contiguous()
        num_tokens = x.shape[0]
        out = torch.empty((num_tokens, weight.out_features))
        failed = self._linear_int8(
            x.data_ptr(),
            num_tokens,
            weight.in_features,
            weight.packed.data_ptr(),
            weight.scale.data_ptr(),
            None if bias is None else bias.data_ptr(),
            weight.out_features,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError(f"no memory for the digits of {num_tokens} tokens")
        return out
