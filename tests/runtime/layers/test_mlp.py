import pytest
import torch

from ramet.runtime.layers.linear import FloatLinear
from ramet.runtime.layers.mlp import GatedMLP


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_mlp(activation: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, gate = torch.randn((4, 8), generator=generator), torch.randn((6, 8), generator=generator)
    up, down = torch.randn((6, 8), generator=generator), torch.randn((8, 6), generator=generator)
    mlp = GatedMLP(FloatLinear(torch.cat((gate, up))), FloatLinear(down), activation)
    inner = x @ gate.t()
    act = (
        torch.nn.functional.silu(inner)
        if activation == "silu"
        else torch.nn.functional.gelu(inner, approximate="tanh")
    )
    assert torch.allclose(mlp(x), (act * (x @ up.t())) @ down.t(), atol=1e-5)
