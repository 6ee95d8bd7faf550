"""Linears with weights of 4 and 8 bits against the oracles."""

import pytest
import torch

from ramet.kernels import reference
from ramet.kernels.gpu.linear_weight_only import linear_e4m3, linear_int4


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["int4", "e4m3"])
@pytest.mark.parametrize(("num_tokens", "n", "k"), [(1, 32, 32), (3, 40, 160), (65, 5, 256), (0, 8, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_equals_the_oracle(kind: str, num_tokens: int, n: int, k: int, dtype: torch.dtype) -> None:
    x, weight = random(num_tokens, k).to(dtype), random(n, k, seed=1)
    bias = None if n == 5 else random(n, seed=2).to(dtype)
    if kind == "int4":
        stored, linear, oracle = reference.quantize_int4(weight), linear_int4, reference.linear_int4
    else:
        stored, linear, oracle = reference.quantize_rows_e4m3(weight), linear_e4m3, reference.linear_e4m3
    actual = linear(x, *stored, bias)
    tolerance = 1e-4 if dtype is torch.float32 else 3e-2
    torch.testing.assert_close(actual, oracle(x, *stored, bias), atol=tolerance, rtol=tolerance)
    if num_tokens > 1:
        assert torch.equal(linear(x[1:2], *stored, bias)[0], actual[1])


def test_channels_of_any_depth_in_e4m3() -> None:
    x, stored = random(2, 45), reference.quantize_rows_e4m3(random(7, 45, seed=1))
    torch.testing.assert_close(linear_e4m3(x, *stored), reference.linear_e4m3(x, *stored))
    strided = random(2, 90)[:, :45]
    torch.testing.assert_close(linear_e4m3(strided, *stored), reference.linear_e4m3(strided, *stored))


def test_wrong_arguments_are_refused() -> None:
    packed, scale = reference.quantize_int4(random(4, 64))
    with pytest.raises(ValueError, match="multiple of 32"):
        linear_int4(random(1, 48), packed[:, :24], scale)
    with pytest.raises(ValueError, match="multiple of 32"):
        linear_int4(random(1, 64), packed, scale[:, :1])
    with pytest.raises(ValueError, match=r"\[m, k\]"):
        linear_e4m3(random(1, 63), packed, scale[:, 0])
    with pytest.raises(ValueError, match="contiguous uint8"):
        linear_e4m3(random(1, 32), packed.to(torch.int8), scale[:, 0].contiguous())
