"""Fused experts against the oracle, and how pairs are sorted."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ramet.kernels import reference
from ramet.kernels.gpu.experts import BLOCK, ExpertWeights, fused_experts, max_blocks, sort_pairs
from tests.runtime.executor.graph_fakes import RecordingCapture


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    values: torch.Tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values / math.sqrt(shape[-1])


def routed(num_tokens: int, num_experts: int, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    scores = 9 * random(num_tokens, num_experts, seed=7)
    shares, chosen = scores.softmax(-1).topk(top_k, dim=-1)
    return shares, chosen


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "top_k", "hidden", "inner", "dtype", "kind"),
    [
        (1, 4, 2, 32, 32, torch.float32, "silu"),
        (3, 5, 1, 80, 72, torch.float32, "gelu_tanh"),
        (40, 3, 2, 64, 96, torch.float16, "silu"),
        (0, 3, 2, 16, 16, torch.float16, "silu"),
    ],
)
def test_equals_the_oracle(
    num_tokens: int, num_experts: int, top_k: int, hidden: int, inner: int, dtype: torch.dtype, kind: str
) -> None:
    x = 4 * random(num_tokens, hidden, seed=1).to(dtype)
    weights = ExpertWeights(
        random(num_experts, 2 * inner, hidden, seed=2).to(dtype),
        random(num_experts, hidden, inner, seed=3).to(dtype),
    )
    shares, chosen = routed(num_tokens, num_experts, top_k)
    actual = fused_experts(x, weights, shares, chosen, kind)
    expected = reference.fused_experts(x, weights.gate_up, weights.down, shares, chosen, kind)
    tolerance = 1e-5 if dtype is torch.float32 else 4e-3
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)
    if num_tokens > 1:
        alone = fused_experts(x[1:2], weights, shares[1:2], chosen[1:2], kind)
        assert torch.equal(alone[0], actual[1])


@pytest.mark.parametrize("stored_as", ["int8", "e4m3"])
def test_weights_of_eight_bits_are_what_their_scales_say(stored_as: str) -> None:
    num_experts, hidden, inner = 3, 48, 40
    x = 4 * random(5, hidden, seed=1)
    quantized = []
    for rows, columns in ((2 * inner, hidden), (hidden, inner)):
        weight = random(num_experts, rows, columns, seed=rows)
        if stored_as == "int8":
            quantized.append(reference.quantize_heads_int8(weight))
        else:
            codes, scale = reference.quantize_rows_e4m3(weight.view(-1, columns))
            quantized.append((codes.view(weight.shape), scale.view(weight.shape[:2])))
    (gate_up, gate_up_scale), (down, down_scale) = quantized
    shares, chosen = routed(5, num_experts, 2)
    actual = fused_experts(x, ExpertWeights(gate_up, down, gate_up_scale, down_scale), shares, chosen, "silu")
    numbers = [(reference.from_e4m3(x) if x.dtype is torch.uint8 else x) for x, _ in quantized]
    wide = [stored * scale[..., None] for stored, (_, scale) in zip(numbers, quantized, strict=True)]
    expected = reference.fused_experts(x, wide[0], wide[1], shares, chosen, "silu")
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@given(num_tokens=st.integers(1, 90), num_experts=st.integers(1, 9), data=st.data())
def test_every_pair_is_in_one_block_of_its_expert(
    num_tokens: int, num_experts: int, data: st.DataObject
) -> None:
    top_k = data.draw(st.integers(1, num_experts))
    seed = data.draw(st.integers(0, 99))
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.stack([torch.randperm(num_experts, generator=generator)[:top_k] for _ in range(num_tokens)])
    if seed % 3 == 0:
        chosen = chosen[:1].expand(num_tokens, top_k).contiguous()
    blocks = sort_pairs(chosen, num_experts)
    assert len(blocks.experts) == max_blocks(num_tokens * top_k, num_experts)
    seen: list[int] = []
    for expert, first, end in zip(
        blocks.experts.tolist(), blocks.firsts.tolist(), blocks.ends.tolist(), strict=True
    ):
        if expert == num_experts:
            continue
        pairs = blocks.pairs[first : min(first + BLOCK, end)].tolist()
        assert pairs
        assert all(int(chosen.flatten()[pair]) == expert for pair in pairs)
        seen += pairs
    assert sorted(seen) == list(range(num_tokens * top_k))


def test_wrong_arguments_are_refused() -> None:
    x, shares, chosen = random(1, 16), torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int64)
    gate_up, down = random(2, 32, 16), random(2, 16, 16)
    with pytest.raises(ValueError, match="unknown activation 'relu'"):
        fused_experts(x, ExpertWeights(gate_up, down), shares, chosen, "relu")
    with pytest.raises(ValueError, match=r"\(32, 16\) an expert"):
        fused_experts(x, ExpertWeights(gate_up[:, :31], down), shares, chosen, "silu")
    with pytest.raises(ValueError, match="with scales"):
        fused_experts(x, ExpertWeights(gate_up.half(), down), shares, chosen, "silu")
    with pytest.raises(ValueError, match="scales are"):
        fused_experts(x, ExpertWeights(gate_up.to(torch.int8), down, shares), shares, chosen, "silu")


def test_a_captured_call_serves_other_inputs() -> None:
    weights = ExpertWeights(random(4, 32, 16, seed=2), random(4, 16, 16, seed=3))
    x = 4 * random(6, 16, seed=1)
    shares, chosen = routed(6, 4, 2)
    graph = RecordingCapture().capture(lambda: fused_experts(x, weights, shares, chosen, "silu"))
    x.copy_(4 * random(6, 16, seed=5))
    chosen.copy_((chosen + 1) % 4)
    graph.replay()
    assert torch.equal(graph.output, fused_experts(x, weights, shares, chosen, "silu"))
