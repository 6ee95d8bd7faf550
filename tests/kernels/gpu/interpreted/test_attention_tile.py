"""The shapes of tiles."""

import pytest
import torch

from ramet.kernels.gpu.attention_tile import SPAN, tile_shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("head_dim", [1, 16, 64, 80, 96, 128, 256])
def test_channels_are_padded_and_spans_are_whole_blocks(head_dim: int, dtype: torch.dtype) -> None:
    shape = tile_shape(head_dim, dtype)
    assert shape.channels >= max(16, head_dim)
    assert shape.channels < max(17, 2 * head_dim)
    assert SPAN % shape.block_keys == 0
    assert shape.rows >= 16


@pytest.mark.parametrize("head_dim", [0, 257])
def test_other_sizes_are_refused(head_dim: int) -> None:
    with pytest.raises(ValueError, match=f"head_dim is {head_dim}"):
        tile_shape(head_dim, torch.float16)
