"""Both implementations of the row operations against plain NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.executor.row_ops import (
    HOST_ELEMENTS,
    LOWEST,
    WIDTH,
    DeviceRows,
    HostRows,
    RowOps,
    padded_rows,
    row_chunks,
    row_ops_for,
    rows_of,
)
from tests.runtime.executor.rows import bitmask

BOTH = pytest.mark.parametrize("ops", [HostRows(), DeviceRows()], ids=["host", "device"])
NEGATIVE_INFINITY = float("-inf")


def tied_logits(rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    """Few distinct values, so ties abound, and some removed tokens."""
    rng = np.random.default_rng(seed)
    logits = rng.integers(-20, 20, size=(rows, vocab_size)).astype(np.float32)
    logits[rng.random((rows, vocab_size)) < 0.1] = NEGATIVE_INFINITY
    return torch.from_numpy(logits)


@BOTH
def test_argmax_takes_the_first_of_several_maxima(ops: RowOps) -> None:
    logits = tied_logits(20, 1000)
    ids, values = ops.argmax(logits)
    for row in range(20):
        array = logits[row].tolist()
        assert ids[row] == array.index(max(array))
        assert values[row] == max(array)


@BOTH
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 1000])
def test_disallow(ops: RowOps, vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    allowed = [np.flatnonzero(rng.random(vocab_size) < 0.5).tolist() for _ in range(3)]
    logits = torch.zeros(6, vocab_size)
    ops.disallow(logits, 2, bitmask(vocab_size, *allowed))
    assert (logits[[0, 1, 5]] == 0).all()
    for row, ids in enumerate(allowed):
        assert torch.nonzero(logits[2 + row] == 0)[:, 0].tolist() == ids


@BOTH
def test_disallow_of_more_rows_than_a_chunk(ops: RowOps) -> None:
    vocab_size = HOST_ELEMENTS // 2
    logits = torch.zeros(5, vocab_size)
    ops.disallow(logits, 0, bitmask(vocab_size, *[[row] for row in range(5)]))
    assert torch.nonzero(logits == 0).tolist() == [[row, row] for row in range(5)]


@BOTH
@given(seed=st.integers(0, 1000), k=st.integers(1, 400), vocab_size=st.sampled_from([5, 64, 300, 2000]))
def test_kth_largest_bounds_let_at_least_k_through(ops: RowOps, seed: int, k: int, vocab_size: int) -> None:
    logits = tied_logits(3, vocab_size, seed)
    (bound,) = ops.kth_largest_bounds(logits, [1], [k])
    values = np.sort(logits[1].numpy())[::-1]
    finite = int((values > NEGATIVE_INFINITY).sum())
    passed = int((values >= bound).sum())
    assert passed >= min(k, finite)
    assert passed <= finite
    assert bound >= LOWEST


@BOTH
def test_at_least(ops: RowOps) -> None:
    logits = tied_logits(4, 500)
    found = ops.at_least(logits, [3, 1], [10.0, 100.0])
    expected = np.flatnonzero(logits[3].numpy() >= 10.0)
    assert found[0][0].tolist() == expected.tolist()
    assert found[0][1].tolist() == logits[3].numpy()[expected].tolist()
    assert len(found[1][0]) == len(found[1][1]) == 0


@BOTH
def test_ranks(ops: RowOps) -> None:
    logits = tied_logits(3, 200)
    for row in range(3):
        best_first = sorted(range(200), key=lambda token: (-float(logits[row, token]), token))
        ids = [0, 7, 199]
        assert ops.ranks(logits, [row] * 3, ids).tolist() == [best_first.index(token) for token in ids]


def test_rows_of_copies_only_where_it_must() -> None:
    logits = torch.arange(12.0).reshape(4, 3)
    assert rows_of(logits, [1, 2]).data_ptr() == logits[1].data_ptr()
    assert rows_of(logits, [2, 0]).tolist() == logits[[2, 0]].tolist()
    assert rows_of(logits, []).shape == (0, 3)


@pytest.mark.parametrize("vocab_size", [3, WIDTH, WIDTH + 1])
def test_padded_rows(vocab_size: int) -> None:
    logits = torch.randn(3, vocab_size)
    padded = padded_rows(logits, [2, 0], [2.0, 0.5])
    assert padded.shape[1] % WIDTH == 0
    assert torch.equal(padded[:, :vocab_size], torch.stack((logits[2] / 2.0, logits[0] / 0.5)))
    assert (padded[:, vocab_size:] == NEGATIVE_INFINITY).all()


def test_row_chunks_cover_every_row_once() -> None:
    for vocab_size in (1, 1000, HOST_ELEMENTS, 3 * HOST_ELEMENTS):
        chunks = list(row_chunks(700, torch.empty(1, 1).expand(1, vocab_size)))
        assert [row for chunk in chunks for row in range(700)[chunk]] == list(range(700))
    assert list(row_chunks(0, torch.empty(0, 5))) == []


def test_numpy_serves_the_cpu_and_torch_every_other_device() -> None:
    assert isinstance(row_ops_for(torch.device("cpu")), HostRows)
    assert isinstance(row_ops_for(torch.device("cuda")), DeviceRows)
