# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""e4m3 and int8 as the kernels make and read them, number by number."""

import pytest
import torch
import triton
import triton.language as tl

from ramet.kernels import reference
from ramet.kernels.gpu.formats import format_of, from_e4m3, to_e4m3, to_int8


@triton.jit
def _encode(x, codes, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(codes + at, to_e4m3(tl.load(x + at)))


@triton.jit
def _decode(codes, x, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(x + at, from_e4m3(tl.load(codes + at)).to(tl.float32))


@triton.jit
def _levels(x, scale, levels, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(levels + at, to_int8(tl.load(x + at), tl.load(scale + at)))


def every_number() -> torch.Tensor:
    numbers = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float()
    return numbers[~numbers.isnan()]


def test_every_code_is_read_exactly() -> None:
    codes, found = torch.arange(256).to(torch.uint8), torch.empty(256)
    _decode[(1,)](codes, found, COUNT=256)
    expected = codes.view(torch.float8_e4m3fn).float()
    is_number = ~expected.isnan()
    assert torch.equal(found[is_number], expected[is_number])


def test_numbers_are_rounded_as_torch_rounds_them() -> None:
    numbers = every_number().sort().values
    middles = (numbers[1:] + numbers[:-1]) / 2
    near = [torch.nextafter(middles, torch.tensor(limit)) for limit in (1e9, -1e9)]
    x = torch.cat((numbers, middles, *near, torch.tensor([1e9, -470.0, float("inf"), float("nan"), -0.0])))
    x = torch.cat((x, torch.zeros(1024 - len(x))))
    codes = torch.empty(1024, dtype=torch.uint8)
    _encode[(1,)](x, codes, COUNT=1024)
    assert torch.equal(codes, reference.to_e4m3(x))


def test_levels_of_int8() -> None:
    x = torch.tensor([0.5, 1.5, -2.5, 200.0, -200.0, 0.0, 1.0, 126.6])
    levels = torch.empty(8, dtype=torch.int8)
    _levels[(1,)](x, torch.tensor([1.0] * 5 + [0.0, 0.0, 1.0]), levels, COUNT=8)
    assert levels.tolist() == [0, 2, -2, 127, -127, 0, 1, 127]


@pytest.mark.parametrize(
    ("dtype", "number"), [(torch.float16, 0), (torch.float32, 0), (torch.uint8, 1), (torch.int8, 2)]
)
def test_format_of(dtype: torch.dtype, number: int) -> None:
    assert format_of(torch.empty(1, dtype=dtype)) == number
