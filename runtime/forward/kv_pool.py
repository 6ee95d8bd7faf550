"""The KV pool: one pair of tensors a layer, addressed by slot (= page * page_size + offset in the page)."""

from typing import Protocol

import torch
from torch import Tensor


class KVPool(Protocol):
    """Where keys and values live: device memory here, host memory or disk behind the same interface."""

    @property
    def num_slots(self) -> int: ...

    def write(self, layer_id: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """slots: [num_tokens] int64; k, v: [num_tokens, num_kv_heads, head_dim]."""
        ...

    def layer(self, layer_id: int) -> tuple[Tensor, Tensor]:
        """K and V of a layer, each [num_slots, num_kv_heads, head_dim]."""
        ...


class DeviceKVPool:
    """All layers' KV in device memory, allocated once."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_layers, num_slots, num_kv_heads, head_dim)
        # zeros, not empty: memory that no one wrote may hold NaN, and a masked NaN is still NaN after the product
        # with V. On Linux untouched zero pages cost no memory.
        self._k = torch.zeros(shape, dtype=dtype, device=device)
        self._v = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def num_slots(self) -> int:
        return self._k.shape[1]

    def write(self, layer_id: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        self._k[layer_id].index_copy_(0, slots, k.to(self._k.dtype))
        self._v[layer_id].index_copy_(0, slots, v.to(self._v.dtype))

    def layer(self, layer_id: int) -> tuple[Tensor, Tensor]:
        return self._k[layer_id], self._v[layer_id]
