"""The sampler with the device's kernel draws the tokens that it draws on a CPU."""

import numpy as np
import pytest
import torch

from ramet.kernels import gpu
from ramet.runtime.executor.kernel_draws import KernelDraws, kernel_draws_for
from ramet.runtime.executor.row_ops import DeviceRows
from ramet.runtime.executor.sampler import NOT_FINITE, NOTHING_ALLOWED, Sampler
from tests.runtime.executor.rows import bitmask, decode_row

CPU = torch.device("cpu")
DRAWS = KernelDraws(gpu, None)


def test_equals_the_sampler_on_a_cpu() -> None:
    vocab_size = 300
    logits = torch.randn(8, vocab_size, generator=torch.Generator().manual_seed(0)) * 3
    allowed = bitmask(vocab_size, range(0, 300, 3))
    rows = [
        decode_row(temperature=0.0),
        decode_row(seed=-5, temperature=0.7),
        decode_row(output=[1, 2], seed=2**63, temperature=1.3, top_k=4),
        decode_row(seed=3, top_p=0.8, drafts=[7]),
        decode_row(seed=4, min_p=0.05, mask=allowed),
        decode_row(seed=5, top_k=-1, top_p=0.5, min_p=0.1),
        decode_row(seed=6, top_k=1, frequency_penalty=0.5, output=[9, 9]),
    ]
    on_cpu = Sampler(vocab_size, CPU).sample(logits.clone(), rows)
    with_kernel = Sampler(vocab_size, CPU, DeviceRows(), DRAWS).sample(logits.clone(), rows)
    assert with_kernel == on_cpu
    assert len(with_kernel) == len(rows)
    alone = [
        Sampler(vocab_size, CPU, DeviceRows(), DRAWS).sample(logits[first : first + 1].clone(), [rows[index]])[
            0
        ]
        for index, first in ((1, 1), (5, 6))
    ]
    assert alone == [on_cpu[1], on_cpu[5]]


def test_vocabularies_that_the_kernel_does_not_hold() -> None:
    assert DRAWS.takes(torch.empty(0, 2))
    assert not DRAWS.takes(torch.empty(0, 1))
    assert not DRAWS.takes(torch.empty(0, gpu.MAX_VOCAB))
    assert kernel_draws_for(CPU) is None
    found = kernel_draws_for(torch.device("cuda"))
    assert found is not None
    assert found.kernels is gpu


def test_a_mask_of_several_rows() -> None:
    logits = torch.zeros(4, 100)
    DeviceRows().disallow(logits, 1, bitmask(100, [0, 99], [31, 32]))
    assert np.flatnonzero(logits[1] == 0).tolist() == [0, 99]
    assert np.flatnonzero(logits[2] == 0).tolist() == [31, 32]
    assert not logits[::3].any()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_errors_of_single_rows() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    logits[1, 3], logits[2, 5] = float("nan"), float("inf")
    logits[4] = float("nan")
    rows = [
        decode_row(seed=1, top_k=3),
        decode_row(seed=2, top_p=0.5),
        decode_row(seed=3, top_k=2, top_p=0.5),
        decode_row(seed=4, mask=bitmask(40, [])),
        decode_row(seed=5),
    ]
    found = Sampler(40, CPU, DeviceRows(), DRAWS).sample(logits.clone(), rows)
    assert found == Sampler(40, CPU).sample(logits.clone(), rows)
    assert [result.error for result in found] == [None, NOT_FINITE, NOT_FINITE, NOTHING_ALLOWED, NOT_FINITE]
