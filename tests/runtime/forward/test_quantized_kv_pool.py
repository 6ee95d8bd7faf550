"""KV in eight bits: what comes back is near to what was written, and other slots stay."""

import pytest
import torch

from ramet.runtime.forward.quantized_kv_pool import KVFormat, QuantizedKVPool


@pytest.mark.parametrize(("kv_format", "tolerance"), [("fp8", 1 / 16), ("int8", 1 / 200)])
def test_writes_come_back(kv_format: KVFormat, tolerance: float) -> None:
    pool = QuantizedKVPool(
        kv_format, num_layers=2, num_slots=6, num_kv_heads=3, head_dim=8, device=torch.device("cpu")
    )
    assert pool.num_slots == 6
    k, v = torch.randn(2, 2, 3, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
    v[1, 2] = 0.0
    slots = torch.tensor([4, 1])
    pool.write(1, slots, k, v)
    for stored, written in zip(pool.dequantized(1), (k, v), strict=True):
        bound = tolerance * (
            written.abs() + 0.02 if kv_format == "fp8" else written.abs().amax(-1, keepdim=True)
        )
        assert ((stored[slots] - written).abs() <= bound).all()
        assert not stored[[0, 2, 3, 5]].any()
    assert not any(part.any() for part in pool.layer(0))
    assert len(pool.layer(0)) == (2 if kv_format == "fp8" else 4)
