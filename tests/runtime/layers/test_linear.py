import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ramet.kernels import linear_int8, native, prepare_int8_weight, quantize_rows_int8
from ramet.kernels import reference as oracle
from ramet.runtime.layers.linear import (
    E4M3Linear,
    FloatLinear,
    Int4Linear,
    Int8Linear,
    Int16Linear,
    linear_from,
    linear_of,
    quantize_rows_int16,
)
from ramet.runtime.protocol import ModelLoadError


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_float() -> None:
    x, weight, bias = random(5, 12), random(7, 12, seed=1), random(7, seed=2)
    assert torch.allclose(FloatLinear(weight, bias)(x), x @ weight.t() + bias, atol=1e-5)
    assert torch.allclose(FloatLinear(weight)(x), x @ weight.t(), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_is_the_kernel(dtype: torch.dtype) -> None:
    weight, scale = quantize_rows_int8(random(16, 32))
    x, bias = random(5, 32, seed=1).to(dtype), random(16, seed=2).to(dtype)
    got = Int8Linear(weight, scale, bias)(x)
    assert got.dtype == dtype
    assert torch.equal(got, linear_int8(x, prepare_int8_weight(weight, scale), scale, bias))
    expected = oracle.linear_int8(x, weight, scale, bias).float()
    assert (got.float() - expected).abs().max() < 1e-2 * expected.abs().max()


def test_int16_rows_come_back_within_half_a_step() -> None:
    x = random(9, 40) * torch.logspace(-6, 6, 9)[:, None]
    q, scale = quantize_rows_int16(x)
    assert q.dtype == torch.int16
    assert bool(((q * scale[:, None] - x).abs() <= scale[:, None] * 0.501).all())
    zeros, scale = quantize_rows_int16(torch.zeros(2, 4))
    assert not zeros.any()
    assert bool((scale > 0).all())


@given(rows=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_int16_is_near_fp32_and_independent_of_the_batch(rows: int, seed: int) -> None:
    weight = random(11, 96, seed=seed)
    layer = Int16Linear(*quantize_rows_int16(weight))
    x = random(rows, 96, seed=seed + 1)
    got = layer(x)
    assert torch.equal(torch.cat([layer(row[None]) for row in x]), got)
    expected = x.double() @ weight.double().t()
    assert float((got - expected).abs().max() / expected.abs().max()) < 2e-4


def test_the_stored_form_chooses_the_layer() -> None:
    weight = random(4, 8)
    q8, s8 = quantize_rows_int8(weight)
    q16, s16 = quantize_rows_int16(weight)
    weights = {
        "a.weight": weight,
        "a.bias": random(4),
        "b.weight": q8,
        "b.scale": s8,
        "c.weight": q16,
        "c.scale": s16,
    }
    assert isinstance(linear_from(weights, "a"), FloatLinear)
    assert isinstance(linear_from(weights, "b"), Int8Linear)
    assert isinstance(linear_from(weights, "c"), Int16Linear)
    x = random(3, 8, seed=1)
    for name in "bc":
        assert torch.allclose(linear_from(weights, name)(x), x @ weight.t(), atol=0.1)
    assert torch.allclose(linear_from(weights, "a")(x), x @ weight.t() + weights["a.bias"], atol=1e-5)


def test_a_form_without_layer_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"no linear layer has a scaled weight of dtype torch\.int32"):
        linear_of(torch.zeros((2, 2), dtype=torch.int32), torch.ones(2))


def test_few_bits_are_the_kernels() -> None:
    weight, x, bias = random(16, 64), random(5, 64, seed=1), random(16, seed=2)
    stored = oracle.quantize_rows_e4m3(weight)
    found = linear_of(*stored, bias)
    assert isinstance(found, E4M3Linear)
    assert torch.equal(found(x), oracle.linear_e4m3(x, *stored, bias))


def test_four_bits_are_the_compiled_kernels_or_int8() -> None:
    weight, x, bias = random(16, 64), random(5, 64, seed=1), random(16, seed=2)
    stored = oracle.quantize_int4(weight)
    expected = oracle.linear_int4(x, *stored, bias)
    found = linear_of(*stored, bias)
    assert isinstance(found, Int8Linear if native.library() is None else Int4Linear)
    assert (found(x) - expected).norm() < 0.02 * expected.norm()
    assert torch.equal(torch.cat([found(row[None]) for row in x]), found(x))
