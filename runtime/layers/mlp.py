"""The gated MLP."""

from typing import Protocol

from torch import Tensor

from ramet.kernels import gated_activation
from ramet.runtime.layers.linear import Linear


class MLP(Protocol):
    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, hidden_size] -> the same shape and dtype."""
        ...


class GatedMLP:
    """down(act(gate(x)) * up(x)); gate and up are one projection, gate's channels first."""

    def __init__(self, gate_up: Linear, down: Linear, activation: str) -> None:
        self._gate_up = gate_up
        self._down = down
        self._activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(gated_activation(self._gate_up(x), self._activation))
