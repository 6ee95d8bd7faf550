"""Draws by the device's own kernel: logits stay where they are, and token ids come back."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ramet.kernels.dispatch import triton_module
from ramet.runtime.forward import HostStaging, device_copy
from ramet.runtime.protocol import SamplingParams

_WORD = (1 << 64) - 1


class RandomDraw(Protocol):
    """A position that is sampled at random."""

    @property
    def position(self) -> int:
        """Row of the logits."""
        ...

    @property
    def params(self) -> SamplingParams: ...

    @property
    def seed(self) -> int: ...

    @property
    def index(self) -> int:
        """Number of the output token, from 0."""
        ...


@dataclass(frozen=True, slots=True)
class KernelDraws:
    """Draws of a step by ``kernels.gpu.sampling``, for rows of logits on its device."""

    kernels: ModuleType
    """``kernels.gpu``."""
    staging: HostStaging | None

    def takes(self, logits: Tensor) -> bool:
        return bool(1 < logits.shape[1] < self.kernels.MAX_VOCAB)

    def put(self, ids: Tensor, logits: Tensor, draws: Sequence[RandomDraw]) -> Tensor:
        """ids: [positions] int64, on logits' device; with those that are drawn in their places. Waits for
        nothing."""
        positions = np.array([draw.position for draw in draws], np.int64)
        return ids.index_copy(
            0, device_copy(positions, logits.device, self.staging), self.launch(logits, draws)
        )

    def launch(self, logits: Tensor, draws: Sequence[RandomDraw]) -> Tensor:
        """A token id for each, [len(draws)] int64. logits: [positions, vocab_size] fp32. Of a row without a
        finite maximum it is any number."""
        numbers = np.array(
            [(draw.params.temperature, draw.params.top_p, draw.params.min_p) for draw in draws], np.float64
        ).reshape(-1, 3)
        words = np.array([draw.seed & _WORD for draw in draws], np.uint64).view(np.int64)
        small = np.array([(draw.position, max(0, draw.params.top_k)) for draw in draws], np.int32).reshape(
            -1, 2
        )
        arrays = (
            np.ascontiguousarray(small[:, 0]),
            words,
            np.array([draw.index for draw in draws], np.int64),
            numbers,
            np.ascontiguousarray(small[:, 1]),
        )
        tensors = [device_copy(array, logits.device, self.staging) for array in arrays]
        chosen: Tensor = self.kernels.draw_tokens(logits, self.kernels.DrawParams(*tensors))
        return chosen


def kernel_draws_for(device: torch.device) -> KernelDraws | None:
    """None where the device has no kernel for it, or triton is not installed."""
    kernels = triton_module() if device.type == "cuda" else None
    return None if kernels is None else KernelDraws(kernels, HostStaging(device))
