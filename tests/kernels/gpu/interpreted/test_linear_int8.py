"""Int8 linears against the oracle and against the CPU's version."""

import pytest
import torch
from torch import Tensor

from ramet import kernels
from ramet.kernels import reference
from ramet.kernels.gpu.linear_int8 import linear_int8


def weights(n: int, k: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return reference.quantize_rows_int8(torch.randn(n, k))


@pytest.mark.parametrize(("num_tokens", "n", "k"), [(1, 64, 64), (3, 70, 200), (65, 5, 17), (0, 8, 8)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_the_oracle(num_tokens: int, n: int, k: int, with_bias: bool) -> None:
    weight, scale = weights(n, k)
    x = torch.randn(num_tokens, k)
    bias = torch.randn(n) if with_bias else None
    actual = linear_int8(x, weight, scale, bias)
    torch.testing.assert_close(actual, reference.linear_int8(x, weight, scale, bias), atol=1e-5, rtol=1e-5)
    if num_tokens > 1:
        assert torch.equal(linear_int8(x[1:2], weight, scale, bias)[0], actual[1])


def test_has_the_bits_of_the_torch_version() -> None:
    weight, scale = weights(70, 200)
    x = torch.randn(3, 200)
    assert torch.equal(linear_int8(x, weight, scale), kernels.linear_int8(x, weight, scale))


def test_half_precision_zeros_and_rows_that_are_not_finite() -> None:
    weight, scale = weights(8, 32)
    x = torch.randn(4, 32).half()
    x[1] = 0
    x[2, 3] = float("nan")
    x[3, 0] = float("inf")
    out = linear_int8(x, weight, scale)
    assert out.dtype is torch.float16
    torch.testing.assert_close(out[0], reference.linear_int8(x[:1], weight, scale)[0], atol=1e-2, rtol=1e-3)
    assert not out[1].any()
    assert not out[2:].isfinite().any()


def test_wrong_arguments_are_refused() -> None:
    weight, scale = weights(8, 32)
    with pytest.raises(ValueError, match="int8"):
        linear_int8(torch.randn(1, 16), weight, scale)
    with pytest.raises(ValueError, match="rows of 65537"):
        linear_int8(torch.ones(1, 65537), torch.ones(1, 65537, dtype=torch.int8), scale[:1])
    with pytest.raises(ValueError, match=r"weight\.contiguous"):
        linear_int8(torch.randn(1, 8), weight.t()[:8, :8].contiguous().t(), scale)
