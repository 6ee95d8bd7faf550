"""Copies from host to device that nobody waits for."""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

NUM_BUFFERS = 32
"""Copies that may be on their way at once: a step makes up to a dozen."""


class Moment(Protocol):
    """A point in a device's work."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""
        ...


class PageLockedMemory(Protocol):
    """Where staging buffers come from."""

    def allocate(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8 on the host, readable by the device without a copy of the driver's own."""
        ...

    def mark(self) -> Moment:
        """The point behind what was given to the device so far."""
        ...


class CudaPageLockedMemory:
    """Page-locked memory and events of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def mark(self) -> Moment:
        event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


class HostStaging:
    """Copies NumPy arrays to a device through page-locked buffers, without waiting for the device.

    Memory that is not page-locked is first copied by the driver, and the call returns when that is done, which
    is behind all that the device has to do before. Buffers are used in turn; before one is used again, its last
    copy is waited for. They grow to the largest array that was copied.
    """

    def __init__(
        self, device: torch.device, memory: PageLockedMemory | None = None, num_buffers: int = NUM_BUFFERS
    ) -> None:
        """memory: None: the device's. Nothing is allocated before the first copy."""
        self._device = device
        self._memory = CudaPageLockedMemory(device) if memory is None else memory
        self._buffers: list[Tensor | None] = [None] * num_buffers
        self._in_use: list[Moment | None] = [None] * num_buffers
        self._next = 0

    @classmethod
    def of(cls, device: torch.device) -> "HostStaging | None":
        """None on a CPU, where nothing has to be copied."""
        return None if device.type == "cpu" else cls(device)

    def to_device(self, array: npt.NDArray[np.generic]) -> Tensor:
        """A contiguous tensor on the device; ``array`` may change once this returns."""
        target = torch.empty(array.shape, dtype=torch_dtype(array), device=self._device)
        self.copy_into(target, array)
        return target

    def copy_into(self, target: Tensor, array: npt.NDArray[np.generic]) -> None:
        """The same into a tensor on the device of the array's shape and dtype."""
        if target.shape != array.shape or target.dtype is not torch_dtype(array):
            raise ValueError(
                f"the array is {array.dtype} {array.shape}, its target {target.dtype} {target.shape}"
            )
        if array.size == 0:
            return
        index, self._next = self._next, (self._next + 1) % len(self._buffers)
        moment = self._in_use[index]
        if moment is not None:
            moment.synchronize()
        buffer = self._buffers[index]
        if buffer is None or buffer.numel() < array.nbytes:
            buffer = self._buffers[index] = self._memory.allocate(1 << (array.nbytes - 1).bit_length())
        staged = buffer[: array.nbytes].view(target.dtype).view(array.shape)
        np.copyto(staged.numpy(), array)
        target.copy_(staged, non_blocking=True)
        self._in_use[index] = self._memory.mark()


def torch_dtype(array: npt.NDArray[np.generic]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype


def device_copy(array: npt.NDArray[np.generic], device: torch.device, staging: HostStaging | None) -> Tensor:
    """A contiguous tensor of the array on the device; without ``staging`` it may share its memory."""
    if staging is None:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)
    return staging.to_device(array)
