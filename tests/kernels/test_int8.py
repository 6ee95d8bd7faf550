"""int8 linears: exact sums, the oracle's values, and a token's bits in every batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ramet.kernels import (
    Int8Weight,
    PreparedInt8Weight,
    linear_int8,
    native,
    prepare_int8_weight,
    reference,
)
from ramet.kernels import int8 as int8_kernels
from ramet.kernels.native.library import NativeInt8Weight
from ramet.kernels.reference import INT8_GROUP


def random_int8(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def forms(weight: Tensor, scale: Tensor) -> list[Tensor | PreparedInt8Weight]:
    """The plain weight and, where this CPU has them, the prepared ones."""
    found: list[Tensor | PreparedInt8Weight] = [weight]
    if int8_kernels.fbgemm_is_exact():
        found.append(Int8Weight(weight.shape[0], weight.shape[1], int8_kernels._pack(weight, scale)))
    if (library := native.library()) is not None:
        found.append(library.pack_int8(weight, scale))
    return found


def is_compiled(form: Tensor | PreparedInt8Weight) -> bool:
    return isinstance(form, NativeInt8Weight)


@given(
    num_tokens=st.integers(1, 70),
    depth=st.one_of(st.integers(1, 40), st.sampled_from([64, 576, 1536, 4099])),
    columns=st.one_of(st.integers(1, 40), st.sampled_from([64, 576])),
    seed=st.integers(0, 2**31),
)
def test_sums_are_exact(num_tokens: int, depth: int, columns: int, seed: int) -> None:
    """Whole numbers up to 127 quantise to themselves, so the result is the integers' product."""
    q, weight = random_int8(num_tokens, depth, seed=seed), random_int8(columns, depth, seed=seed + 1)
    q[:, ::INT8_GROUP] = 127
    expected = q.double() @ weight.double().t()
    size = q.double().abs() @ weight.double().abs().t()
    for form in forms(weight, torch.ones(columns)):
        got = linear_int8(q.float(), form, torch.ones(columns)).double()
        torch.testing.assert_close(got, expected, rtol=3e-7, atol=0 if size.max() < 2**24 else 32)


@pytest.mark.parametrize("depth", [64, 576, 1536, 8192])
def test_close_to_its_oracle(depth: int) -> None:
    x, weight, scale = random(33, depth), random_int8(96, depth), random(96, seed=2).abs() + 0.1
    bias = random(96, seed=3)
    for form in forms(weight, scale):
        oracle = reference.linear_int8_grouped if is_compiled(form) else reference.linear_int8
        expected = oracle(x, weight, scale, bias)
        difference = (linear_int8(x, form, scale, bias) - expected).abs().amax()
        # A value on the border of two levels may round either way: 1 of 127 (* 254) levels in one of the terms.
        assert difference <= (5e-3 if is_compiled(form) else 2e-5) * expected.abs().amax()


@pytest.mark.parametrize("depth", [64, 576, 1536])
def test_close_to_a_product_of_unquantised_activations(depth: int) -> None:
    """Of one digit with one scale a token the error is 0.15."""
    x, weight, scale = random(33, depth), random_int8(96, depth), random(96, seed=2).abs() + 0.1
    x[:, 5] *= 40
    expected = x.double() @ weight.double().t() * scale
    for form in forms(weight, scale):
        error = (linear_int8(x, form, scale) - expected).norm() / expected.norm()
        assert error < (2e-2 if is_compiled(form) else 2e-3)


