"""Log probabilities against plain NumPy in fp64."""

import numpy as np
import pytest
import torch

from ramet.runtime.executor.logprobs import target_logprobs, token_logprobs
from ramet.runtime.executor.row_ops import DeviceRows, HostRows, RowOps

BOTH = pytest.mark.parametrize("ops", [HostRows(), DeviceRows()], ids=["host", "device"])


@BOTH
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_values_ranks_and_best_tokens(ops: RowOps, offset: float) -> None:
    """Far from zero the logits themselves are coarse, but nothing is lost on top of that."""
    logits = torch.randn(6, 777, generator=torch.Generator().manual_seed(0)) * 4 + offset
    rows, ids, counts = [5, 0, 3], [17, 770, 4], [0, 3, 100]
    found = token_logprobs(logits, rows, ids, counts, ops)
    for entry, row, token_id, count in zip(found, rows, ids, counts, strict=True):
        array = logits[row].double().numpy()
        exact = array - array.max() - np.log(np.exp(array - array.max()).sum())
        best_first = sorted(range(777), key=lambda token: (-array[token], token))
        assert entry.chosen.token_id == token_id
        assert entry.chosen.logprob == pytest.approx(exact[token_id], abs=2e-6)
        assert best_first[entry.chosen.rank] == token_id
        assert [top.token_id for top in entry.top] == best_first[:count]
        assert [top.rank for top in entry.top] == list(range(count))
        assert [top.logprob for top in entry.top] == pytest.approx(exact[best_first[:count]].tolist(), abs=2e-6)


@BOTH
def test_ties_go_to_the_lower_id(ops: RowOps) -> None:
    logits = torch.zeros(1, 500)
    logits[0, 400] = 1.0
    (entry,) = token_logprobs(logits, [0], [2], [3], ops)
    assert [top.token_id for top in entry.top] == [400, 0, 1]
    assert entry.chosen.rank == 3


@BOTH
def test_removed_tokens_are_never_among_the_best(ops: RowOps) -> None:
    logits = torch.full((1, 500), float("-inf"))
    logits[0, [3, 9]] = torch.tensor([1.0, 2.0])
    (entry,) = token_logprobs(logits, [0], [3], [5], ops)
    assert [top.token_id for top in entry.top] == [9, 3]
    assert np.exp([top.logprob for top in entry.top]).sum() == pytest.approx(1.0)


@BOTH
def test_more_than_the_vocabulary_has(ops: RowOps) -> None:
    (entry,) = token_logprobs(torch.zeros(1, 4), [0], [3], [100], ops)
    assert [top.token_id for top in entry.top] == [0, 1, 2, 3]


@BOTH
def test_nothing_asked(ops: RowOps) -> None:
    assert token_logprobs(torch.zeros(0, 4), [], [], [], ops) == []


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_targets_have_the_same_bits_whatever_is_beside_them(offset: float) -> None:
    logits = torch.randn(7, 777, generator=torch.Generator().manual_seed(1)) * 4 + offset
    logits[2, 5] = float("-inf")
    ids = [(17, 770), (), (5, 0), (3,), tuple(range(777)), (9,), (9,)]
    found = target_logprobs(logits, ids)
    assert [len(one) for one in found] == [len(one) for one in ids]
    for row, token_ids in enumerate(ids):
        entries = token_logprobs(logits, [row] * len(token_ids), token_ids, [0] * len(token_ids), HostRows())
        assert found[row] == [entry.chosen.logprob for entry in entries]
        assert target_logprobs(logits[row : row + 1], [token_ids]) == [found[row]]
    assert found[2][0] == float("-inf")


def test_no_targets() -> None:
    assert target_logprobs(torch.zeros(0, 4), []) == []
