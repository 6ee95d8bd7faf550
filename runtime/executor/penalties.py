"""Frequency, presence and repetition penalties: how often each token occurred, and what its logit loses.

Repetition first (CTRL, arXiv 1909.05858: a positive logit is divided, a negative one multiplied, once for any
token of prompt or output), then frequency and presence (OpenAI: ``logit - count * frequency - (count > 0) *
presence``, counts of the output alone).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ramet.runtime.executor.row_ops import LARGEST_LOGIT, IntArray
from ramet.runtime.scheduler.batch import BatchRow


class TokenCounts:
    """The distinct tokens of one request and how often each occurs in its output.

    Invariant: ids[:size] are distinct, counts[:size] belong to them, and places maps each id to its index.
    Only tokens that are new are looked at, so a step costs the tokens of that step.
    """

    def __init__(self, row: BatchRow, vocab_size: int) -> None:
        self.request_id = row.request_id
        self._vocab_size = vocab_size
        self._size = 0
        self._ids = np.empty(64, dtype=np.int64)
        self._counts = np.empty(64, dtype=np.int64)
        self._places: dict[int, int] = {}
        # Frequency and presence know the output only; the prompt would be dead weight in every step.
        if row.params.repetition_penalty != 1.0:
            for token_id in dict.fromkeys(row.history[: row.num_prompt_tokens]):
                self._add(token_id, 0)
        self.num_seen = row.num_prompt_tokens
        """Leading tokens of the history that are counted."""

    def extend(self, output: Sequence[int]) -> None:
        """Count committed output tokens that follow the ones seen."""
        for token_id in output:
            self._add(token_id, 1)
        self.num_seen += len(output)

    def after(self, drafts: Sequence[int]) -> tuple[IntArray, IntArray]:
        """(ids, output counts) as they are once ``drafts`` are accepted as well; changes nothing.

        Without drafts the arrays are views, valid until the next ``extend``.
        """
        ids, counts = self._ids[: self._size], self._counts[: self._size]
        if not drafts:
            return ids, counts
        counts = counts.copy()
        fresh: dict[int, int] = {}
        for token_id in drafts:
            place = self._places.get(token_id)
            if place is not None:
                counts[place] += 1
            elif 0 <= token_id < self._vocab_size:
                fresh[token_id] = fresh.get(token_id, 0) + 1
        return (
            np.concatenate((ids, np.array(list(fresh), dtype=np.int64))),
            np.concatenate((counts, np.array(list(fresh.values()), dtype=np.int64))),
        )

    def _add(self, token_id: int, count: int) -> None:
        place = self._places.get(token_id)
        if place is not None:
            self._counts[place] += count
        elif 0 <= token_id < self._vocab_size:
            if self._size == len(self._ids):
                self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.empty_like(self._counts)))
            self._places[token_id] = self._size
            self._ids[self._size], self._counts[self._size] = token_id, count
            self._size += 1


@dataclass(frozen=True, slots=True)
class PenaltyEdit:
    """What one sampled position subtracts and scales."""

    position: int
    """Row of the logits."""
    ids: IntArray
    counts: IntArray
    frequency: float
    presence: float
    repetition: float


class PenaltyStates:
    """TokenCounts of the requests that use penalties, one a slot.

    Invariant: a slot's counts belong to the request that holds the slot; ``forget`` is called when a slot
    changes hands.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._by_slot: dict[int, TokenCounts] = {}

    def forget(self, slot: int) -> None:
        self._by_slot.pop(slot, None)

    def edits(self, row: BatchRow, first_position: int) -> list[PenaltyEdit]:
        """One edit for each sampled position of a row that has penalties; position i sees the row's first i
        drafts.
        """
        counts = self._counts(row)
        params = row.params
        drafts = row.token_ids[len(row.token_ids) - row.num_drafts :]
        edits = []
        for offset in range(row.sampled_positions):
            ids, output_counts = counts.after(drafts[:offset])
            edits.append(
                PenaltyEdit(
                    position=first_position + offset,
                    ids=ids,
                    counts=output_counts,
                    frequency=params.frequency_penalty,
                    presence=params.presence_penalty,
                    repetition=params.repetition_penalty,
                )
            )
        return edits

    def _counts(self, row: BatchRow) -> TokenCounts:
        counts = self._by_slot.get(row.slot)
        known = row.end - row.num_drafts
        if counts is None or counts.request_id != row.request_id or counts.num_seen > known:
            counts = TokenCounts(row, self._vocab_size)
            self._by_slot[row.slot] = counts
        counts.extend(row.history[counts.num_seen : known])
        return counts


def apply_penalties(logits: Tensor, edits: Sequence[PenaltyEdit]) -> None:
    """Change ``logits`` [positions, vocab_size] fp32 in place; each logit's result depends on its own edit
    alone.
    """
    sizes = [len(edit.ids) for edit in edits]
    device = logits.device
    positions = torch.from_numpy(np.repeat(np.array([edit.position for edit in edits]), sizes)).to(device)
    ids = torch.from_numpy(np.concatenate([edit.ids for edit in edits])).to(device)
    scales = torch.from_numpy(np.repeat(np.array([edit.repetition for edit in edits]), sizes)).to(device)
    offsets = torch.from_numpy(
        np.concatenate([edit.counts * edit.frequency + (edit.counts > 0) * edit.presence for edit in edits])
    ).to(device)
    # float64: a repetition penalty near 0 is valid, and must not divide a logit into infinity.
    values = logits[positions, ids].double()
    values = torch.where(values > 0, values / scales, values * scales) - offsets
    logits[positions, ids] = values.clamp_(-LARGEST_LOGIT, LARGEST_LOGIT).float()
