"""The device KV pool."""

import pytest
import torch

from ramet.runtime.forward import DeviceKVPool

CPU = torch.device("cpu")


def make_pool(dtype: torch.dtype = torch.float32) -> DeviceKVPool:
    return DeviceKVPool(num_layers=3, num_slots=10, num_kv_heads=2, head_dim=4, dtype=dtype, device=CPU)


def test_a_new_pool_is_zero() -> None:
    pool = make_pool()
    assert pool.num_slots == 10
    for layer_id in range(3):
        for tensor in pool.layer(layer_id):
            assert tensor.shape == (10, 2, 4)
            assert not tensor.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_write_touches_its_layer_and_slots_only(dtype: torch.dtype) -> None:
    pool = make_pool(dtype)
    k, v = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    pool.write(1, torch.tensor([7, 0, 4]), k, v)
    for written, tensor in zip((k, v), pool.layer(1), strict=True):
        assert tensor.dtype == dtype
        assert torch.equal(tensor[[7, 0, 4]], written.to(dtype))
        assert not tensor[[1, 2, 3, 5, 6, 8, 9]].any()
    for layer_id in (0, 2):
        assert not any(tensor.any() for tensor in pool.layer(layer_id))


def test_write_takes_views_of_one_projection() -> None:
    pool = make_pool()
    qkv = torch.randn(2, 8, 4)
    pool.write(0, torch.tensor([3, 2]), qkv[:, 4:6], qkv[:, 6:])
    assert torch.equal(pool.layer(0)[0][[3, 2]], qkv[:, 4:6])
    assert torch.equal(pool.layer(0)[1][[3, 2]], qkv[:, 6:])


def test_later_writes_are_seen_through_layers_taken_before() -> None:
    pool = make_pool()
    keys, _ = pool.layer(0)
    pool.write(0, torch.tensor([5]), torch.ones(1, 2, 4), torch.ones(1, 2, 4))
    assert torch.equal(keys[5], torch.ones(2, 4))


def test_a_slot_outside_of_the_pool_is_refused() -> None:
    with pytest.raises((IndexError, RuntimeError)):
        make_pool().write(0, torch.tensor([10]), torch.ones(1, 2, 4), torch.ones(1, 2, 4))
