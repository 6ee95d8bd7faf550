"""Rope and the cache write against the oracle, bit for bit."""

import pytest
import torch

from ramet.kernels import reference
from ramet.kernels.gpu import rope


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (80, 80), (96, 24)])
def test_equals_the_oracle(head_dim: int, rotary_dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    joint = torch.randn(3, 5 + 2 * 2, head_dim).to(dtype)
    q, k, v = joint.split_with_sizes((5, 2, 2), 1)
    angles = torch.randn(3, rotary_dim // 2)
    cos, sin = angles.cos(), angles.sin()
    expected_q, expected_k = reference.apply_rope(q, k, cos, sin)
    actual_q, actual_k = rope.apply_rope(q, k, cos, sin)
    assert torch.equal(actual_q, expected_q)
    assert torch.equal(actual_k, expected_k)
    keys, values = torch.zeros(2, 8, 2, head_dim).to(dtype).unbind(0)
    slots = torch.tensor([6, 0, 3])
    assert torch.equal(rope.rope_write_kv(q, k, v, (cos, sin), slots, (keys, values)), expected_q)
    assert torch.equal(keys[slots], expected_k)
    assert torch.equal(values[slots], v)
    assert not keys[[1, 2, 4, 5, 7]].any()


def test_the_write_alone_converts_to_the_caches_dtype() -> None:
    k, v = torch.randn(2, 4, 3, 16)
    keys, values = torch.zeros(2, 9, 3, 16, dtype=torch.float16).unbind(0)
    slots = torch.tensor([8, 1, 2, 0])
    rope.write_kv(k, v, slots, (keys, values)).run()
    assert torch.equal(keys[slots], k.half())
    assert torch.equal(values[slots], v.half())


def test_wrong_arguments_are_refused() -> None:
    q, k = torch.randn(2, 4, 16), torch.randn(2, 1, 16)
    with pytest.raises(ValueError, match="cos is"):
        rope.apply_rope(q, k, torch.ones(2, 9), torch.ones(2, 9))
    with pytest.raises(ValueError, match="a slot of the cache"):
        rope.write_kv(k, k, torch.tensor([0, 1]), (torch.ones(4, 1, 8), torch.ones(4, 1, 8)))
