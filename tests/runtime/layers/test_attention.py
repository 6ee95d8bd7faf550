import torch
from torch import Tensor

from ramet.kernels import reference as oracle
from ramet.runtime.forward import AttentionSpec
from ramet.runtime.layers.attention import AttentionBlock
from ramet.runtime.layers.linear import FloatLinear
from ramet.runtime.layers.norm import RMSNorm
from ramet.runtime.layers.rotary import RotaryTable, inverse_frequencies

SPEC = AttentionSpec(layer_id=3, scale=0.3)
HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 20, 4, 2, 6


class Recorder:
    """A plan that keeps what it was given and returns the queries."""

    def __init__(self) -> None:
        self.calls: list[tuple[Tensor, Tensor, Tensor, AttentionSpec]] = []

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        self.calls.append((q, k, v, spec))
        return q


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_what_the_plan_is_given() -> None:
    x = random(5, HIDDEN, seed=0)
    weights = [
        random(heads * HEAD_DIM, HIDDEN, seed=i) for i, heads in enumerate((HEADS, KV_HEADS, KV_HEADS), 1)
    ]
    output = random(HIDDEN, HEADS * HEAD_DIM, seed=4)
    q_norm, k_norm = RMSNorm(random(HEAD_DIM, seed=5), 1e-6), RMSNorm(random(HEAD_DIM, seed=6), 1e-6)
    cos, sin = RotaryTable(
        inverse_frequencies(100.0, HEAD_DIM), max_positions=64, device=torch.device("cpu")
    ).lookup(torch.tensor([3, 4, 9, 0, 1]))
    for norms in (None, (q_norm, k_norm)):
        plan = Recorder()
        block = AttentionBlock(
            FloatLinear(torch.cat(weights)),
            FloatLinear(output),
            SPEC,
            num_heads=HEADS,
            num_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            head_norms=norms,
        )
        got = block(x, cos, sin, plan)
        q, k, v = ((x @ weight.t()).view(5, -1, HEAD_DIM) for weight in weights)
        if norms is not None:
            q, k = norms[0](q), norms[1](k)
        q, k = oracle.apply_rope(q, k, cos, sin)
        [(given_q, given_k, given_v, spec)] = plan.calls
        assert spec is SPEC
        for given, expected in ((given_q, q), (given_k, k), (given_v, v)):
            assert given.shape == expected.shape
            assert torch.allclose(given, expected, atol=1e-5)
        assert torch.allclose(got, q.reshape(5, -1) @ output.t(), atol=1e-4)
