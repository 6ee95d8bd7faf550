import pytest
import torch

from ramet.kernels import quantize_rows_int8
from ramet.runtime.layers.embedding import FloatEmbedding, Int8Embedding

TABLE = torch.randn((10, 8), generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([3, 3, 9, 0])


def test_float() -> None:
    before = TABLE.clone()
    assert torch.equal(FloatEmbedding(TABLE)(IDS), TABLE[IDS])
    assert torch.equal(FloatEmbedding(TABLE, 2.5)(IDS), TABLE[IDS] * 2.5)
    assert torch.equal(TABLE, before)


def test_the_multiplier_is_rounded_to_the_dtype() -> None:
    table = TABLE.bfloat16()
    got = FloatEmbedding(table, 25.298)(IDS)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, table[IDS] * torch.tensor(25.298, dtype=torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8(dtype: torch.dtype) -> None:
    table, scale = quantize_rows_int8(TABLE)
    got = Int8Embedding(table, scale, dtype)(IDS)
    assert got.dtype == dtype
    assert torch.allclose(got.float(), TABLE[IDS], atol=0.03)
    scaled = Int8Embedding(table, scale, dtype, 4.0)(IDS)
    assert torch.allclose(scaled.float(), 4 * got.float(), rtol=1e-2)
