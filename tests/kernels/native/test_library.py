"""The compiled kernels against torch's, bit for bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ramet.kernels import Int8Weight, linear_int8, native, reference
from ramet.kernels import int8 as int8_kernels
from ramet.kernels.native import NativeLibrary


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> NativeLibrary:
    reason = native.enable(tmp_path_factory.mktemp("kernels"))
    found = native.library()
    if found is None:
        pytest.skip(reason)
    return found


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def random_int8(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


@given(
    num_tokens=st.integers(1, 40),
    depth=st.one_of(st.integers(1, 80), st.sampled_from([576, 1536, 4099])),
    columns=st.one_of(st.integers(1, 80), st.sampled_from([576])),
    seed=st.integers(0, 2**31),
    with_bias=st.booleans(),
)
def test_bits_are_those_of_torch(
    library: NativeLibrary, num_tokens: int, depth: int, columns: int, seed: int, with_bias: bool
) -> None:
    if not int8_kernels.fbgemm_is_exact():
        pytest.skip("no other exact kernel to compare with")
    x = random(num_tokens, depth, seed=seed) * 10 ** random(num_tokens, 1, seed=seed + 1)
    x[seed % num_tokens] *= seed % 3
    weight, scale = random_int8(columns, depth, seed=seed), random(columns, seed=seed + 2).abs()
    bias = random(columns, seed=seed + 3) if with_bias else None
    packed = Int8Weight(columns, depth, int8_kernels._pack(weight, scale))
    assert torch.equal(
        linear_int8(x, library.pack_int8(weight, scale), scale, bias), linear_int8(x, packed, scale, bias)
    )


def test_close_to_the_oracle(library: NativeLibrary) -> None:
    x, weight, scale, bias = random(33, 576), random_int8(96, 576), random(96, seed=2).abs(), random(96)
    expected = reference.linear_int8(x, weight, scale, bias)
    difference = (linear_int8(x, library.pack_int8(weight, scale), scale, bias) - expected).abs().amax()
    assert difference <= 2e-5 * expected.abs().amax()


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_token_has_the_same_bits_in_every_batch_and_with_all_threads(
    library: NativeLibrary, num_threads: int
) -> None:
    x, weight, scale = random(500, 100), random_int8(70, 100), random(70, seed=2).abs()
    prepared = library.pack_int8(weight, scale)
    before = torch.get_num_threads()
    alone = torch.cat([library.linear_int8(row[None], prepared, None) for row in x])
    try:
        torch.set_num_threads(num_threads)
        for size in (2, 3, 5, 6, 7, 8, 13, 193, 500):
            parts = [library.linear_int8(part, prepared, None) for part in torch.split(x, size)]
            assert torch.equal(torch.cat(parts), alone), size
    finally:
        torch.set_num_threads(before)


def test_rows_of_zeros_and_rows_that_are_not_finite(library: NativeLibrary) -> None:
    weight, scale = random_int8(40, 50), random(40).abs()
    x = random(5, 50)
    x[0] = 0
    x[1, 3] = float("inf")
    x[2, 4] = float("nan")
    x[3] = 1e-45
    out = library.linear_int8(x, library.pack_int8(weight, scale), None)
    assert torch.equal(out[0], torch.zeros(40))
    assert not out[1].isfinite().any()
    assert not out[2].isfinite().any()
    assert out[3:].isfinite().all()


def test_inputs_that_are_not_contiguous_and_of_other_dtypes(library: NativeLibrary) -> None:
    weight, scale = random_int8(60, 50), random(60).abs()
    prepared = library.pack_int8(weight.t().contiguous().t(), scale)
    x = random(50, 8).t()
    expected = library.linear_int8(x.contiguous(), library.pack_int8(weight, scale), None)
    assert torch.equal(library.linear_int8(x, prepared, None), expected)
    half = linear_int8(x.to(torch.bfloat16), prepared, scale)
    assert half.dtype is torch.bfloat16
    assert torch.equal(half, library.linear_int8(x.to(torch.bfloat16).float(), prepared, None).bfloat16())


def test_no_tokens(library: NativeLibrary) -> None:
    prepared = library.pack_int8(random_int8(4, 3), torch.ones(4))
    assert library.linear_int8(torch.empty(0, 3), prepared, None).shape == (0, 4)
