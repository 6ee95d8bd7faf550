"""The CPU ops against their oracles, and a row's bits against the same row's in other batches."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ramet import kernels
from ramet.kernels import cpu, reference

BATCH_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 57, 64, 70, 200)
"""200 rows of the widths below pass the 32,768 elements from which torch uses every thread."""


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=[1, 2, 3])
def num_threads(request: pytest.FixtureRequest) -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("hidden", [1, 7, 64, 80, 576, 640, 2048])
def test_rms_norm_equals_its_oracle(hidden: int) -> None:
    x, weight = random(33, hidden), random(hidden, seed=1)
    torch.testing.assert_close(kernels.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))


def test_rms_norm_of_heads_and_of_zeros() -> None:
    x = random(5, 12, 64)
    x[3] = 0
    weight = random(64, seed=1)
    actual = kernels.rms_norm(x[:, 2:11], weight, 1e-6)
    torch.testing.assert_close(actual, reference.rms_norm(x[:, 2:11], weight, 1e-6))
    assert torch.equal(actual[3], torch.zeros(9, 64))


@pytest.mark.parametrize("hidden", [64, 80, 576, 1536])
def test_rms_norm_of_a_row_is_the_same_in_every_batch(hidden: int, num_threads: int) -> None:
    x, weight = random(200, hidden), random(hidden, seed=1)
    whole = kernels.rms_norm(x, weight, 1e-5)
    for size in BATCH_SIZES:
        assert torch.equal(kernels.rms_norm(x[:size].clone(), weight, 1e-5), whole[:size]), size
        assert torch.equal(kernels.rms_norm(x[-size:].clone(), weight, 1e-5), whole[-size:]), size


def test_add_rms_norm_keeps_its_arguments() -> None:
    x, residual, weight = random(9, 576), random(9, 576, seed=1), random(576, seed=2)
    before = x.clone(), residual.clone()
    normed, total = kernels.add_rms_norm(x, residual, weight, 1e-5)
    expected_normed, expected_total = reference.add_rms_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(normed, expected_normed)
    assert torch.equal(total, expected_total)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 1, 256), (1, 1, 80), (8, 8, 96)])
@pytest.mark.parametrize("joint", [True, False])
def test_rope_equals_its_oracle(heads: int, kv_heads: int, head_dim: int, joint: bool) -> None:
    qkv = random(33, heads + 2 * kv_heads, head_dim)
    q, k = qkv[:, :heads], qkv[:, heads : heads + kv_heads]
    if not joint:
        q, k = q.clone(), k.clone()
    before = qkv.clone()
    angles = random(33, head_dim // 2, seed=1)
    actual = kernels.apply_rope(q, k, angles.cos(), angles.sin())
    expected = reference.apply_rope(q, k, angles.cos(), angles.sin())
    torch.testing.assert_close(actual, expected)
    assert torch.equal(qkv, before)


def test_rope_of_part_of_a_head_passes_the_rest_through() -> None:
    q, k, angles = random(5, 4, 64), random(5, 2, 64, seed=1), random(5, 8, seed=2)
    actual_q, actual_k = kernels.apply_rope(q, k, angles.cos(), angles.sin())
    torch.testing.assert_close((actual_q, actual_k), reference.apply_rope(q, k, angles.cos(), angles.sin()))
    assert torch.equal(actual_q[..., 16:], q[..., 16:])


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 1, 256), (1, 1, 80)])
def test_rope_of_a_row_is_the_same_in_every_batch(
    heads: int, kv_heads: int, head_dim: int, num_threads: int
) -> None:
    qkv, angles = random(200, heads + 2 * kv_heads, head_dim), random(200, head_dim // 2, seed=1)
    cos, sin = angles.cos(), angles.sin()
    whole = cpu.apply_rope(qkv[:, :heads], qkv[:, heads : heads + kv_heads], cos, sin)
    for size in BATCH_SIZES:
        q, k = qkv[:size, :heads], qkv[:size, heads : heads + kv_heads]
        for pair in (q, k), (q.clone(), k.clone()):
            turned = cpu.apply_rope(*pair, cos[:size], sin[:size])
            assert torch.equal(turned[0], whole[0][:size]), size
            assert torch.equal(turned[1], whole[1][:size]), size


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("width", [1, 13, 96, 1536, 2048])
def test_gated_activation_equals_its_oracle(kind: str, width: int, num_threads: int) -> None:
    gate_up = 4 * random(33, 2 * width)
    before = gate_up.clone()
    actual = kernels.gated_activation(gate_up, kind)
    torch.testing.assert_close(actual, reference.gated_activation(gate_up, kind), rtol=1e-5, atol=2e-6)
    assert torch.equal(gate_up, before)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("width", [13, 96, 1536, 2048])
def test_gated_activation_of_a_row_is_the_same_in_every_batch(kind: str, width: int, num_threads: int) -> None:
    gate_up = random(200, 2 * width)
    whole = cpu.gated_activation(gate_up, kind)
    for size in BATCH_SIZES:
        assert torch.equal(cpu.gated_activation(gate_up[:size].clone(), kind), whole[:size]), size
        assert torch.equal(cpu.gated_activation(gate_up[-size:].clone(), kind), whole[-size:]), size


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_activation_of_extreme_values_stays_finite(kind: str) -> None:
    gate = torch.tensor([-1e30, -100.0, -0.0, 0.0, 100.0, 1e18]).repeat(4, 1)
    for width in (6, 3):
        gate_up = torch.cat((gate[:, :width], torch.ones(4, width)), dim=1)
        actual = kernels.gated_activation(gate_up, kind)
        torch.testing.assert_close(actual, reference.gated_activation(gate_up, kind))


def test_unknown_activation_is_named() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(ValueError, match="relu"):
            kernels.gated_activation(torch.zeros(2, 8, dtype=dtype), "relu")


@given(st.integers(1, 70), st.integers(1, 40), st.integers(0, 2**31))
def test_no_tokens_or_few_tokens(num_tokens: int, width: int, seed: int) -> None:
    gate_up = random(num_tokens, 2 * width, seed=seed)
    for kind in ("silu", "gelu_tanh"):
        torch.testing.assert_close(
            kernels.gated_activation(gate_up, kind),
            reference.gated_activation(gate_up, kind),
            rtol=1e-5,
            atol=2e-6,
        )
        assert kernels.gated_activation(gate_up[:0], kind).shape == (0, width)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("width", [48, 96, 1536, 2048])
def test_gated_activation_has_the_same_bits_with_one_thread_and_with_four(kind: str, width: int) -> None:
    gate_up = random(70, 2 * width)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3, 4):
        torch.set_num_threads(threads)
        results.append(kernels.gated_activation(gate_up, kind))
    torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)
