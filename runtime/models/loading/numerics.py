"""In which numbers a model computes: quantisation, dtype and device, chosen together."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from ramet.kernels import has_gpu_kernels
from ramet.runtime.protocol.errors import InvalidRequestError

QuantizationOption = Literal["auto", "none", "int8", "fp8", "int4"]
DtypeOption = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["none", "int8", "fp8", "int4"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Numerics:
    quantization: Quantization
    """Of the linear layers' weights."""
    dtype: torch.dtype
    """Of the activations and of weights that are not quantised."""
    device: torch.device
    automatic: bool
    """quantization was "auto": it may give way where a model cannot have it."""


def choose_numerics(quantization: str, dtype: str, device: str | torch.device) -> Numerics:
    """Settle what is "auto".

    device: CUDA where there is one, else the CPU. quantization: int8 on the CPU where dtype is left to us
    too, none otherwise (a dtype that is asked for is what the weights are to be in); fp8 takes the kernels of a
    GPU, int4 a CPU or those. dtype: bfloat16 on CUDA, float32 on the CPU, where few processors compute in
    bfloat16. Raises InvalidRequestError that names the field.
    """
    if quantization not in get_args(QuantizationOption):
        raise _invalid("quantization", quantization, get_args(QuantizationOption))
    if dtype not in get_args(DtypeOption):
        raise _invalid("dtype", dtype, get_args(DtypeOption))
    place = _device(device)
    chosen: Quantization
    match quantization:
        case "int8":
            chosen = "int8"
        case "fp8" | "int4":
            if not has_gpu_kernels(place) and not (quantization == "int4" and place.type == "cpu"):
                raise InvalidRequestError(
                    f"quantization is {quantization!r}, which the kernels for CUDA devices alone have (with "
                    f"triton installed), and device is {str(place)!r}; use 'int8'",
                    field="quantization",
                )
            chosen = "fp8" if quantization == "fp8" else "int4"
        case "auto" if place.type == "cpu" and dtype == "auto":
            chosen = "int8"
        case _:
            chosen = "none"
    automatic = torch.bfloat16 if place.type == "cuda" else torch.float32
    return Numerics(chosen, _DTYPES.get(dtype, automatic), place, automatic=quantization == "auto")


def _device(device: str | torch.device) -> torch.device:
    available = torch.cuda.is_available()
    if device == "auto":
        return torch.device("cuda" if available else "cpu")
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        raise _invalid("device", device, ("auto", "cpu", "cuda", "cuda:N")) from None
    if place.type not in ("cpu", "cuda"):
        raise _invalid("device", device, ("auto", "cpu", "cuda", "cuda:N"))
    if place.type == "cuda" and not available:
        why = "finds no CUDA device" if torch.version.cuda else "is built without CUDA"
        raise InvalidRequestError(
            f"device is {str(device)!r} but torch {why}; set device='cpu'", field="device"
        )
    if place.type == "cuda" and place.index is not None and place.index >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise InvalidRequestError(f"device is {str(device)!r} but there are only {count}", field="device")
    return place


def _invalid(field: str, value: object, accepted: tuple[str, ...]) -> InvalidRequestError:
    return InvalidRequestError(f"{field} is {value!r}; it must be one of {', '.join(accepted)}", field=field)
