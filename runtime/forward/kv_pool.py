"""The KV pool: one pair of tensors a layer, addressed by slot (= page * page_size + offset in the page)."""

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class KVPool(Protocol):
    """Where keys and values live: device memory here, host memory or disk behind the same interface."""

    @property
    def num_slots(self) -> int: ...

    def write(self, layer_id: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """slots: [num_tokens] int64, no slot twice; k, v: [num_tokens, num_kv_heads, head_dim]."""
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
        # zeros, not empty: memory that no one wrote may hold NaN, and a masked NaN is still NaN after the
        # product with V.
        k = _zeros(shape, dtype, device)
        v = _zeros(shape, dtype, device)
        self._num_slots = num_slots
        self._dtype = dtype
        # Views made once: indexing a tensor by layer costs as much as writing one token's keys.
        self._layers = list(zip(k.unbind(0), v.unbind(0), strict=True))

    @property
    def num_slots(self) -> int:
        return self._num_slots

    def write(self, layer_id: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        layer_k, layer_v = self._layers[layer_id]
        layer_k.index_copy_(0, slots, k.to(self._dtype))
        layer_v.index_copy_(0, slots, v.to(self._dtype))

    def layer(self, layer_id: int) -> tuple[Tensor, Tensor]:
        return self._layers[layer_id]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On a CPU through numpy, whose zeros come from the system untouched: torch writes them, which takes a
    second for a pool of 3 GiB and makes all of it resident before the first token."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
