import pytest
import torch
from torch import Tensor

from ramet.runtime.forward import AttentionSpec
from ramet.runtime.layers.attention import AttentionBlock
from ramet.runtime.layers.decoder_layer import DecoderLayer
from ramet.runtime.layers.linear import FloatLinear
from ramet.runtime.layers.mlp import GatedMLP
from ramet.runtime.layers.norm import RMSNorm

HIDDEN = 8
ROPE = (torch.ones(6, 2), torch.zeros(6, 2))


def values_plan(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
    return q + v


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.5


def norm(seed: int) -> RMSNorm:
    return RMSNorm(1 + random(HIDDEN, seed=seed), 1e-6)


@pytest.fixture
def attention() -> AttentionBlock:
    return AttentionBlock(
        FloatLinear(random(3 * HIDDEN, HIDDEN, seed=1)),
        FloatLinear(random(HIDDEN, HIDDEN, seed=2)),
        AttentionSpec(layer_id=0, scale=1.0),
        num_heads=2,
        num_kv_heads=2,
        head_dim=4,
    )


@pytest.fixture
def mlp() -> GatedMLP:
    return GatedMLP(FloatLinear(random(12, HIDDEN, seed=3)), FloatLinear(random(HIDDEN, 6, seed=4)), "silu")


@pytest.mark.parametrize("sandwich", [False, True])
def test_is_the_residual_layer(sandwich: bool, attention: AttentionBlock, mlp: GatedMLP) -> None:
    norms = norm(5), norm(6), norm(7), norm(8)
    layer = DecoderLayer(
        attention, mlp, attention_norm=norms[0], mlp_norm=norms[1], output_norms=norms[2:] if sandwich else None
    )
    x = random(6, HIDDEN, seed=9)
    attended = attention(norms[0](x), *ROPE, values_plan)
    middle = x + (norms[2](attended) if sandwich else attended)
    out = mlp(norms[1](middle))
    expected = middle + (norms[3](out) if sandwich else out)

    pending, residual = layer(x, None, ROPE, values_plan)
    assert torch.allclose(pending + residual, expected, atol=1e-5)
    split = random(6, HIDDEN, seed=10)
    pending, residual = layer(x - split, split, ROPE, values_plan)
    assert torch.allclose(pending + residual, expected, atol=1e-5)
    rows = torch.tensor([4, 1])
    pending, residual = layer(x, None, ROPE, values_plan, rows)
    assert torch.allclose(pending + residual, expected[rows], atol=1e-5)
