"""What changes logits before a distribution is made of them, in this order: penalties, logit_bias, banned
tokens, mask.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ramet.runtime.executor.penalties import PenaltyStates, apply_penalties
from ramet.runtime.executor.row_ops import FloatArray, IntArray, RowOps
from ramet.runtime.protocol import SamplingParams
from ramet.runtime.scheduler.batch import BatchRow

_Bias = tuple[IntArray, FloatArray]


class LogitEdits:
    """Keeps, a slot, what would be dear to make anew in every step: token counts and the arrays of
    logit_bias.
    """

    def __init__(self, vocab_size: int, ops: RowOps) -> None:
        self._vocab_size = vocab_size
        self._ops = ops
        self._penalties = PenaltyStates(vocab_size)
        self._biases: dict[int, tuple[SamplingParams, _Bias]] = {}

    def forget(self, slot: int) -> None:
        """The slot changes hands."""
        self._penalties.forget(slot)
        self._biases.pop(slot, None)

    def apply(self, logits: Tensor, rows: Sequence[BatchRow], firsts: Sequence[int]) -> None:
        """Change ``logits`` [positions, vocab_size] fp32 in place; row i's positions begin at ``firsts[i]``."""
        penalised = [
            edit
            for row, first in zip(rows, firsts, strict=True)
            if row.params.has_penalties
            for edit in self._penalties.edits(row, first)
        ]
        if penalised:
            apply_penalties(logits, penalised)
        self._apply_biases(logits, rows, firsts)
        self._apply_bans(logits, rows, firsts)
        self._apply_masks(logits, rows, firsts)

    def _apply_biases(self, logits: Tensor, rows: Sequence[BatchRow], firsts: Sequence[int]) -> None:
        positions: list[int] = []
        biases: list[_Bias] = []
        for row, first in zip(rows, firsts, strict=True):
            if row.params.logit_bias:
                positions.extend(range(first, first + row.sampled_positions))
                biases.extend([self._bias(row)] * row.sampled_positions)
        if not positions:
            return
        at = _indices(positions, [ids for ids, _ in biases], logits.device)
        logits[at] += torch.from_numpy(np.concatenate([values for _, values in biases])).to(logits.device)

    def _bias(self, row: BatchRow) -> _Bias:
        kept = self._biases.get(row.slot)
        if kept is not None and kept[0] is row.params:
            return kept[1]
        wanted = {key: value for key, value in (row.params.logit_bias or {}).items() if key < self._vocab_size}
        bias = np.array(list(wanted), dtype=np.int64), np.array(list(wanted.values()), dtype=np.float32)
        self._biases[row.slot] = (row.params, bias)
        return bias

    def _apply_bans(self, logits: Tensor, rows: Sequence[BatchRow], firsts: Sequence[int]) -> None:
        positions: list[int] = []
        banned: list[IntArray] = []
        for row, first in zip(rows, firsts, strict=True):
            if not row.banned_token_ids:
                continue
            ids = np.array([key for key in row.banned_token_ids if 0 <= key < self._vocab_size], dtype=np.int64)
            for offset in range(_num_banned_positions(row)):
                positions.append(first + offset)
                banned.append(ids)
        if positions:
            logits[_indices(positions, banned, logits.device)] = float("-inf")

    def _apply_masks(self, logits: Tensor, rows: Sequence[BatchRow], firsts: Sequence[int]) -> None:
        run: list[npt.NDArray[np.int32]] = []
        run_first = 0
        for row, first in zip(rows, firsts, strict=True):
            if row.mask is None and run:
                self._ops.disallow(logits, run_first, np.concatenate(run))
                run = []
            if row.mask is not None:
                run_first = run_first if run else first
                run.append(row.mask[: row.sampled_positions])
        if run:
            self._ops.disallow(logits, run_first, np.concatenate(run))


def _num_banned_positions(row: BatchRow) -> int:
    """How many of the row's sampled positions the ban holds for.

    Stop tokens are banned before min_tokens. Where accepted drafts reach min_tokens within the step, the
    positions behind are free, as they would be in plain decoding.
    """
    until_free = row.params.min_tokens - (row.end - row.num_drafts - row.num_prompt_tokens)
    return row.sampled_positions if until_free <= 0 else min(until_free, row.sampled_positions)


def _indices(positions: Sequence[int], ids: Sequence[IntArray], device: torch.device) -> tuple[Tensor, Tensor]:
    """(row, column) of every id of every position."""
    rows = np.repeat(np.array(positions, dtype=np.int64), [len(part) for part in ids])
    return torch.from_numpy(rows).to(device), torch.from_numpy(np.concatenate(ids)).to(device)
