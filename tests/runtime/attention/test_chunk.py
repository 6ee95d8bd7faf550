"""One row's chunk of queries, alone from the pool and the plan around it."""

import numpy as np
import pytest
import torch

from ramet.kernels import reference
from ramet.runtime.attention import AttentionMetadata
from ramet.runtime.attention.chunk import ChunkAttention
from ramet.runtime.attention.layout import HeadLayout, PageSlots, StepLayout
from ramet.runtime.forward import AttentionSpec

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("query_len", "kv_len"), [(5, 5), (7, 192), (192, 192), (193, 200), (50, 900), (601, 601)]
)
@pytest.mark.parametrize("group_size", [1, 3])
@pytest.mark.parametrize("window", [None, 1, 100, 400])
def test_each_query_sees_the_keys_up_to_its_own(
    query_len: int, kv_len: int, group_size: int, window: int | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    slots = np.random.default_rng(0).permutation(1000)[:kv_len]
    metadata = AttentionMetadata([query_len], [kv_len], slots[None].astype(np.int32))
    layout = StepLayout(metadata, PageSlots(metadata, 1), sliding_window=window, max_items=8)
    assert layout.tokenwise is None
    keys, values = torch.full((2, 1000, 2, 16), float("nan"))
    k, v = torch.randn(2, kv_len, 2, 16, generator=generator)
    keys[slots], values[slots] = k, v
    q = torch.randn(query_len, 2 * group_size, 16, generator=generator)
    attend = ChunkAttention(layout.chunks[0], HeadLayout(2, group_size, 16), device=CPU)
    actual = attend(q, keys, values, AttentionSpec(0, 0.25, sliding_window=window))
    expected = reference.attention(q, k, v, scale=0.25, sliding_window=window, softcap=None)
    torch.testing.assert_close(actual, expected)
