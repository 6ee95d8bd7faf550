"""Latent attention against the oracle."""

import pytest
import torch

from ramet.kernels import reference
from ramet.kernels.gpu.attention import fold_partials
from ramet.kernels.gpu.mla import mla_decode, mla_partials


@pytest.mark.parametrize(
    ("num_heads", "rank", "rope_dim", "page_size", "dtype"),
    [
        (3, 64, 16, 16, torch.float32),
        (17, 48, 8, 1, torch.float32),
        (16, 512, 64, 64, torch.float16),
    ],
)
def test_equals_the_oracle(
    num_heads: int, rank: int, rope_dim: int, page_size: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    kv_lens = [1, 300, 0, 256]
    num_pages = -(-300 // page_size)
    cache = torch.randn(4 * num_pages * page_size, rank + rope_dim, generator=generator).to(dtype)
    table = torch.randperm(4 * num_pages, generator=generator).view(4, num_pages).to(torch.int32)
    q = torch.randn(4, num_heads, rank + rope_dim, generator=generator).to(dtype)
    latent, rope = q.split_with_sizes([rank, rope_dim], 2)
    partials, scale, spans = mla_partials(12, latent), (rank + rope_dim) ** -0.5, 3
    lens = torch.tensor(kv_lens, dtype=torch.int32)
    mla_decode(
        (latent, rope), cache, table, lens, partials, page_size=page_size, scale=scale, max_spans=spans
    ).run()
    folds = torch.tensor([(i, i * spans, -(-n // 256)) for i, n in enumerate(kv_lens)], dtype=torch.int32)
    out = torch.empty(4, num_heads, rank, dtype=dtype)
    fold_partials(partials, folds, out).run()
    tolerance = 1e-5 if dtype is torch.float32 else 3e-3
    for row, kv_len in enumerate(kv_lens):
        if not kv_len:
            assert not out[row].any()
            continue
        slots = (table[row].long()[:, None] * page_size + torch.arange(page_size)).flatten()[:kv_len]
        stored = cache[slots]
        expected = reference.mla_decode(latent[row], rope[row], stored[:, :rank], stored[:, rank:], scale=scale)
        torch.testing.assert_close(out[row], expected, atol=tolerance, rtol=tolerance)


def test_wrong_arguments_are_refused() -> None:
    latent, rope = torch.randn(1, 2, 32), torch.randn(1, 2, 8)
    table, lens = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    partials = mla_partials(1, latent)
    with pytest.raises(ValueError, match=r"32 \+ 8 channels"):
        mla_decode(
            (latent, rope), torch.zeros(16, 41), table, lens, partials, page_size=16, scale=1.0, max_spans=1
        )
    wide = torch.randn(1, 2, 1024)
    with pytest.raises(ValueError, match="16 to 512"):
        mla_decode(
            (wide, rope), torch.zeros(16, 1032), table, lens, partials, page_size=16, scale=1.0, max_spans=1
        )
