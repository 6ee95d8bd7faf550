import pytest
import torch

from ramet.runtime.models.loading.numerics import Numerics, choose_numerics
from ramet.runtime.protocol import InvalidRequestError

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("quantization", "dtype", "expected"),
    [
        ("auto", "auto", Numerics("int8", torch.float32, CPU, automatic=True)),
        ("auto", "float32", Numerics("none", torch.float32, CPU, automatic=True)),
        ("auto", "bfloat16", Numerics("none", torch.bfloat16, CPU, automatic=True)),
        ("none", "auto", Numerics("none", torch.float32, CPU, automatic=False)),
        ("int8", "auto", Numerics("int8", torch.float32, CPU, automatic=False)),
        ("int8", "float16", Numerics("int8", torch.float16, CPU, automatic=False)),
    ],
)
def test_what_is_automatic_on_the_cpu(quantization: str, dtype: str, expected: Numerics) -> None:
    assert choose_numerics(quantization, dtype, "cpu") == expected
    assert choose_numerics(quantization, dtype, CPU) == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_is_automatic_on_cuda() -> None:
    assert choose_numerics("auto", "auto", "auto") == Numerics(
        "none", torch.bfloat16, torch.device("cuda"), automatic=True
    )
    assert choose_numerics("auto", "float32", "cuda").dtype == torch.float32
    with pytest.raises(InvalidRequestError, match="only"):
        choose_numerics("auto", "auto", "cuda:999")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_cuda() -> None:
    assert choose_numerics("auto", "auto", "auto").device == CPU
    with pytest.raises(InvalidRequestError, match="set device='cpu'") as caught:
        choose_numerics("auto", "auto", "cuda:0")
    assert caught.value.field == "device"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("quantization", "int3"),
        ("quantization", ""),
        ("dtype", "float64"),
        ("dtype", "torch.float32"),
        ("device", "tpu"),
        ("device", "meta"),
        ("device", "cpu,cuda"),
        ("device", ""),
    ],
)
def test_unknown_values_are_refused_by_name(field: str, value: str) -> None:
    options = {"quantization": "auto", "dtype": "auto", "device": "cpu", field: value}
    with pytest.raises(InvalidRequestError, match=field) as caught:
        choose_numerics(**options)
    assert caught.value.field == field
    assert repr(value) in str(caught.value)


def test_fp8_takes_the_kernels_of_a_gpu() -> None:
    assert choose_numerics("int4", "auto", "cpu") == Numerics("int4", torch.float32, CPU, automatic=False)
    with pytest.raises(InvalidRequestError, match="CUDA devices alone") as caught:
        choose_numerics("fp8", "auto", "cpu")
    assert caught.value.field == "quantization"
