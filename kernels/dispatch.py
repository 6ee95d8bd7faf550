"""Which version of an op runs: for fp32 tensors on CPU the compiled one where there is one, else few calls of
torch; on a GPU Triton's, where it is installed; elsewhere the oracle in plain torch."""

import functools
import importlib
import importlib.util
from types import ModuleType

import torch
from torch import Tensor

from ramet.kernels import cpu, native, reference
from ramet.kernels.native.library import NativeInt4Weight

GPU_MAX_HIDDEN = 16384
"""The longest row that the GPU's norms take, ``gpu.MAX_HIDDEN``."""
_GPU_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm (arXiv 1910.07467) over the last dimension, computed in fp32.

    x: [..., hidden]; weight: [hidden]. Gemma's ``1 + weight`` is folded into the weight when it is loaded.
    """
    if _is_cpu_fp32(x) and weight.dtype is torch.float32:
        library = native.library()
        return cpu.rms_norm(x, weight, eps) if library is None else library.rms_norm(x, weight, eps)
    gpu = gpu_kernels(x) if weight.numel() <= GPU_MAX_HIDDEN else None
    return reference.rms_norm(x, weight, eps) if gpu is None else gpu.rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """residual + x, and its norm: (normed, new_residual). Neither argument changes."""
    if _is_cpu_fp32(x) and residual.dtype is torch.float32 and weight.dtype is torch.float32:
        library = native.library()
        if library is not None and x.dim() == 2:
            return library.add_rms_norm(x, residual, weight, eps)
        return cpu.add_rms_norm(x, residual, weight, eps)
    gpu = gpu_kernels(x) if weight.numel() <= GPU_MAX_HIDDEN and _are_alike(x, residual) else None
    if gpu is None:
        return reference.add_rms_norm(x, residual, weight, eps)
    result: tuple[Tensor, Tensor] = gpu.add_rms_norm(x, residual, weight, eps)
    return result


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary position embedding (arXiv 2104.09864), the half-split ("NeoX") pairing.

    q: [num_tokens, num_heads, head_dim]; k: [num_tokens, num_kv_heads, head_dim];
    cos, sin: [num_tokens, rotary_dim / 2] fp32. Dimensions from rotary_dim on pass through.
    """
    if _is_cpu_fp32(q) and k.dtype is torch.float32 and 2 * cos.shape[-1] == q.shape[-1]:
        library = native.library()
        return cpu.apply_rope(q, k, cos, sin) if library is None else library.apply_rope(q, k, cos, sin)
    gpu = gpu_kernels(q) if k.stride(-1) == 1 else None
    return reference.apply_rope(q, k, cos, sin) if gpu is None else gpu.apply_rope(q, k, cos, sin)


def gated_activation(gate_up: Tensor, kind: str) -> Tensor:
    """act(gate) * up. gate_up: [num_tokens, 2 * intermediate], gate first. kind: "silu" or "gelu_tanh"."""
    if _is_cpu_fp32(gate_up):
        library = native.library()
        if library is not None and gate_up.dim() == 2 and kind in ("silu", "gelu_tanh"):
            return library.gated_activation(gate_up, tanh_gelu=kind == "gelu_tanh")
        return cpu.gated_activation(gate_up, kind)
    gpu = gpu_kernels(gate_up)
    return reference.gated_activation(gate_up, kind) if gpu is None else gpu.gated_activation(gate_up, kind)


def apply_bitmask(logits: Tensor, first: int, mask: Tensor) -> None:
    """Set rows first.. of ``logits`` to -inf where their bit is 0.

    logits: [num_rows, vocab_size] fp32, changed in place; mask: [m, ceil(vocab_size / 32) or more] int32 on the
    same device, contiguous, bit t % 32 of word t // 32 for token t.
    """
    gpu = gpu_kernels(logits)
    if gpu is None:
        reference.apply_bitmask(logits, first, mask)
    else:
        gpu.apply_bitmask(logits, first, mask)


