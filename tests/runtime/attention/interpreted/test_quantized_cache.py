"""Attention over keys and values of eight bits, against the oracle over what those are in fp32."""

import pytest
import torch

from ramet.kernels import reference
from ramet.kernels.gpu.attention import AttentionOp, extend_attention
from ramet.kernels.gpu.rope import write_kv
from ramet.runtime.attention import AttentionMetadata
from ramet.runtime.attention.gpu_backend import GpuAttentionBackend
from ramet.runtime.forward import AttentionSpec, KVFormat, QuantizedKVPool

CPU = torch.device("cpu")
PAGE_SIZE, KV_HEADS, GROUP = 16, 2, 3
ROWS = ((1, 1), (1, 270), (1, 264), (6, 290), (2, 17))
"""Queries, and tokens in all; the second and the third share their first 256."""


@pytest.mark.parametrize("kv_format", ["fp8", "int8"])
@pytest.mark.parametrize(("head_dim", "dtype"), [(64, torch.float32), (80, torch.float16)])
def test_equals_the_oracle_over_what_is_stored(kv_format: KVFormat, head_dim: int, dtype: torch.dtype) -> None:
    pool = QuantizedKVPool(
        kv_format, num_layers=1, num_slots=1600, num_kv_heads=KV_HEADS, head_dim=head_dim, device=CPU
    )
    backend = GpuAttentionBackend(
        pool,
        num_heads=KV_HEADS * GROUP,
        num_kv_heads=KV_HEADS,
        head_dim=head_dim,
        page_size=PAGE_SIZE,
        dtype=dtype,
        device=CPU,
    )
    generator = torch.Generator().manual_seed(0)
    table = torch.randperm(100, generator=generator)[:95].view(5, 19).to(torch.int32)
    table[2, :16] = table[1, :16]
    slots = [(table[row, :, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten()[:n].long()
             for row, (_, n) in enumerate(ROWS)]  # fmt: skip
    every = torch.unique(torch.cat(slots))
    past = torch.randn(2, len(every), KV_HEADS, head_dim, generator=generator)
    pool.write(0, every, past[0], past[1])
    num_tokens = sum(count for count, _ in ROWS)
    q = torch.randn(num_tokens, KV_HEADS * GROUP, head_dim, generator=generator).to(dtype)
    k, v = torch.randn(2, num_tokens, KV_HEADS, head_dim, generator=generator).to(dtype).unbind(0)
    metadata = AttentionMetadata([count for count, _ in ROWS], [n for _, n in ROWS], table.numpy())
    spec = AttentionSpec(0, head_dim**-0.5, sliding_window=200)
    out = backend.plan(metadata)(q, k, v, spec)
    written = torch.cat([s[-count:] for s, (count, _) in zip(slots, ROWS, strict=True)])
    expected_pool = QuantizedKVPool(
        kv_format, num_layers=1, num_slots=1600, num_kv_heads=KV_HEADS, head_dim=head_dim, device=CPU
    )
    expected_pool.write(0, written, k, v)
    for actual, wanted in zip(pool.layer(0), expected_pool.layer(0), strict=True):
        assert torch.equal(actual[written], wanted[written])
    keys, values = pool.dequantized(0)
    first = 0
    for (count, _), own in zip(ROWS, slots, strict=True):
        tokens = slice(first, first + count)
        expected = reference.attention(
            q[tokens], keys[own], values[own], scale=spec.scale, sliding_window=200, softcap=None
        )
        tolerance = 1e-5 if dtype is torch.float32 else 3e-3
        torch.testing.assert_close(out[tokens], expected, atol=tolerance, rtol=tolerance)
        first += count
    alone = backend.plan(AttentionMetadata([1], [270], table[1:2].numpy()))(q[1:2], k[1:2], v[1:2], spec)
    assert torch.equal(alone[0], out[1])


def test_scales_belong_to_int8_alone() -> None:
    keys = torch.zeros(16, 1, 16, dtype=torch.int8)
    scales = torch.zeros(16, 1)
    q, table = torch.randn(1, 1, 16), torch.zeros(1, 1, dtype=torch.int32)
    tiles = torch.tensor([(0, 0, 1, 0)], dtype=torch.int32)
    for cache in ((keys, keys), (keys, keys, scales, scales[:9]), (keys.float(), keys.float(), scales, scales)):
        with pytest.raises(ValueError, match="scales"):
            extend_attention(q, cache, table, tiles, q, AttentionOp(16, 1.0))
    write_kv(q, q, torch.tensor([3]), (keys, keys.clone(), scales, scales.clone())).run()
    assert keys[3].any()
    assert not keys[:3].any()
    assert scales[3, 0] == q.abs().max() / 127
