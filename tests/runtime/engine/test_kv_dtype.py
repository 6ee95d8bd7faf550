"""What keys and values are kept in, and what is refused."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from ramet.kernels.native import NativeLibrary
from ramet.runtime.engine.kv_dtype import choose_kv_dtype
from ramet.runtime.models.loading import LoadedModel
from ramet.runtime.protocol import InvalidRequestError


@dataclass
class Library:
    kv_dtypes: frozenset[torch.dtype]


WITH = Library(frozenset({torch.float32, torch.bfloat16}))
WITHOUT = Library(frozenset({torch.float32}))


def choose(wanted: str, library: Library | None, **loaded: Any) -> torch.dtype:
    model = {
        "device": torch.device("cpu"),
        "dtype": torch.float32,
        "quantization": "int8",
        "head_dim": 64,
    } | loaded
    heads = {name: model.pop(name, None) for name in ("head_dim", "num_heads", "num_kv_heads")}
    model["config"] = SimpleNamespace(**heads)
    return choose_kv_dtype(wanted, cast(LoadedModel, SimpleNamespace(**model)), cast(NativeLibrary, library))


def test_auto_is_bfloat16_beside_int8_weights_where_the_cpu_multiplies_it() -> None:
    assert choose("auto", WITH) is torch.bfloat16
    assert choose("auto", WITHOUT) is torch.float32
    assert choose("auto", None) is torch.float32
    assert choose("auto", WITH, quantization="none") is torch.float32
    assert choose("auto", WITH, head_dim=24) is torch.float32
    assert choose("auto", WITH, device=torch.device("cuda"), dtype=torch.float16) is torch.float16


def test_what_is_asked_for_is_had() -> None:
    assert choose("float32", WITH) is torch.float32
    assert choose("bfloat16", WITH, quantization="none") is torch.bfloat16
    assert choose("bfloat16", None, dtype=torch.bfloat16, quantization="none") is torch.bfloat16
    assert choose("float16", None, device=torch.device("cuda"), dtype=torch.float16) is torch.float16


@pytest.mark.parametrize(
    ("wanted", "library", "loaded", "message"),
    [
        (
            "bfloat16",
            WITHOUT,
            {},
            "kv_cache_dtype is 'bfloat16', but that takes the compiled",
        ),
        ("bfloat16", None, {}, "leave it at 'auto'"),
        ("bfloat16", WITH, {"head_dim": 24}, "heads of a multiple of 16"),
        (
            "float16",
            WITH,
            {},
            "'float16', but here keys and values are kept in float32",
        ),
        ("float32", WITH, {"dtype": torch.bfloat16}, "kept in bfloat16"),
        ("bfloat16", WITH, {"device": torch.device("cuda"), "dtype": torch.float16}, "kept in float16"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(
    wanted: str, library: Library | None, loaded: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refused:
        choose(wanted, library, **loaded)
    assert refused.value.field == "kv_cache_dtype"


def test_eight_bits_take_the_kernels_of_a_gpu() -> None:
    pytest.importorskip("triton")
    cuda = {"device": torch.device("cuda"), "dtype": torch.bfloat16, "num_heads": 8, "num_kv_heads": 2}
    assert choose("fp8", None, **cuda) is torch.float8_e4m3fn
    assert choose("int8", None, **cuda) is torch.int8
    with pytest.raises(InvalidRequestError, match="heads of 512"):
        choose("fp8", None, **cuda, head_dim=512)
    with pytest.raises(InvalidRequestError, match="CUDA devices alone"):
        choose("int8", WITH)