def fused_experts(
    x: Tensor,
    weights: tuple[Tensor, Tensor],
    scales: tuple[Tensor, Tensor] | None,
    shares: Tensor,
    chosen: Tensor,
    kind: str,
) -> Tensor:
    """sum over i of shares[t, i] * down_e(act(gate_e(x_t)) * up_e(x_t)), e = chosen[t, i].

    x: [num_tokens, hidden]; weights: gate_up [num_experts, 2 * intermediate, hidden], gate's channels first,
    and down [num_experts, hidden, intermediate], of x's dtype, or int8 or e4m3 (uint8) with scales of
    [num_experts, channels] fp32; shares, chosen: [num_tokens, top_k] fp32, int64. Nothing waits for a GPU.
    """
    gpu = gpu_kernels(x)
    if gpu is not None:
        own = gpu.ExpertWeights(*weights, *(scales or ()))
        result: Tensor = gpu.fused_experts(x, own, shares, chosen, kind)
        return result
    if scales is not None:
        if weights[0].dtype is torch.uint8:
            weights = reference.from_e4m3(weights[0]), reference.from_e4m3(weights[1])
        weights = weights[0] * scales[0][..., None], weights[1] * scales[1][..., None]
    return reference.fused_experts(x, weights[0], weights[1], shares, chosen, kind)


def prepare_int4_weight(weight: Tensor, weight_scale: Tensor) -> NativeInt4Weight | Tensor:
    """The form of a weight that ``linear_int4`` takes on its device: the compiled kernel's, or the argument
    itself."""
    library = native.library() if weight.device.type == "cpu" else None
    return weight if library is None else library.pack_int4(weight, weight_scale)


def linear_int4(
    x: Tensor, weight: Tensor | NativeInt4Weight, weight_scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """x @ weight.T with weights of ``quantize_int4``, which take a quarter of 16 bits. Returns x's dtype.

    x: [num_tokens, k]; weight: [n, k / 2] uint8, or what was prepared from it; weight_scale: [n, k / 32] fp32;
    bias: [n]. The compiled kernel quantises activations as its int8 linears do, and gives a token the same bits
    beside any others. Elsewhere off a GPU weights that are not prepared are unpacked at each call.
    """
    if isinstance(weight, NativeInt4Weight):
        exact = weight.library.linear_int4(x.float(), weight, None if bias is None else bias.float())
        return exact if x.dtype is torch.float32 else exact.to(x.dtype)
    gpu = gpu_kernels(x)
    if gpu is None:
        return reference.linear_int4(x, weight, weight_scale, bias)
    product: Tensor = gpu.linear_int4(x, weight, weight_scale, bias)
    return product


def linear_e4m3(x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T with weights of ``quantize_rows_e4m3``. weight: [n, k] uint8; weight_scale: [n] fp32; the
    rest as of ``linear_int4``."""
    gpu = gpu_kernels(x)
    if gpu is None:
        return reference.linear_e4m3(x, weight, weight_scale, bias)
    product: Tensor = gpu.linear_e4m3(x, weight, weight_scale, bias)
    return product


def has_gpu_kernels(device: torch.device) -> bool:
    """Whether tensors on it are Triton's to compute with."""
    return device.type == "cuda" and triton_module() is not None


def gpu_kernels(x: Tensor) -> ModuleType | None:
    """Triton's versions, for a tensor that they take."""
    return triton_module() if x.is_cuda and x.dtype in _GPU_DTYPES and x.stride(-1) == 1 else None


def _is_cpu_fp32(x: Tensor) -> bool:
    return x.is_cpu and x.dtype is torch.float32


def _are_alike(x: Tensor, residual: Tensor) -> bool:
    return x.dtype is residual.dtype and x.shape == residual.shape and residual.stride(-1) == 1


@functools.cache
def triton_module() -> ModuleType | None:
    """``kernels.gpu``, imported when the first tensor on a GPU comes; None where triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module("ramet.kernels.gpu")
