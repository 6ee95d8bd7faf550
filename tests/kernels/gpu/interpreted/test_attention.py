"""The attention kernels where the backend does not reach: padding rows, spare spans, wrong arguments."""

import pytest
import torch
from torch import Tensor

from ramet.kernels import reference
from ramet.kernels.gpu.attention import (
    AttentionOp,
    Partials,
    decode_attention,
    extend_attention,
    fold_partials,
    max_tile_queries,
)

PAGE = 16
OP = AttentionOp(PAGE, 0.25)


def cache(num_slots: int = 320, num_kv_heads: int = 1, head_dim: int = 16) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    keys, values = torch.randn(2, num_slots, num_kv_heads, head_dim).unbind(0)
    return keys, values


def test_rows_of_padding_and_spans_that_no_row_has() -> None:
    keys, values = cache()
    q = torch.randn(3, 2, 16)
    table = torch.arange(20, dtype=torch.int32).expand(3, 20).contiguous()
    lens = torch.tensor([300, 0, 5], dtype=torch.int32)
    partials = Partials.empty(12, q)
    decode_attention(q, (keys, values), table, lens, partials, OP, max_spans=4).run()
    out = torch.empty_like(q)
    folds = torch.tensor([(0, 0, 2), (1, 4, 0), (2, 8, 1)], dtype=torch.int32)
    fold_partials(partials, folds, out).run()
    assert not out[1].any()
    for row, length in ((0, 300), (2, 5)):
        expected = reference.attention(
            q[row : row + 1], keys[:length], values[:length], scale=0.25, sliding_window=None, softcap=None
        )
        torch.testing.assert_close(out[row : row + 1], expected)


def test_wrong_arguments_are_refused() -> None:
    keys, values = cache()
    q = torch.randn(1, 2, 16)
    table, tiles = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([(0, 0, 1, 0)], dtype=torch.int32)
    with pytest.raises(ValueError, match="the cache 1 of 16"):
        extend_attention(torch.randn(1, 2, 8), (keys, values), table, tiles, q, OP)
    with pytest.raises(ValueError, match="contiguous tensors of one shape"):
        extend_attention(q, (keys, values[:9]), table, tiles, q, OP)
    with pytest.raises(ValueError, match=r"q\.contiguous"):
        extend_attention(q.mT.contiguous().mT, (keys, values), table, tiles, q, OP)
    with pytest.raises(ValueError, match="65 query heads share a KV head"):
        max_tile_queries(65, torch.float16)
    assert max_tile_queries(3, torch.float16) == 21
    assert max_tile_queries(3, torch.float32) == 5
