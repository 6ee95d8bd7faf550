"""Cosines and sines of rotary position embedding, and the scalings of its frequencies.

All in fp32, in the order of operations of transformers' ``modeling_rope_utils``: angles reach 10^5 radians,
where another order moves the last bits that logits are compared in.
"""

import math

import torch
from torch import Tensor

_BLOCK_POSITIONS = 2048
"""Rows are computed a block at a time, whenever they are: vectorised cosines differ in the last bit with their
place in the call, and a position has to have one value."""


class RotaryTable:
    """cos and sin of every position, looked up by position.

    Rows are computed when a position first needs them on CPU (128k positions are 64 MiB that few runs need),
    and all at once on other devices, where looking at the positions would wait for the device. Invariant: the
    tables hold whole blocks from position 0 on.
    """

    def __init__(
        self,
        inverse_frequencies: Tensor,
        *,
        max_positions: int,
        device: torch.device,
        attention_factor: float = 1.0,
    ) -> None:
        """inverse_frequencies: [rotary_dim / 2] fp32. attention_factor multiplies cos and sin (YaRN)."""
        self._frequencies = inverse_frequencies.to(device)
        self._attention_factor = attention_factor
        self._lazy = device.type == "cpu"
        empty = self._frequencies.new_empty((0, inverse_frequencies.shape[0]))
        self._cos, self._sin = empty, empty
        if not self._lazy:
            self._grow(max_positions)

    def lookup(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions: [num_tokens] int64, below max_positions -> cos, sin: [num_tokens, rotary_dim / 2] fp32."""
        if self._lazy and positions.numel() and (last := int(positions.max())) >= self._cos.shape[0]:
            self._grow(max(last + 1, min(2 * self._cos.shape[0], last + 16 * _BLOCK_POSITIONS)))
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    def _grow(self, num_positions: int) -> None:
        cos, sin = [self._cos], [self._sin]
        for start in range(self._cos.shape[0], num_positions, _BLOCK_POSITIONS):
            positions = torch.arange(start, start + _BLOCK_POSITIONS, device=self._frequencies.device)
            angles = positions.float()[:, None] * self._frequencies
            cos.append(angles.cos() * self._attention_factor)
            sin.append(angles.sin() * self._attention_factor)
        self._cos, self._sin = torch.cat(cos), torch.cat(sin)


def inverse_frequencies(theta: float, rotary_dim: int) -> Tensor:
    """theta^(-2i / rotary_dim): [rotary_dim / 2] fp32 (arXiv 2104.09864)."""
    return 1.0 / (theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim))


def llama3_frequencies(
    frequencies: Tensor,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_positions: int,
) -> Tensor:
    """Llama 3.1: long waves are stretched by factor, short ones kept, those between interpolated."""
    wavelengths = 2 * math.pi / frequencies
    long, short = original_positions / low_freq_factor, original_positions / high_freq_factor
    stretched = torch.where(wavelengths > long, frequencies / factor, frequencies)
    smooth = (original_positions / wavelengths - low_freq_factor) / (high_freq_factor - low_freq_factor)
    between = (1 - smooth) * stretched / factor + smooth * stretched
    return torch.where((wavelengths >= short) & (wavelengths <= long), between, stretched)


def yarn_frequencies(
    theta: float,
    rotary_dim: int,
    *,
    factor: float,
    original_positions: int,
    beta_fast: float,
    beta_slow: float,
    truncate: bool,
) -> Tensor:
    """NTK-by-parts interpolation of YaRN (arXiv 2309.00071, section 3.2): [rotary_dim / 2] fp32."""

    def dimension(rotations: float) -> float:
        return rotary_dim * math.log(original_positions / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(beta_fast), dimension(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    periods = theta ** (torch.arange(0, rotary_dim, 2).float() / rotary_dim)
    return 1.0 / (factor * periods) * (1 - kept) + 1.0 / periods * kept


def yarn_attention_factor(factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    """What cos and sin are multiplied by (section 3.4), with the two weights that DeepSeek's configs add."""

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    return scale(mscale) / scale(mscale_all_dim) if mscale and mscale_all_dim else scale(1.0)
