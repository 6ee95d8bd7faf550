import math

import pytest
import torch
from torch import Tensor

from ramet.runtime.layers.rotary import (
    RotaryTable,
    inverse_frequencies,
    llama3_frequencies,
    yarn_attention_factor,
    yarn_frequencies,
)

CPU = torch.device("cpu")


def table(attention_factor: float = 1.0) -> RotaryTable:
    frequencies = inverse_frequencies(10000.0, 12)
    return RotaryTable(frequencies, max_positions=100_000, device=CPU, attention_factor=attention_factor)


def direct(positions: Tensor) -> Tensor:
    return positions.double()[:, None] * inverse_frequencies(10000.0, 12).double()


def test_lookup() -> None:
    positions = torch.tensor([0, 5, 4095, 5, 70_000])
    cos, sin = table().lookup(positions)
    assert cos.shape == sin.shape == (5, 6)
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    # fp32 angles: 70,000 radians have steps of 2^-7.
    assert torch.allclose(cos.double(), direct(positions).cos(), atol=1e-2)
    assert torch.allclose(sin[:3].double(), direct(positions[:3]).sin(), atol=5e-4)


def test_a_position_has_one_value_however_the_table_grew() -> None:
    positions = torch.tensor([0, 1, 2047, 2048, 5000, 12_345])
    grown, whole = table(), table()
    expected = whole.lookup(positions)
    for position in positions:
        grown.lookup(position[None])
    for one, other in zip(grown.lookup(positions), expected, strict=True):
        assert torch.equal(one, other)


def test_no_positions() -> None:
    cos, sin = table().lookup(torch.empty(0, dtype=torch.int64))
    assert cos.shape == sin.shape == (0, 6)


def test_attention_factor_scales_both() -> None:
    positions = torch.arange(9)
    plain, scaled = table().lookup(positions), table(attention_factor=1.5).lookup(positions)
    for one, other in zip(plain, scaled, strict=True):
        assert torch.allclose(other, 1.5 * one)


def test_llama3_keeps_short_waves_and_stretches_long_ones() -> None:
    plain = inverse_frequencies(500_000.0, 128)
    scaled = llama3_frequencies(
        plain, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192
    )
    wavelengths = 2 * math.pi / plain
    assert torch.equal(scaled[wavelengths < 2048], plain[wavelengths < 2048])
    assert torch.equal(scaled[wavelengths > 8192], plain[wavelengths > 8192] / 8)
    ratio = plain / scaled
    assert bool((ratio.diff() >= 0).all())


def test_yarn_moves_from_extrapolation_to_interpolation() -> None:
    plain = inverse_frequencies(10000.0, 64)
    scaled = yarn_frequencies(
        10000.0, 64, factor=4.0, original_positions=2048, beta_fast=32.0, beta_slow=1.0, truncate=True
    )
    ratio = plain / scaled
    assert torch.allclose(ratio[:5], torch.ones(5))
    assert torch.allclose(ratio[-4:], torch.full((4,), 4.0))
    assert bool((ratio.diff() >= -1e-6).all())


@pytest.mark.parametrize(
    ("factor", "mscale", "all_dim", "expected"),
    [
        (1.0, None, None, 1.0),
        (4.0, None, None, 1 + 0.1 * math.log(4)),
        (4.0, 0.7, None, 1 + 0.1 * math.log(4)),
        (4.0, 0.7, 0.7, 1.0),
        (4.0, 1.0, 0.5, (1 + 0.1 * math.log(4)) / (1 + 0.05 * math.log(4))),
    ],
)
def test_yarn_attention_factor(
    factor: float, mscale: float | None, all_dim: float | None, expected: float
) -> None:
    assert yarn_attention_factor(factor, mscale, all_dim) == pytest.approx(expected)
