"""Keys and values in eight bits a number, for the kernels that read them so."""

from typing import Literal

import torch
from torch import Tensor

from ramet.kernels import reference

KVFormat = Literal["fp8", "int8"]
"""fp8: OCP's e4m3, of numbers up to 448, without scales. int8: with one scale a token and KV head."""


class QuantizedKVPool:
    """All layers' KV in device memory, half of what 16 bits take; int8 has 4 bytes more for each head.

    A ``KVPool`` whose layers have scales where the format has.
    """

    def __init__(
        self,
        kv_format: KVFormat,
        *,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device,
    ) -> None:
        self.kv_format = kv_format
        self._num_slots = num_slots
        dtype = torch.uint8 if kv_format == "fp8" else torch.int8
        shape = (num_layers, num_slots, num_kv_heads, head_dim)
        parts = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)]
        if kv_format == "int8":
            parts += [torch.zeros(shape[:3], dtype=torch.float32, device=device) for _ in range(2)]
        self._layers = list(zip(*(part.unbind(0) for part in parts), strict=True))

    @property
    def num_slots(self) -> int:
        return self._num_slots

    def write(self, layer_id: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """See ``KVPool.write``; the values that the kernel writes."""
        layer = self._layers[layer_id]
        for index, x in enumerate((k, v)):
            if self.kv_format == "fp8":
                layer[index].index_copy_(0, slots, reference.to_e4m3(x))
            else:
                stored, scale = reference.quantize_heads_int8(x)
                layer[index].index_copy_(0, slots, stored)
                layer[2 + index].index_copy_(0, slots, scale)

    def layer(self, layer_id: int) -> tuple[Tensor, ...]:
        """K and V of a layer, each [num_slots, num_kv_heads, head_dim] uint8 (e4m3) or int8; of the latter also
        the scales of both, [num_slots, num_kv_heads] fp32."""
        return self._layers[layer_id]

    def dequantized(self, layer_id: int) -> tuple[Tensor, Tensor]:
        """K and V of a layer in fp32: what attention computes with."""
        parts = self._layers[layer_id]
        if self.kv_format == "fp8":
            return reference.from_e4m3(parts[0]), reference.from_e4m3(parts[1])
        return parts[0].float() * parts[2][..., None], parts[1].float() * parts[3][..., None]
