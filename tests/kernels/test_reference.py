"""The oracles themselves, against formulas written out in numpy and float64."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ramet.kernels import reference

Array = npt.NDArray[np.float64]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def exact(tensor: Tensor) -> Array:
    return tensor.double().numpy()


def near(actual: Tensor, expected: Array, tolerance: float = 1e-5) -> None:
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.double().numpy(), expected, rtol=tolerance, atol=tolerance)


class TestRmsNorm:
    @pytest.mark.parametrize("shape", [(1,), (3, 7), (2, 3, 64)])
    def test_formula(self, shape: tuple[int, ...]) -> None:
        x, weight = 3 * random(*shape), random(shape[-1], seed=1)
        root = np.sqrt((exact(x) ** 2).mean(-1, keepdims=True) + 1e-3)
        near(reference.rms_norm(x, weight, 1e-3), exact(x) / root * exact(weight))

    def test_zeros_stay_zeros(self) -> None:
        assert torch.equal(reference.rms_norm(torch.zeros(2, 4), torch.ones(4), 1e-6), torch.zeros(2, 4))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_is_rounded_once_at_the_end(self, dtype: torch.dtype) -> None:
        x, weight = random(5, 64).to(dtype), random(64, seed=1).to(dtype)
        actual = reference.rms_norm(x, weight, 1e-6)
        assert actual.dtype == dtype
        assert torch.equal(actual, reference.rms_norm(x.float(), weight.float(), 1e-6).to(dtype))

    def test_squares_beyond_fp16_do_not_overflow(self) -> None:
        x = torch.full((1, 8), 3e4, dtype=torch.float16)
        near(reference.rms_norm(x, torch.ones(8), 1e-6), np.ones((1, 8)), 1e-3)

    def test_added_to_a_residual(self) -> None:
        x, residual, weight = random(3, 8), random(3, 8, seed=1), random(8, seed=2)
        before = x.clone(), residual.clone()
        normed, total = reference.add_rms_norm(x, residual, weight, 1e-6)
        assert torch.equal(total, x + residual)
        assert torch.equal(normed, reference.rms_norm(x + residual, weight, 1e-6))
        assert torch.equal(x, before[0])
        assert torch.equal(residual, before[1])


class TestRope:
    def test_pairs_turn_as_complex_numbers(self) -> None:
        q, k, angles = random(5, 3, 8), random(5, 1, 8, seed=1), 9 * random(5, 4, seed=2)
        turned = reference.apply_rope(q, k, angles.cos(), angles.sin())
        for x, actual in zip((q, k), turned, strict=True):
            complex_pairs = exact(x)[..., :4] + 1j * exact(x)[..., 4:]
            expected = complex_pairs * np.exp(1j * exact(angles))[:, None, :]
            near(actual, np.concatenate((expected.real, expected.imag), axis=-1))

    def test_dimensions_beyond_rotary_dim_pass_through(self) -> None:
        q, k, angles = random(4, 2, 10), random(4, 2, 10, seed=1), random(4, 3, seed=2)
        turned, _ = reference.apply_rope(q, k, angles.cos(), angles.sin())
        assert torch.equal(turned[..., 6:], q[..., 6:])
        whole, _ = reference.apply_rope(q[..., :6], k[..., :6], angles.cos(), angles.sin())
        assert torch.equal(turned[..., :6], whole)

    def test_scores_depend_on_the_distance_alone(self) -> None:
        q, k = random(1, 1, 8).expand(6, 1, 8), random(1, 1, 8, seed=1).expand(6, 1, 8)
        angles = torch.arange(6)[:, None] * torch.tensor([1.0, 0.5, 0.1, 0.01])
        turned_q, turned_k = reference.apply_rope(q, k, angles.cos(), angles.sin())
        scores = exact(turned_q[:, 0]) @ exact(turned_k[:, 0]).T
        for distance in range(-5, 6):
            diagonal = np.diagonal(scores, distance)
            np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-5)

    def test_angle_zero_changes_nothing_and_dtypes_stay(self) -> None:
        q, k = random(2, 2, 4).bfloat16(), random(2, 1, 4).half()
        turned = reference.apply_rope(q, k, torch.ones(2, 2), torch.zeros(2, 2))
        assert torch.equal(turned[0], q)
        assert torch.equal(turned[1], k)


class TestGatedActivation:
    def test_silu(self) -> None:
        gate, up = 5 * random(4, 6), random(4, 6, seed=1)
        expected = exact(gate) / (1 + np.exp(-exact(gate))) * exact(up)
        near(reference.gated_activation(torch.cat((gate, up), -1), "silu"), expected)

    def test_gelu_by_tanh(self) -> None:
        gate, up = 3 * random(4, 6), random(4, 6, seed=1)
        inner = math.sqrt(2 / math.pi) * (exact(gate) + 0.044715 * exact(gate) ** 3)
        expected = 0.5 * exact(gate) * (1 + np.tanh(inner)) * exact(up)
        near(reference.gated_activation(torch.cat((gate, up), -1), "gelu_tanh"), expected)

    def test_an_unknown_kind_is_named(self) -> None:
        with pytest.raises(ValueError, match="unknown activation 'relu': silu or gelu_tanh"):
            reference.gated_activation(torch.zeros(1, 2), "relu")


def loops(
    q: Array, k: Array, v: Array, scale: float, sliding_window: int | None, softcap: float | None
) -> Array:
    """Attention one query, head and key at a time."""
    out = np.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    for row in range(q.shape[0]):
        position = k.shape[0] - q.shape[0] + row
        first = 0 if sliding_window is None else max(0, position - sliding_window + 1)
        for head in range(q.shape[1]):
            scores = np.array([q[row, head] @ k[key, head // group] for key in range(first, position + 1)])
            scores = scores * scale
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            out[row, head] = weights @ v[first : position + 1, head // group]
    return out


class TestAttention:
    @given(
        query_len=st.integers(1, 5),
        num_before=st.integers(0, 6),
        kv_heads=st.integers(1, 3),
        group=st.integers(1, 3),
        sliding_window=st.none() | st.integers(1, 12),
        softcap=st.none() | st.sampled_from([0.5, 20.0]),
        seed=st.integers(0, 1000),
    )
    def test_formula(
        self,
        query_len: int,
        num_before: int,
        kv_heads: int,
        group: int,
        sliding_window: int | None,
        softcap: float | None,
        seed: int,
    ) -> None:
        q = 2 * random(query_len, kv_heads * group, 4, seed=seed)
        k, v = random(query_len + num_before, 2 * kv_heads, 4, seed=seed + 1).chunk(2, dim=1)
        actual = reference.attention(q, k, v, scale=0.7, sliding_window=sliding_window, softcap=softcap)
        near(actual, loops(exact(q), exact(k), exact(v), 0.7, sliding_window, softcap))

    def test_a_first_token_takes_its_own_value(self) -> None:
        q, k, v = random(1, 4, 8), random(1, 2, 8, seed=1), random(1, 2, 8, seed=2)
        out = reference.attention(q, k, v, scale=1.0, sliding_window=None, softcap=None)
        assert torch.equal(out, v.repeat_interleave(2, dim=1))
        out = reference.attention(q.repeat(3, 1, 1), k.repeat(3, 1, 1), v.repeat(3, 1, 1), scale=1.0,
                                  sliding_window=1, softcap=None)  # fmt: skip
        near(out, exact(v.repeat_interleave(2, dim=1).repeat(3, 1, 1)))

    def test_later_keys_and_keys_out_of_the_window_change_nothing(self) -> None:
        q, k, v = random(4, 2, 8), random(9, 2, 8, seed=1), random(9, 2, 8, seed=2)
        expected = reference.attention(q, k, v, scale=0.3, sliding_window=3, softcap=None)
        for hidden in (slice(0, 3), slice(6, 9)):
            other_k, other_v = k.clone(), v.clone()
            other_k[hidden], other_v[hidden] = 1e4, -1e4
            actual = reference.attention(q, other_k, other_v, scale=0.3, sliding_window=3, softcap=None)
            rows = slice(0, 4) if hidden.start == 0 else slice(0, 1)
            assert torch.equal(actual[rows], expected[rows])

    def test_the_result_has_the_queries_dtype(self) -> None:
        q, k, v = random(2, 2, 8).bfloat16(), random(2, 2, 8), random(2, 2, 8)
        out = reference.attention(q, k, v, scale=1.0, sliding_window=None, softcap=None)
        assert (out.dtype, out.shape) == (torch.bfloat16, q.shape)


class TestInt8:
    @given(rows=st.integers(1, 5), width=st.integers(1, 40), seed=st.integers(0, 1000))
    def test_values_come_back_within_half_a_step(self, rows: int, width: int, seed: int) -> None:
        x = 10 * random(rows, width, seed=seed)
        q, scale = reference.quantize_rows_int8(x)
        assert (q.dtype, q.shape, scale.dtype, scale.shape) == (torch.int8, x.shape, torch.float32, (rows,))
        assert int(q.abs().max()) == 127
        np.testing.assert_allclose(exact(scale), np.abs(exact(x)).max(-1) / 127, rtol=1e-6)
        assert np.all(np.abs(exact(q) * exact(scale)[:, None] - exact(x)) <= exact(scale)[:, None] * 0.5001)

    def test_whole_steps_are_exact(self) -> None:
        x = torch.tensor([[127.0, -127.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-254.0, 2.0, 4.0, 6.0]])
        q, scale = reference.quantize_rows_int8(x)
        assert q.tolist() == [[127, -127, 3, 0], [0, 0, 0, 0], [-127, 1, 2, 3]]
        assert scale.tolist()[0::2] == [1.0, 2.0]
        assert scale[1] > 0

    def test_linear_is_the_product_of_what_was_rounded(self) -> None:
        x, bias = random(4, 33), random(7, seed=2)
        weight, weight_scale = reference.quantize_rows_int8(random(7, 33, seed=1))
        scale = np.abs(exact(x)).max(-1, keepdims=True) / 127
        high = np.round(exact(x) / scale)
        low = np.round((exact(x) / scale - high) * 254)
        rounded = (high + low / 254) * scale
        assert np.abs(rounded - exact(x)).max() <= scale.max() / 254 / 2 * 1.001
        product = rounded @ (exact(weight) * exact(weight_scale)[:, None]).T
        near(reference.linear_int8(x, weight, weight_scale), product)
        near(reference.linear_int8(x, weight, weight_scale, bias), product + exact(bias))

    def test_sums_beyond_fp32s_whole_numbers_do_not_depend_on_the_order(self) -> None:
        depth = 4096
        weight = torch.full((1, depth), 127, dtype=torch.int8)
        weight[0, 1::2] = 126
        x = torch.full((1, depth), 127.0)
        out = reference.linear_int8(x, weight, torch.ones(1))
        assert float(out) == float(torch.tensor(127 * (127 + 126) * depth // 2, dtype=torch.float32))
        order = torch.randperm(depth, generator=torch.Generator().manual_seed(0))
        assert torch.equal(reference.linear_int8(x[:, order], weight[:, order], torch.ones(1)), out)

    def test_a_token_does_not_depend_on_the_tokens_beside_it(self) -> None:
        x = random(6, 24).bfloat16()
        weight, scale = reference.quantize_rows_int8(random(5, 24, seed=1))
        whole = reference.linear_int8(x, weight, scale)
        assert whole.dtype == torch.bfloat16
        assert all(
            torch.equal(reference.linear_int8(x[i : i + 1], weight, scale)[0], whole[i]) for i in range(6)
        )


def test_a_bitmask_leaves_what_its_bits_allow() -> None:
    logits = torch.zeros(3, 40)
    mask = torch.tensor([[0b101, 1 << 7], [-1, 0]], dtype=torch.int32)
    reference.apply_bitmask(logits, 1, mask)
    assert not logits[0].any()
    assert [torch.nonzero(row == 0)[:, 0].tolist() for row in logits[1:]] == [[0, 2, 39], list(range(32))]


def test_draws_invert_what_the_filters_keep() -> None:
    probabilities = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)
    logits = probabilities.log().expand(6, 4)
    uniforms = torch.tensor([0.05, 0.49, 0.51, 0.999, 0.5, 0.6])
    # temperature, top_p, min_p; the last two keep tokens 1 and 3, whose shares are 4/7 and 3/7.
    numbers = torch.tensor([(1.0, 1.0, 0.0)] * 4 + [(1.0, 0.6, 0.0), (1.0, 1.0, 0.7)], dtype=torch.float64)
    top_ks = torch.tensor([0, 0, 0, 2, 0, 0])
    assert reference.draw_tokens(logits, uniforms, numbers, top_ks).tolist() == [0, 1, 2, 3, 1, 3]


def test_int4_is_near_and_exact_for_its_own_values() -> None:
    weight = random(6, 96)
    packed, scale = reference.quantize_int4(weight)
    assert packed.shape == (6, 48)
    assert scale.shape == (6, 3)
    back = reference.dequantize_int4(packed, scale)
    assert ((back - weight).abs() <= scale.abs().repeat_interleave(32, dim=1) * 1.0001).all()
    again = reference.dequantize_int4(*reference.quantize_int4(back))
    torch.testing.assert_close(again, back)
    assert not reference.dequantize_int4(*reference.quantize_int4(torch.zeros(1, 32))).any()
    x = random(3, 96, seed=1)
    torch.testing.assert_close(reference.linear_int4(x, packed, scale), x @ back.t())


def test_e4m3_and_int8_of_heads_are_near() -> None:
    x = random(5, 2, 64)
    codes = reference.to_e4m3(x)
    assert ((reference.from_e4m3(codes) - x).abs() <= x.abs() / 16 + 2**-10).all()
    stored, scale = reference.quantize_heads_int8(x)
    assert ((stored * scale[..., None] - x).abs() <= scale[..., None] * 0.501).all()
    rows, row_scale = reference.quantize_rows_e4m3(x.view(10, 64))
    back = reference.from_e4m3(rows) * row_scale[:, None]
    assert ((back - x.view(10, 64)).abs() <= x.view(10, 64).abs() / 15 + row_scale[:, None]).all()
    given = random(2, 64, seed=1)
    torch.testing.assert_close(reference.linear_e4m3(given, rows, row_scale), given @ back.t())


def test_fused_experts_sum_the_chosen_ones() -> None:
    x, gate_up, down = random(2, 4), random(3, 6, 4, seed=1), random(3, 4, 3, seed=2)
    shares, chosen = torch.tensor([[0.75, 0.25], [1.0, 0.0]]), torch.tensor([[2, 0], [1, 2]])
    found = exact(reference.fused_experts(x, gate_up, down, shares, chosen, "silu"))
    for token in range(2):
        expected = np.zeros(4)
        for share, expert in zip(shares[token].tolist(), chosen[token].tolist(), strict=True):
            both = exact(gate_up[expert]) @ exact(x[token])
            gate = both[:3] / (1 + np.exp(-both[:3]))
            expected += share * exact(down[expert]) @ (gate * both[3:])
        np.testing.assert_allclose(found[token], expected, atol=1e-5)


def test_latent_attention_is_attention_with_one_key_for_all_heads() -> None:
    q_latent, q_rope, latent, rope = (
        random(3, 8),
        random(3, 4, seed=1),
        random(5, 8, seed=2),
        random(5, 4, seed=3),
    )
    found = reference.mla_decode(q_latent, q_rope, latent, rope, scale=0.3)
    q = torch.cat((q_latent, q_rope), dim=1)[None]
    keys = torch.cat((latent, rope), dim=1)[:, None]
    values = torch.cat((latent, torch.zeros(5, 4)), dim=1)[:, None]
    expected = reference.attention(q, keys, values, scale=0.3, sliding_window=None, softcap=None)
    torch.testing.assert_close(found, expected[0, :, :8])
