"""Single queries over their spans, alone from the pool and the plan around them."""

import numpy as np
import pytest
import torch

from ramet.kernels import reference
from ramet.runtime.attention import AttentionMetadata
from ramet.runtime.attention.layout import HeadLayout, PageSlots, StepLayout
from ramet.runtime.attention.tokenwise import TokenwiseAttention
from ramet.runtime.forward import AttentionSpec

CPU = torch.device("cpu")
HEADS = HeadLayout(num_kv_heads=2, group_size=3, head_dim=16)
KV_LENS = [300, 7, 192, 500]


@pytest.mark.parametrize("max_items", [1, 2, 100])
@pytest.mark.parametrize("num_shared", [0, 192, 288])
@pytest.mark.parametrize("window", [None, 10])
def test_each_query_attends_to_its_own_keys(max_items: int, num_shared: int, window: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    table = (np.arange(4)[:, None] * 500 + np.arange(500)).astype(np.int32)
    table[2:, :num_shared] = table[0, :num_shared]
    metadata = AttentionMetadata([1] * 4, KV_LENS, table)
    layout = StepLayout(metadata, PageSlots(metadata, 1), sliding_window=window, max_items=max_items)
    assert layout.tokenwise is not None
    keys, values = torch.randn(2, 2000, 2, 16, generator=generator)
    q = torch.randn(4, 6, 16, generator=generator)
    attend = TokenwiseAttention(layout.tokenwise, HEADS, num_batch_tokens=4, device=CPU)
    spec = AttentionSpec(0, 0.25, sliding_window=window)
    first = attend(q, keys, values, spec).clone()
    for row, kv_len in enumerate(KV_LENS):
        slots = torch.from_numpy(table[row, :kv_len].astype(np.int64))
        expected = reference.attention(
            q[row : row + 1], keys[slots], values[slots], scale=0.25, sliding_window=window, softcap=None
        )
        torch.testing.assert_close(first[row], expected[0])
    attend(torch.zeros_like(q), values, keys, spec)
    assert torch.equal(attend(q, keys, values, spec), first)
