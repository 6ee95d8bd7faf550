"""The compiled kernels as Python functions over torch tensors."""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ramet.kernels.native.build import NativeBuildError
from ramet.kernels.reference import INT4_GROUP

_ALIGNMENT = 64
SPAN = 192
"""Keys of one item of attention, at the most."""
_TRANSPOSED_KEYS = 16
_SCORED_ROWS = 6

# Calls of up to about 0.3 ms on one core keep the interpreter lock: so many products of int8, and so many
# numbers that an elementwise kernel writes. Up to so many tokens a product waits for its weights.
_SHORT_PRODUCTS = 50_000_000
_SHORT_NUMBERS = 250_000
_BOUND_BY_MEMORY = 10

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class NativeInt8Weight:
    """An int8 weight in the layout of the compiled kernel, made by ``NativeLibrary.pack_int8``."""

    library: "NativeLibrary"
    out_features: int
    in_features: int
    packed: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class NativeInt4Weight:
    """A 4-bit weight and its scales as the compiled kernel takes them, made by ``NativeLibrary.pack_int4``."""

    library: "NativeLibrary"
    out_features: int
    in_features: int
    packed: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionItems:
    """One step's attention, cut into items: a span of at most SPAN keys and the queries that read it.

    slots: [any] int64, of the items' keys, one item after another.
    items: [num_items, 4] int64: the first of its slots, how many, the first of its pairs, how many.
    pairs: [num_pairs, 4] int32: the query's token in the batch, the item's keys first..last (exclusive) that it
    sees, at least one, and the number of its partial result.
    folds: [num_tokens, 2] int64: a token's first partial result, and how many follow each other from there.
    """

    slots: Int64Array
    items: Int64Array
    pairs: npt.NDArray[np.int32]
    folds: Int64Array
    num_partials: int
    max_pairs: int
    """The most of one item."""


