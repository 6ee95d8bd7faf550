"""Gated activations against the oracle."""

import pytest
import torch

from ramet.kernels import reference
from ramet.kernels.gpu import activation


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_equals_the_oracle(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    limit = 2e-6 if dtype is torch.float32 else 4e-3
    for rows, width in ((1, 8), (3, 1100), (0, 8)):
        gate_up = (3 * torch.randn(rows, 2 * width)).to(dtype)
        actual = activation.gated_activation(gate_up, kind)
        torch.testing.assert_close(actual, reference.gated_activation(gate_up, kind), atol=limit, rtol=limit)
        if rows > 1:
            assert torch.equal(activation.gated_activation(gate_up[1:2], kind)[0], actual[1])


def test_extremes_are_the_oracles() -> None:
    gate = torch.tensor([[-1e4, -50.0, 0.0, 50.0, 1e4]])
    gate_up = torch.cat((gate, torch.ones_like(gate)), dim=1)
    for kind in ("silu", "gelu_tanh"):
        torch.testing.assert_close(
            activation.gated_activation(gate_up, kind), reference.gated_activation(gate_up, kind)
        )


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown activation 'relu'"):
        activation.gated_activation(torch.ones(1, 4), "relu")
