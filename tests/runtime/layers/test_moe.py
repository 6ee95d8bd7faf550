import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ramet.kernels import quantize_rows_int8
from ramet.runtime.layers.linear import FloatLinear, Int8Linear, Int16Linear, Linear, quantize_rows_int16
from ramet.runtime.layers.mlp import GatedMLP
from ramet.runtime.layers.moe import FusedSparseMLP, SparseMLP

NUM_EXPERTS, HIDDEN, INNER = 5, 32, 32


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / math.sqrt(shape[-1])


def expert(seed: int, quantized: bool) -> GatedMLP:
    def linear(weight: Tensor) -> Linear:
        return Int8Linear(*quantize_rows_int8(weight)) if quantized else FloatLinear(weight)

    return GatedMLP(
        linear(random(2 * INNER, HIDDEN, seed=seed)), linear(random(HIDDEN, INNER, seed=seed + 50)), "silu"
    )


def sparse(top_k: int, normalize: bool, quantized: bool = False) -> tuple[SparseMLP, list[GatedMLP], Linear]:
    weight = 3 * random(NUM_EXPERTS, HIDDEN, seed=99)
    router: Linear = Int16Linear(*quantize_rows_int16(weight)) if quantized else FloatLinear(weight)
    experts = [expert(i, quantized) for i in range(NUM_EXPERTS)]
    return SparseMLP(router, experts, num_experts_per_token=top_k, normalize=normalize), experts, router


@given(
    num_tokens=st.integers(1, 12),
    top_k=st.integers(1, NUM_EXPERTS),
    normalize=st.booleans(),
    seed=st.integers(0, 999),
)
def test_agrees_with_one_token_at_a_time(num_tokens: int, top_k: int, normalize: bool, seed: int) -> None:
    mlp, experts, router = sparse(top_k, normalize)
    x = random(num_tokens, HIDDEN, seed=seed)
    expected = []
    for token in x:
        weights, chosen = router(token[None])[0].softmax(-1).topk(top_k)
        weights = weights / weights.sum() if normalize else weights
        parts = [w * experts[int(e)](token[None])[0] for w, e in zip(weights, chosen, strict=True)]
        expected.append(torch.stack(parts).sum(0))
    assert torch.allclose(mlp(x), torch.stack(expected), atol=1e-5)


@given(seed=st.integers(0, 9999), num_tokens=st.integers(2, 20))
def test_quantized_tokens_do_not_depend_on_one_another(seed: int, num_tokens: int) -> None:
    mlp, _, _ = sparse(2, True, quantized=True)
    x = random(num_tokens, HIDDEN, seed=seed)
    assert torch.equal(torch.cat([mlp(token[None]) for token in x]), mlp(x))


def test_no_tokens() -> None:
    mlp, _, _ = sparse(2, True)
    assert mlp(torch.empty(0, HIDDEN)).shape == (0, HIDDEN)


def test_half_precision_keeps_its_dtype() -> None:
    weight = random(NUM_EXPERTS, HIDDEN, seed=1).bfloat16()
    gate_up, down = random(2 * INNER, HIDDEN, seed=2).bfloat16(), random(HIDDEN, INNER, seed=3).bfloat16()
    experts = [GatedMLP(FloatLinear(gate_up), FloatLinear(down), "silu")] * NUM_EXPERTS
    mlp = SparseMLP(FloatLinear(weight), experts, num_experts_per_token=2, normalize=True)
    x = random(3, HIDDEN, seed=4).bfloat16()
    got = mlp(x)
    assert got.dtype == torch.bfloat16
    assert torch.allclose(got.float(), experts[0](x).float(), atol=1e-2)  # equal experts: the weights sum to 1


@given(
    num_tokens=st.integers(1, 12),
    top_k=st.integers(1, NUM_EXPERTS),
    normalize=st.booleans(),
    quantized=st.booleans(),
    seed=st.integers(0, 999),
)
def test_fused_experts_are_those_of_one_after_another(
    num_tokens: int, top_k: int, normalize: bool, quantized: bool, seed: int
) -> None:
    mlp, _, router = sparse(top_k, normalize, quantized)
    gate_up = torch.stack([random(2 * INNER, HIDDEN, seed=i) for i in range(NUM_EXPERTS)])
    down = torch.stack([random(HIDDEN, INNER, seed=i + 50) for i in range(NUM_EXPERTS)])
    scales = None
    if quantized:
        (gate_up, gate_up_scale), (down, down_scale) = (
            [torch.stack(part) for part in zip(*(quantize_rows_int8(one) for one in whole), strict=True)]
            for whole in (gate_up, down)
        )
        scales = gate_up_scale, down_scale
    fused = FusedSparseMLP(
        router,
        (gate_up, down),
        scales,
        activation="silu",
        num_experts_per_token=top_k,
        normalize=normalize,
    )
    x = random(num_tokens, HIDDEN, seed=seed)
    torch.testing.assert_close(fused(x), mlp(x), atol=2e-3 if quantized else 1e-5, rtol=1e-3)
