"""Copies through page-locked buffers, with a device that is the host."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ramet.runtime.forward.host_staging import HostStaging, device_copy, torch_dtype

CPU = torch.device("cpu")


class CountedMemory:
    """Ordinary memory; writes down what is allocated, and which copies were waited for."""

    def __init__(self) -> None:
        self.allocated: list[int] = []
        self.waited: list[int] = []
        self._marks = 0

    def allocate(self, num_bytes: int) -> torch.Tensor:
        self.allocated.append(num_bytes)
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def mark(self) -> "CountedMoment":
        self._marks += 1
        return CountedMoment(self, self._marks - 1)


class CountedMoment:
    def __init__(self, memory: CountedMemory, number: int) -> None:
        self._memory = memory
        self._number = number

    def synchronize(self) -> None:
        self._memory.waited.append(self._number)


def test_arrays_arrive_and_may_change_afterwards() -> None:
    staging = HostStaging(CPU, CountedMemory(), num_buffers=2)
    arrays: list[npt.NDArray[Any]] = [
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.array([2**40, -1], dtype=np.int64),
        np.arange(12, dtype=np.float64).reshape(4, 3)[:, 1],
        np.empty((0, 5), dtype=np.int32),
    ]
    expected = [torch.from_numpy(array.copy()) for array in arrays]
    found = [staging.to_device(array) for array in arrays]
    for array in arrays:
        array.fill(7)
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.dtype is wanted.dtype
        assert torch.equal(actual, wanted)


def test_a_buffer_is_used_again_once_its_copy_is_done_and_grows() -> None:
    memory = CountedMemory()
    staging = HostStaging(CPU, memory, num_buffers=2)
    for size in (10, 3, 10, 100, 5):
        staging.to_device(np.zeros(size, dtype=np.int32))
    # The third copy goes through the first buffer, the fourth through the second, which is too small by then.
    assert memory.waited == [0, 1, 2]
    assert memory.allocated == [64, 16, 512]


def test_a_target_of_another_form_is_refused() -> None:
    staging = HostStaging(CPU, CountedMemory())
    with pytest.raises(ValueError, match="int32"):
        staging.copy_into(torch.zeros(2), np.zeros(2, dtype=np.int32))
    with pytest.raises(ValueError, match=r"\(3,\)"):
        staging.copy_into(torch.zeros(2, dtype=torch.int32), np.zeros(3, dtype=np.int32))
    target = torch.zeros(2, dtype=torch.int32)
    staging.copy_into(target, np.array([4, 5], dtype=np.int32))
    assert target.tolist() == [4, 5]


def test_dtypes() -> None:
    assert torch_dtype(np.zeros(1, np.float32)) is torch.float32
    assert torch_dtype(np.zeros(1, np.int64)) is torch.int64


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu() -> None:
    staging = HostStaging(torch.device("cuda"))
    for number in range(20):
        array = np.full(1 + number, number, dtype=np.int32)
        assert staging.to_device(array).tolist() == array.tolist()


def test_a_cpu_needs_no_copies() -> None:
    assert HostStaging.of(CPU) is None
    assert isinstance(HostStaging.of(torch.device("cuda")), HostStaging)
    array = np.arange(12, dtype=np.int32).reshape(3, 4)[:, 1:3]
    for staging in (None, HostStaging(CPU, CountedMemory())):
        copied = device_copy(array, CPU, staging)
        assert copied.is_contiguous()
        assert copied.tolist() == array.tolist()