class NativeLibrary:
    """Thread-safe. All tensors on CPU.

    The interpreter lock is kept in calls of a fraction of a millisecond, and given up in longer ones. A thread
    that gives it up while another one computes in Python gets it back a switch interval later (5 ms by
    default), and a step makes some hundred calls: beside a busy thread it took 1.6 s instead of 13 ms. For the
    same reason results are allocated by NumPy, which keeps the lock.

    The compiled code reads what it is told to read. So shapes that do not fit each other raise ValueError here.
    """

    def __init__(self, path: Path, name: str) -> None:
        """Raises NativeBuildError where the file is no library of this version."""
        self.path = path
        self.name = name
        pointer, int64, int32, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
        try:
            libraries = library, _ = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
            self._packed_int8_bytes = _function(library.ramet_packed_int8_bytes, int64, int64, result=int64)
            self._pack_int8 = _function(library.ramet_pack_int8, pointer, int64, int64, pointer)
            self._linear_int8 = _calls(
                libraries,
                "ramet_linear_int8",
                *(pointer, int64, int64, pointer, pointer, pointer, int64, pointer, int32),
                result=int32,
            )
            self._packed_int4_bytes = _function(library.ramet_packed_int4_bytes, int64, int64, result=int64)
            self._pack_int4 = _function(library.ramet_pack_int4, pointer, pointer, int64, int64, pointer)
            self._linear_int4 = _calls(
                libraries,
                "ramet_linear_int4",
                *(pointer, int64, int64, pointer, pointer, int64, pointer, int32),
                result=int32,
            )
            self._rms_norm = _calls(
                libraries,
                "ramet_rms_norm",
                *(pointer, int64, pointer, pointer, real, int64, int64, pointer, pointer, int32),
            )
            self._rope = _calls(
                libraries,
                "ramet_rope",
                *(pointer, int64, int64, pointer, int64, int64, pointer, pointer, int64, int64, pointer, int32),
            )
            self._gated_activation = _calls(
                libraries,
                "ramet_gated_activation",
                *(pointer, int64, int64, int64, int32, pointer, int32),
            )
            self._finite_rows = _calls(libraries, "ramet_finite_rows", *(pointer, int64, int64, pointer, int32))
            attention = (
                *(pointer, int64, pointer, int64, pointer, int64, pointer, pointer, pointer, int64, int64),
                *(int64, int64, pointer, pointer, int64, pointer, pointer, real, real, pointer, pointer),
                *(int64, pointer, int32),
            )
            self._attention = {torch.float32: _calls(libraries, "ramet_attention", *attention)}
            if hasattr(library, "ramet_attention_bf16"):
                self._attention[torch.bfloat16] = _calls(libraries, "ramet_attention_bf16", *attention)
        except (OSError, AttributeError) as error:
            raise NativeBuildError(f"{path} cannot be loaded: {error}") from error

    def pack_int8(self, weight: Tensor, scale: Tensor) -> NativeInt8Weight:
        """weight: [out_features, in_features] int8; scale: [out_features] fp32."""
        weight, scale = weight.contiguous(), scale.contiguous()
        rows, depth = weight.shape
        _fit(weight.dtype is torch.int8, "weight", weight)
        _fit(scale.numel() == rows and scale.dtype is torch.float32, "scale", scale)
        packed = _aligned(self._packed_int8_bytes(rows, depth))
        self._pack_int8(weight.data_ptr(), rows, depth, packed.data_ptr())
        return NativeInt8Weight(self, rows, depth, packed, scale)

    def pack_int4(self, weight: Tensor, scale: Tensor) -> NativeInt4Weight:
        """weight: [out_features, in_features / 2] uint8; scale: [out_features, in_features / 32] fp32
        (``reference.quantize_int4``)."""
        weight, scale = weight.contiguous(), scale.contiguous()
        rows, depth = weight.shape[0], 2 * weight.shape[1]
        _fit(weight.dtype is torch.uint8 and depth % INT4_GROUP == 0, "weight", weight)
        _fit(scale.shape == (rows, depth // INT4_GROUP) and scale.dtype is torch.float32, "scale", scale)
        packed = _aligned(self._packed_int4_bytes(rows, depth))
        self._pack_int4(weight.data_ptr(), scale.data_ptr(), rows, depth, packed.data_ptr())
        return NativeInt4Weight(self, rows, depth, packed)

    def linear_int4(self, x: Tensor, weight: NativeInt4Weight, bias: Tensor | None) -> Tensor:
        """The product with activations of ``reference.linear_int8_grouped``; the rest as of ``linear_int8``."""
        x = x.contiguous()
        _fit(x.dim() == 2 and x.shape[1] == weight.in_features and x.dtype is torch.float32, "x", x)
        if bias is not None:
            bias = bias.contiguous()
            _fit(bias.numel() == weight.out_features and bias.dtype is torch.float32, "bias", bias)
        num_tokens = x.shape[0]
        out = _empty(num_tokens, weight.out_features)
        work = weight.out_features * weight.in_features * max(num_tokens, _BOUND_BY_MEMORY)
        failed = self._linear_int4[work <= _SHORT_PRODUCTS](
            *(x.data_ptr(), num_tokens, weight.in_features, weight.packed.data_ptr()),
            *(None if bias is None else bias.data_ptr(), weight.out_features, out.data_ptr()),
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError(f"no memory for the digits of {num_tokens} tokens")
        return out

    def linear_int8(self, x: Tensor, weight: NativeInt8Weight, bias: Tensor | None) -> Tensor:
        """``reference.linear_int8_grouped``, every token with the same bits whatever the others are.

        x: [num_tokens, in_features] fp32; bias: [out_features] fp32. Returns [num_tokens, out_features].
        """
        x = x.contiguous()
        _fit(x.dim() == 2 and x.shape[1] == weight.in_features, "x", x)
        if bias is not None:
            bias = bias.contiguous()
            _fit(bias.numel() == weight.out_features, "bias", bias)
        num_tokens = x.shape[0]
        out = _empty(num_tokens, weight.out_features)
        work = weight.out_features * weight.in_features * max(num_tokens, _BOUND_BY_MEMORY)
        failed = self._linear_int8[work <= _SHORT_PRODUCTS](
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

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x: [..., width] fp32; weight: [width] fp32. Returns [..., width]."""
        width = x.shape[-1]
        weight = weight.contiguous()
        _fit(weight.numel() == width, "weight", weight)
        if x.dim() != 2 or x.stride(1) != 1:
            x = x.contiguous()
        normed = _empty(*x.shape)
        self._rms_norm[x.numel() <= _SHORT_NUMBERS](
            *(x.data_ptr(), x.stride(0) if x.dim() == 2 else width, None, weight.data_ptr(), eps),
            *(x.numel() // width, width, normed.data_ptr(), None, torch.get_num_threads()),
        )
        return normed

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The norm of x + residual, and x + residual. All [num_tokens, width] fp32."""
        x, residual, weight = x.contiguous(), residual.contiguous(), weight.contiguous()
        rows, width = x.shape
        _fit(weight.numel() == width, "weight", weight)
        _fit(residual.shape == x.shape, "residual", residual)
        normed, total = _empty(*x.shape), _empty(*x.shape)
        self._rms_norm[x.numel() <= _SHORT_NUMBERS](
            *(x.data_ptr(), width, residual.data_ptr(), weight.data_ptr(), eps),
            *(rows, width, normed.data_ptr(), total.data_ptr(), torch.get_num_threads()),
        )
        return normed, total

    def apply_rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """q: [num_tokens, num_heads, head_dim] fp32; k likewise; cos, sin: [num_tokens, head_dim / 2] fp32.

        The results are views of one new tensor.
        """
        q, k, cos, sin = by_token(q), by_token(k), cos.contiguous(), sin.contiguous()
        num_tokens, num_heads, head_dim = q.shape
        num_kv_heads = k.shape[1]
        _fit(k.shape == (num_tokens, num_kv_heads, head_dim), "k", k)
        _fit(cos.shape == (num_tokens, head_dim // 2) and cos.dtype is torch.float32, "cos", cos)
        _fit(sin.shape == cos.shape and sin.dtype is torch.float32, "sin", sin)
        out = _empty(num_tokens, num_heads + num_kv_heads, head_dim)
        self._rope[out.numel() <= _SHORT_NUMBERS](
            *(q.data_ptr(), q.stride(0), num_heads, k.data_ptr(), k.stride(0), num_kv_heads),
            *(cos.data_ptr(), sin.data_ptr(), num_tokens, head_dim // 2),
            *(out.data_ptr(), torch.get_num_threads()),
        )
        turned_q, turned_k = out.split_with_sizes((num_heads, num_kv_heads), 1)
        return turned_q, turned_k

    def gated_activation(self, gate_up: Tensor, *, tanh_gelu: bool) -> Tensor:
        """gate_up: [num_tokens, 2 * width] fp32, gate first. SiLU, or GELU's tanh form. Returns [num_tokens,
        width]."""
        if gate_up.stride(1) != 1:
            gate_up = gate_up.contiguous()
        _fit(gate_up.shape[1] % 2 == 0, "gate_up", gate_up)
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = _empty(rows, width)
        self._gated_activation[out.numel() <= _SHORT_NUMBERS](
            *(gate_up.data_ptr(), gate_up.stride(0), rows, width, tanh_gelu),
            *(out.data_ptr(), torch.get_num_threads()),
        )
        return out

    def finite_rows(self, x: Tensor) -> npt.NDArray[np.bool_]:
        """x: [rows, width] fp32. [rows]: whether all numbers of a row are finite."""
        x = x.contiguous()
        _fit(x.dim() == 2 and x.dtype is torch.float32, "x", x)
        finite = np.empty(x.shape[0], np.bool_)
        self._finite_rows[x.numel() <= _SHORT_NUMBERS](
            *(x.data_ptr(), *x.shape, finite.ctypes.data, torch.get_num_threads())
        )
        return finite

    @property
    def kv_dtypes(self) -> frozenset[torch.dtype]:
        """What ``attention`` takes keys and values in: fp32, and bfloat16 where the CPU multiplies it."""
        return frozenset(self._attention)

    def attention(
        self,
        heads: tuple[Tensor, Tensor, Tensor],
        pool: tuple[Tensor, Tensor],
        written: Tensor,
        items: AttentionItems,
        scratch: "AttentionScratch",
        *,
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        """Writes k and v into the pool, then attends.

        heads: fp32 q [num_tokens, num_heads, head_dim], k and v [num_tokens, num_kv_heads, head_dim]. pool:
        keys and values, [num_slots, num_kv_heads, head_dim] each, of one dtype in ``kv_dtypes``; head_dim a
        multiple of 16. written: [num_tokens] int64 slots. scale: above 0. Returns q's shape. A
        token's result depends on its own query, keys and values alone, and on where its spans begin.
        """
        if not scale > 0.0:  # the highest score is looked for before they are scaled
            raise ValueError(f"scale {scale} does not fit; it must be above 0")
        q, k, v = map(by_token, heads)
        num_tokens, num_heads, head_dim = q.shape
        num_kv_heads = k.shape[1]
        fp32 = q.dtype is k.dtype is v.dtype is torch.float32
        _fit(fp32 and num_heads % num_kv_heads == 0 and head_dim % _TRANSPOSED_KEYS == 0, "q", q)
        _fit(k.shape == (num_tokens, num_kv_heads, head_dim), "k", k)
        _fit(v.shape == k.shape, "v", v)
        dtype = pool[0].dtype
        _fit(dtype in self._attention and pool[1].dtype is dtype, "pool", pool[0])
        _fit(pool[0].shape == pool[1].shape and pool[0].shape[1:] == k.shape[1:], "pool", pool[0])
        _fit(len(written) == len(items.folds) == num_tokens, "written", written)
        num_threads = torch.get_num_threads()
        out = _empty(*q.shape)
        partials, own, size = scratch.of(items, num_heads, num_heads // num_kv_heads, head_dim, num_threads)
        work = len(items.pairs) * SPAN * num_heads * head_dim
        self._attention[dtype][work <= _SHORT_PRODUCTS](
            *(q.data_ptr(), q.stride(0), k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0)),
            *(pool[0].data_ptr(), pool[1].data_ptr(), written.data_ptr(), num_tokens, num_kv_heads),
            *(num_heads // num_kv_heads, head_dim, items.slots.ctypes.data, items.items.ctypes.data),
            *(len(items.items), items.pairs.ctypes.data, items.folds.ctypes.data, scale, softcap or 0.0),
            *(partials, own, size, out.data_ptr(), num_threads),
        )
        return out


class AttentionScratch:
    """Memory of ``NativeLibrary.attention``, kept from layer to layer; for one call at a time."""

    def __init__(self) -> None:
        self._partials = torch.empty(0)
        self._own = torch.empty(0)

    def of(
        self, items: AttentionItems, num_heads: int, group_size: int, head_dim: int, num_threads: int
    ) -> tuple[int, int, int]:
        """Addresses of the partial results and of the threads' own memory, and the floats of a thread."""
        num_partials = items.num_partials * num_heads * (head_dim + 2)
        rows = items.max_pairs * group_size
        # fp32: 16 keys, transposed, and each query head's scores. bfloat16: a span's keys and values, the
        # scores of six query heads, and each query head in 16 bits.
        fp32 = head_dim * _TRANSPOSED_KEYS + rows * SPAN
        size = max(fp32, SPAN * head_dim + _SCORED_ROWS * SPAN + rows * head_dim // 2)
        size += -size % _TRANSPOSED_KEYS
        if self._partials.numel() < num_partials:
            self._partials = torch.empty(num_partials)
        if self._own.numel() < num_threads * size + _ALIGNMENT:
            self._own = torch.empty(num_threads * size + _ALIGNMENT)
        start = self._own.data_ptr()
        return self._partials.data_ptr(), start + -start % _ALIGNMENT, size


def by_token(x: Tensor) -> Tensor:
    """[num_tokens, heads, head_dim] with each token's heads in a row."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def _empty(*shape: int) -> Tensor:
    """As torch.empty, which gives the interpreter lock up."""
    return torch.from_numpy(np.empty(shape, np.float32))


def _aligned(size: int) -> Tensor:
    memory = torch.empty(size + _ALIGNMENT, dtype=torch.uint8)
    return memory.narrow(0, -memory.data_ptr() % _ALIGNMENT, size)


def _fit(fits: bool, name: str, tensor: Tensor) -> None:
    if not fits:
        raise ValueError(f"{name} of {tensor.dtype} and shape {list(tensor.shape)} does not fit the others")


def _calls(libraries: tuple[Any, Any], name: str, *arguments: Any, result: Any = None) -> tuple[Any, Any]:
    """Of the library that gives the interpreter lock up in a call, and of the one that keeps it."""
    freeing, keeping = (_function(getattr(library, name), *arguments, result=result) for library in libraries)
    return freeing, keeping


def _function(function: Any, *arguments: Any, result: Any = None) -> Any:
    function.argtypes, function.restype = list(arguments), result
    return function
