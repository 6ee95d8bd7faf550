"""Order, reach and bookkeeping of what changes logits."""

from typing import Any

import pytest
import torch

from ramet.runtime.executor.logit_edits import LogitEdits
from ramet.runtime.executor.row_ops import DeviceRows, HostRows, RowOps
from ramet.runtime.protocol import SamplingParams
from ramet.runtime.scheduler.batch import BatchRow
from tests.runtime.executor.rows import bitmask, decode_row

INF = float("inf")


def edited(*rows: BatchRow, vocab_size: int = 4, ops: RowOps | None = None) -> list[list[float]]:
    firsts, positions = [], 0
    for row in rows:
        firsts.append(positions)
        positions += row.sampled_positions
    logits = torch.ones(positions, vocab_size)
    LogitEdits(vocab_size, ops or HostRows()).apply(logits, rows, firsts)
    out: list[list[float]] = logits.tolist()
    return out


def test_nothing_to_edit() -> None:
    assert edited(decode_row(), decode_row()) == [[1.0] * 4] * 2


def test_the_order_is_penalties_bias_ban_mask() -> None:
    row = decode_row(
        [0, 1, 2],
        repetition_penalty=2.0,
        logit_bias={0: 3.0, 1: 100.0, 2: 100.0},
        banned=(1,),
        mask=bitmask(4, [0, 1, 3]),
    )
    assert edited(row) == [[3.5, -INF, -INF, 1.0]]


@pytest.mark.parametrize("ops", [HostRows(), DeviceRows()], ids=["host", "device"])
def test_masked_rows_between_others(ops: RowOps) -> None:
    mask = bitmask(4, [2])
    plain, masked = [1.0] * 4, [-INF, -INF, 1.0, -INF]
    rows = [decode_row(mask=value) for value in (None, mask, mask, None, None, mask)]
    assert edited(*rows, ops=ops) == [plain, masked, masked, plain, plain, masked]


def test_a_mask_has_a_row_for_each_draft() -> None:
    rows = [decode_row(), decode_row(drafts=[1, 1], mask=bitmask(4, [0], [1], [2])), decode_row()]
    assert edited(*rows)[1:4] == [[1.0, -INF, -INF, -INF], [-INF, 1.0, -INF, -INF], [-INF, -INF, 1.0, -INF]]


def test_bias_and_ban_reach_every_draft_position_of_their_row_alone() -> None:
    params: dict[str, Any] = {"logit_bias": {3: 1.0}, "banned": (0, 99), "min_tokens": 9}
    rows = [decode_row(), decode_row(drafts=[1, 1], **params), decode_row()]
    assert edited(*rows) == [[1.0] * 4, *[[-INF, 1.0, 1.0, 2.0]] * 3, [1.0] * 4]


@pytest.mark.parametrize(("min_tokens", "num_banned"), [(0, 3), (4, 3), (5, 1), (6, 2), (7, 3), (100, 3)])
def test_how_far_a_ban_reaches(min_tokens: int, num_banned: int) -> None:
    """Four tokens were generated, two drafts follow."""
    row = decode_row(output=[1] * 4, drafts=[1, 1], banned=(0,), min_tokens=min_tokens)
    assert [position[0] for position in edited(row)] == [-INF] * num_banned + [1.0] * (3 - num_banned)


def test_a_bias_is_kept_for_its_own_parameters_only() -> None:
    edits = LogitEdits(4, HostRows())
    for params in (SamplingParams(logit_bias={0: 1.0}), SamplingParams(logit_bias={1: 2.0})):
        row = decode_row(logit_bias=params.logit_bias)
        for _ in range(2):
            logits = torch.zeros(1, 4)
            edits.apply(logits, [row], [0])
            assert logits.sum() == next(iter((params.logit_bias or {}).values()))
    edits.forget(0)
    edits.forget(1)
