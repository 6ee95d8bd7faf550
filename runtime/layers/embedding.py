"""Token embeddings."""

from typing import Protocol

import torch
from torch import Tensor


class Embedding(Protocol):
    def __call__(self, input_ids: Tensor) -> Tensor:
        """input_ids: [num_tokens] int64 -> [num_tokens, hidden_size], of the activations' dtype."""
        ...


class FloatEmbedding:
    """table: [vocab_size, hidden_size]. multiplier: rounded to the table's dtype, as transformers rounds it."""

    def __init__(self, table: Tensor, multiplier: float | None = None) -> None:
        self._table = table
        self._multiplier = None if multiplier is None else _rounded(multiplier, table.dtype)

    def __call__(self, input_ids: Tensor) -> Tensor:
        rows = self._table.index_select(0, input_ids)
        return rows if self._multiplier is None else rows.mul_(self._multiplier)


class Int8Embedding:
    """table: [vocab_size, hidden_size] int8; scale: [vocab_size] fp32, one a row.

    The table may be the output projection's own weight: its channels are the same rows.
    """

    def __init__(
        self, table: Tensor, scale: Tensor, dtype: torch.dtype, multiplier: float | None = None
    ) -> None:
        self._table = table
        self._scale = (scale if multiplier is None else scale * _rounded(multiplier, dtype))[:, None]
        self._dtype = dtype

    def __call__(self, input_ids: Tensor) -> Tensor:
        rows = self._table.index_select(0, input_ids) * self._scale.index_select(0, input_ids)
        return rows.to(self._dtype)


def _rounded(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(value, dtype=dtype))
