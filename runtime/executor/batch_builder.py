"""Batch rows to the tensors of a step. NumPy does the index arithmetic, torch gets finished arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ramet.runtime.attention.base import AttentionBackend, AttentionMetadata
from ramet.runtime.forward import ForwardBatch, HostStaging, device_copy
from ramet.runtime.scheduler.batch import BatchRow

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PromptTargets:
    """Prompt positions of one row whose log probability is wanted: first..last, predicted from the tokens
    before.
    """

    row: int
    first: int
    last: int

    @property
    def count(self) -> int:
        return max(0, self.last - self.first + 1)


@dataclass(frozen=True, slots=True)
class BuiltBatch:
    """One step as the model reads it, and what its logits are for.

    Logits come first for every sampled position, row after row, then for the prompt targets, row after row, and
    last for each position of the rows' ``targets``, row after row. The states of the rows' ``pooled`` positions
    come behind those that logits are made of.
    """

    forward: ForwardBatch
    sampling_rows: list[int]
    num_sampled: int
    prompt_targets: list[PromptTargets]
    num_logits: int
    """Without the pooled positions."""

    @property
    def first_target(self) -> int:
        """Number of the logits of the first position of ``targets``."""
        return self.num_sampled + sum(targets.count for targets in self.prompt_targets)


class BatchBuilder:
    """Keeps the page table of the running requests and makes each step's ForwardBatch.

    Invariant: row s of the table holds the pages of the request in slot s as far as rows have named them.
    """

    def __init__(
        self,
        attention: AttentionBackend,
        *,
        max_running_requests: int,
        max_pages_per_request: int,
        page_size: int,
        device: torch.device,
    ) -> None:
        self._attention = attention
        self._page_size = page_size
        self._device = device
        self._staging = HostStaging.of(device)
        self._pages = np.zeros((max_running_requests, max_pages_per_request), dtype=np.int32)
        self._num_pages = np.zeros(max_running_requests, dtype=np.int64)

    def build(self, rows: Sequence[BatchRow]) -> BuiltBatch:
        """Take in the rows' new pages and lay the step out. rows: at least one.

        Raises:
            ValueError: a row has no page for one of its tokens, or a page beyond the table.
        """
        self._update_pages(rows)
        slots = np.array([row.slot for row in rows])
        starts = np.array([row.start for row in rows], dtype=np.int64)
        lens = [len(row.token_ids) for row in rows]
        ends = starts + lens
        num_pages = -(-ends // self._page_size)
        self._check_pages(rows, num_pages > self._num_pages[slots])
        plan = self._attention.plan(
            AttentionMetadata(
                query_lens=lens, kv_lens=ends.tolist(), page_table=self._pages[slots, : int(num_pages.max())]
            )
        )
        logit_indices, num_sampled, prompt_targets = _logit_indices(rows, lens)
        pooled = _pooled_indices(rows, lens)
        forward = ForwardBatch(
            input_ids=self._tensor(
                np.array([token for row in rows for token in row.token_ids], dtype=np.int64)
            ),
            positions=self._tensor(_positions(starts, lens)),
            attention=plan,
            logit_indices=self._tensor(np.concatenate((logit_indices, pooled))),
        )
        sampling_rows = [index for index, row in enumerate(rows) if row.samples]
        return BuiltBatch(forward, sampling_rows, num_sampled, prompt_targets, len(logit_indices))

    def _update_pages(self, rows: Sequence[BatchRow]) -> None:
        for row in rows:
            if row.new_pages:
                end = row.first_new_page + len(row.new_pages)
                if end > self._pages.shape[1]:
                    raise ValueError(
                        f"request {row.request_id!r} has {end} pages; the page table has room for "
                        f"{self._pages.shape[1]} of a request"
                    )
                self._pages[row.slot, row.first_new_page : end] = row.new_pages
                self._num_pages[row.slot] = end

    def _check_pages(self, rows: Sequence[BatchRow], lacking: npt.NDArray[np.bool_]) -> None:
        # A page that was not named for this request may be another's: its KV would be overwritten in silence.
        if lacking.any():
            row = rows[int(lacking.argmax())]
            raise ValueError(
                f"request {row.request_id!r} computes up to position {row.end - 1}, and has "
                f"{self._num_pages[row.slot]} pages of {self._page_size} tokens"
            )

    def _tensor(self, array: IntArray) -> torch.Tensor:
        return device_copy(array, self._device, self._staging)


def _positions(starts: IntArray, lens: Sequence[int]) -> IntArray:
    total = sum(lens)
    if total == len(lens):
        return starts
    before = np.cumsum(lens) - lens
    return np.arange(total) + np.repeat(starts - before, lens)


def _pooled_indices(rows: Sequence[BatchRow], lens: Sequence[int]) -> IntArray:
    """Numbers of the tokens whose hidden states are wanted, row after row."""
    before = np.cumsum(lens) - lens
    wanted = [
        np.arange(row.pooled.start, row.pooled.stop) + (first - row.start)
        for row, first in zip(rows, before, strict=True)
        if row.pooled
    ]
    return np.concatenate(wanted) if wanted else np.zeros(0, dtype=np.int64)


def _logit_indices(rows: Sequence[BatchRow], lens: Sequence[int]) -> tuple[IntArray, int, list[PromptTargets]]:
    """Which tokens' logits are wanted, how many of them are to be sampled, and what the others predict."""
    sampled: list[int] = []
    prompt: list[IntArray] = []
    behind: list[IntArray] = []
    prompt_targets: list[PromptTargets] = []
    before = 0
    for index, (row, length) in enumerate(zip(rows, lens, strict=True)):
        end = before + length
        sampled.extend(range(end - row.sampled_positions, end))
        if row.params.prompt_logprobs is not None:
            targets = PromptTargets(
                index,
                first=max(row.start + 1, row.params.prompt_logprobs_start, 1),
                last=min(row.end, row.num_prompt_tokens - 1),
            )
            prompt_targets.append(targets)
            if targets.count:
                # Position p is predicted from the token at p - 1, which is number p - 1 - start of the row.
                prompt.append(np.arange(targets.first, targets.last + 1) + (before - 1 - row.start))
        if row.targets.token_ids:
            behind.append(np.arange(row.targets.first, row.targets.end) + (before - row.start))
        before = end
    indices = np.concatenate((np.array(sampled, dtype=np.int64), *prompt, *behind))
    return indices, len(sampled), prompt_targets
