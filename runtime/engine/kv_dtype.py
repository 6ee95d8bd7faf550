"""In which dtype the KV pool keeps keys and values."""

import torch

from ramet.kernels.native import NativeLibrary
from ramet.runtime.attention import HEAD_DIM_STEP
from ramet.runtime.models.loading import LoadedModel
from ramet.runtime.protocol import InvalidRequestError


def choose_kv_dtype(wanted: str, loaded: LoadedModel, library: NativeLibrary | None) -> torch.dtype:
    """wanted: of ``EngineConfig.kv_cache_dtype``; library: the compiled kernels, where they run.

    auto: the dtype of the activations, and bfloat16 beside int8 weights where the compiled attention has it,
    which reads and multiplies half as much and is far more exact than the weights. Who asks for unquantised
    weights gets unrounded keys. Raises InvalidRequestError where what is wanted cannot be had.
    """
    on_cpu = loaded.device.type == "cpu" and loaded.dtype is torch.float32
    compiled = (
        library is not None
        and on_cpu
        and loaded.config.head_dim % HEAD_DIM_STEP == 0
        and torch.bfloat16 in library.kv_dtypes
    )
    if wanted == "auto":
        return torch.bfloat16 if compiled and loaded.quantization == "int8" else loaded.dtype
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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
