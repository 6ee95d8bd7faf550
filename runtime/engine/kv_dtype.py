"""In which dtype the KV pool keeps keys and values."""

import torch

from ramet.kernels import has_gpu_kernels
from ramet.kernels.native import NativeLibrary
from ramet.runtime.attention import HEAD_DIM_STEP
from ramet.runtime.models.loading import LoadedModel
from ramet.runtime.protocol import InvalidRequestError

EIGHT_BITS = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}


def choose_kv_dtype(wanted: str, loaded: LoadedModel, library: NativeLibrary | None) -> torch.dtype:
    """wanted: of ``EngineConfig.kv_cache_dtype``; library: the compiled kernels, where they run.

    auto: the dtype of the activations, and bfloat16 beside quantised weights where the compiled attention has
    it, which reads and multiplies half as much and is far more exact than the weights. Who asks for unquantised
    weights gets unrounded keys. fp8 (float8_e4m3fn) and int8 take the kernels of a GPU. Raises
    InvalidRequestError where what is wanted cannot be had.
    """
    if wanted in EIGHT_BITS:
        return _eight_bits(wanted, loaded)
    on_cpu = loaded.device.type == "cpu" and loaded.dtype is torch.float32
    compiled = (
        library is not None
        and on_cpu
        and loaded.config.head_dim % HEAD_DIM_STEP == 0
        and torch.bfloat16 in library.kv_dtypes
    )
    if wanted == "auto":
        return torch.bfloat16 if compiled and loaded.quantization != "none" else loaded.dtype
    if wanted == _name(loaded.dtype):
        return loaded.dtype
    if wanted == "bfloat16" and compiled:
        return torch.bfloat16
    why = f"here keys and values are kept in {_name(loaded.dtype)}, the dtype of the activations"
    if wanted == "bfloat16" and on_cpu:
        why = (
            "that takes the compiled kernels, a CPU with AVX512_BF16 and heads of a multiple of "
            f"{HEAD_DIM_STEP} numbers; here it is float32"
        )
    raise InvalidRequestError(
        f"kv_cache_dtype is {wanted!r}, but {why}; leave it at 'auto'", field="kv_cache_dtype"
    )


def _eight_bits(wanted: str, loaded: LoadedModel) -> torch.dtype:
    if not has_gpu_kernels(loaded.device):
        raise InvalidRequestError(
            f"kv_cache_dtype is {wanted!r}, which the kernels for CUDA devices alone have (with triton "
            f"installed), and the model is on {loaded.device}; leave it at 'auto'",
            field="kv_cache_dtype",
        )
    # Imported here: what needs no GPU does not load triton.
    from ramet.runtime.attention.gpu_backend import GpuAttentionBackend

    model = loaded.config
    if not GpuAttentionBackend.supports(model.num_heads, model.num_kv_heads, model.head_dim, loaded.dtype):
        raise InvalidRequestError(
            f"kv_cache_dtype is {wanted!r}, and the kernels do not hold the model's heads of {model.head_dim} "
            "channels; leave it at 'auto'",
            field="kv_cache_dtype",
        )
    return EIGHT_BITS[wanted]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
