"""A launch as what is compiled."""

import pytest
import torch

pytest.importorskip("triton")

from ramet.kernels.gpu.activation import activation_launch
from ramet.kernels.gpu.launch import next_power_of_two, require_unit_stride
from ramet.kernels.gpu.row_norm import norm_launch


def meta(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_the_source_names_every_argument() -> None:
    source = activation_launch(meta(4, 96), "silu", meta(4, 48)).source()
    assert source.signature == {
        "gate_up": "*fp16",
        "out": "*fp16",
        "stride_row": "i32",
        "width": "i32",
        "IS_SILU": "constexpr",
        "BLOCK": "constexpr",
    }
    # Tensors and multiples of 16 are known to be aligned.
    assert set(source.attrs) == {(0,), (1,), (2,), (3,)}
    assert source.constants == {(4,): True, (5,): 1024}


def test_an_integer_that_is_one_is_a_constant() -> None:
    x = meta(3, 64)
    source = norm_launch(x, None, meta(64, dtype=torch.float32), 1e-5, (x, x)).source()
    names = list(source.signature)
    assert source.signature["rows_per_block"] == "constexpr"
    assert source.constants[names.index("rows_per_block"),] == 1
    assert source.signature["eps"] == "fp32"
    assert source.signature["weight"] == "*fp32"


def test_an_empty_grid_is_no_call() -> None:
    activation_launch(meta(0, 96), "silu", meta(0, 48)).run()


@pytest.mark.parametrize(("value", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_powers_of_two(value: int, power: int) -> None:
    assert next_power_of_two(value) == power


def test_a_strided_last_dimension_is_refused() -> None:
    require_unit_stride("x", torch.ones(2, 3))
    require_unit_stride("x", torch.ones(3, 1).t().t())
    with pytest.raises(ValueError, match=r"x's last dimension has stride 3; pass x\.contiguous"):
        require_unit_stride("x", torch.ones(2, 3).t())