@pytest.mark.parametrize(("depth", "columns"), [(576, 960), (1536, 576), (100, 33), (7, 5)])
def test_a_token_is_the_same_in_every_batch(depth: int, columns: int) -> None:
    x, weight, scale = random(600, depth), random_int8(columns, depth), random(columns, seed=2).abs()
    x *= torch.logspace(-3, 3, 600)[:, None]
    for form in forms(weight, scale):
        whole = linear_int8(x, form, scale)
        for size in range(1, 71):
            assert torch.equal(linear_int8(x[:size].clone(), form, scale), whole[:size]), size
        for start, end in ((1, 600), (250, 506), (599, 600), (3, 131)):
            assert torch.equal(linear_int8(x[start:end].clone(), form, scale), whole[start:end])


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_the_number_of_threads_changes_nothing(num_threads: int) -> None:
    x, weight, scale = random(70, 576), random_int8(3072, 576), random(3072, seed=2).abs()
    before = torch.get_num_threads()
    for form in forms(weight, scale):
        expected = linear_int8(x, form, scale)
        torch.set_num_threads(num_threads)
        try:
            assert torch.equal(linear_int8(x, form, scale), expected)
        finally:
            torch.set_num_threads(before)


def test_rows_of_zeros_give_zeros_or_the_bias() -> None:
    x, weight, scale, bias = random(4, 64), random_int8(16, 64), random(16, seed=2).abs(), random(16, seed=3)
    x[2] = 0
    for form in forms(weight, scale):
        assert torch.equal(linear_int8(x, form, scale)[2], torch.zeros(16))
        assert torch.equal(linear_int8(x, form, scale, bias)[2], bias)


def test_a_token_that_is_not_finite_spoils_only_itself() -> None:
    x, weight, scale = random(5, 64), random_int8(16, 64), random(16, seed=2).abs() + 0.1
    broken = x.clone()
    broken[1, 3], broken[3, 0] = float("nan"), float("inf")
    for form in forms(weight, scale):
        clean, actual = linear_int8(x, form, scale), linear_int8(broken, form, scale)
        assert not actual[1].isfinite().any()
        assert not actual[3].isfinite().any()
        assert torch.equal(actual[[0, 2, 4]], clean[[0, 2, 4]])


@pytest.mark.parametrize("magnitude", [1e-25, 1e-10, 1e10, 1e37])
def test_scale_of_the_activations_does_not_matter(magnitude: float) -> None:
    x, weight, scale = random(3, 64), random_int8(16, 64), torch.full((16,), 1e-3)
    x /= x.abs().amax()
    for form in forms(weight, scale):
        actual = linear_int8(x * magnitude, form, scale) / magnitude
        expected = reference.linear_int8(x, weight, scale)
        assert (actual - expected).abs().amax() <= 0.02 * expected.abs().amax()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_result_has_the_activations_dtype(dtype: torch.dtype) -> None:
    x, weight, scale = random(3, 64).to(dtype), random_int8(16, 64), torch.full((16,), 1e-2)
    for form in forms(weight, scale):
        actual = linear_int8(x, form, scale, torch.ones(16, dtype=dtype))
        assert actual.dtype == dtype
        assert linear_int8(x[:0], form, scale).shape == (0, 16)


def test_prepared_weight_outlives_its_argument() -> None:
    x, weight, scale = random(3, 64), random_int8(16, 64), torch.full((16,), 1e-2)
    prepared = prepare_int8_weight(weight, scale)
    expected = linear_int8(x, prepared, scale)
    if isinstance(prepared, Int8Weight):
        weight.zero_()
        assert (prepared.out_features, prepared.in_features) == (16, 64)
    assert torch.equal(linear_int8(x, prepared, scale), expected)


@pytest.mark.parametrize("depth", [1, 7, 1024, 1025, 5000])
def test_every_integer_matmul_is_exact(depth: int) -> None:
    a, b = random_int8(5, depth), random_int8(13, depth, seed=1)
    a[0], b[0] = 127, -127
    expected = (a.long() @ b.long().t()).to(torch.int32)
    assert torch.equal(int8_kernels.integer_matmul(a, b), expected)
    assert torch.equal(int8_kernels._fp32_matmul(a, b), expected)
    # It is for GPUs; on a CPU without VNNI torch's product is not exact, and not used.
    if int8_kernels._int_mm_is_exact():
        assert torch.equal(int8_kernels._int_mm_padded(a, b), expected)
