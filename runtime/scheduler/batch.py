"""ScheduledBatch: what one step computes, in Python ints, and what came of it.

A batch lives from one ``Scheduler.schedule()`` to the ``Scheduler.update()`` that follows it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.guide import RowMask
from ramet.runtime.protocol import RametError, SamplingParams, TokenLogprobs
from ramet.runtime.scheduler.pooling import States


@dataclass(frozen=True, slots=True)
class Targets:
    """Tokens whose log probabilities are wanted: ``token_ids[i]`` as what follows position ``first + i``."""

    first: int = 0
    token_ids: tuple[tuple[int, ...], ...] = ()

    @property
    def end(self) -> int:
        """The position behind the last one."""
        return self.first + len(self.token_ids)

    def within(self, start: int, end: int) -> "Targets":
        """Those of the positions start..end-1."""
        first = min(max(start, self.first), self.end)
        return Targets(first, self.token_ids[first - self.first : max(first, end) - self.first])


NO_TARGETS = Targets()


NO_POSITIONS = range(0)


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One request's part of a step: ``len(token_ids)`` tokens from position ``start`` on.

    A prefill chunk, a decode step and a verification of drafts differ only in their counts:
    ``sampled_positions`` is 0 for a chunk that does not reach the end of the known tokens, else
    1 + num_drafts (the last known token and each draft behind it).
    """

    request_id: str
    slot: int
    """Row of the executor's page table; a request keeps it while it runs. 0 <= slot < max_running_requests."""
    start: int
    """Position of token_ids[0]; positions 0..start-1 have their KV in the pages already."""
    token_ids: Sequence[int]
    first_new_page: int
    """new_pages are entries first_new_page.. of the request's page list; earlier ones are unchanged."""
    new_pages: Sequence[int]
    num_drafts: int
    """How many of the last token_ids are proposals to be verified."""
    samples: bool
    """False: a chunk of known tokens that ends before the last known one; nothing is sampled."""
    params: SamplingParams
    seed: int
    """64-bit; params.seed or the one drawn on arrival."""
    num_prompt_tokens: int
    history: Sequence[int]
    """All committed token ids, prompt and output (a live view: read it during the step only)."""
    banned_token_ids: tuple[int, ...] = ()
    """Tokens that may not be sampled in this step (the stop tokens before min_tokens)."""
    mask: npt.NDArray[np.int32] | None = None
    """[1 + num_drafts, ceil(vocab_size / 32)] grammar bitmask, 1 = allowed; None: unconstrained."""
    pending_mask: RowMask | None = None
    """The same while threads are still at it; ``with_mask`` puts it in its place."""
    targets: Targets = NO_TARGETS
    pooled: range = NO_POSITIONS
    """Prompt positions of the row whose hidden states are wanted."""
    """All of positions that this row computes."""

    @property
    def sampled_positions(self) -> int:
        return 1 + self.num_drafts if self.samples else 0

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """The rows of one step. Rows are independent of one another, save that a row may read pages that
    another row of the same step writes: KV of a layer is written for all rows before any row attends."""

    step_id: int
    rows: tuple[BatchRow, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


@dataclass(frozen=True, slots=True)
class RowResult:
    """What the executor computed for one row."""

    token_ids: list[int]
    """Sampled tokens: [] where nothing was sampled, else the accepted drafts and one more, 1..1+num_drafts."""
    logprobs: list[TokenLogprobs] | None = None
    """One per token of token_ids, where params.logprobs is set."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """Where params.prompt_logprobs is set: for each known prompt position p in (start, end] with
    prompt_logprobs_start <= p < num_prompt_tokens (and p >= 1), in order, predicted from position p-1."""
    error: str | None = None
    """This row alone failed (no token allowed, logits not finite); token_ids is empty."""
    is_late: bool = False
    """The row's masks were not there in time: nothing was sampled, and its last known token comes again."""
    target_logprobs: list[list[float]] | None = None
    """Where the row has targets: their natural-log probabilities in the model's own distribution, in order."""
    hidden_states: States | None = None
    """Where the row has pooled positions: one for each."""


class Executor(Protocol):
    """Turns a batch into tokens; one process on one device, or many ranks."""

    def run(self, batch: ScheduledBatch) -> list[RowResult]:
        """One result per row, in the rows' order. An exception fails every request of the batch."""
        ...


@runtime_checkable
class LaunchingExecutor(Executor, Protocol):
    """An Executor whose steps can be begun and waited for apart."""

    @property
    def runs_apart(self) -> bool:
        """Whether the caller can do something useful meanwhile: the step runs on a device of its own."""
        ...

    def launch(self, batch: ScheduledBatch) -> Callable[[], list[RowResult]]:
        """Begin a step; what is returned waits for it, and is called once, before the next launch. Either may
        raise what ``run`` raises."""
        ...


def with_mask(row: BatchRow, seconds: float) -> tuple[BatchRow, RowResult | None]:
    """The row as it is to be sampled, once the model has run; and its result where that is no sampling's:
    its masks are not there within ``seconds``, or the grammar failed."""
    pending = row.pending_mask
    if pending is None:
        return row, None
    row = replace(row, pending_mask=None)
    if not pending.wait(seconds):
        return row, RowResult([], is_late=True)
    try:
        return replace(row, mask=pending.rows()), None
    except RametError as error:
        return row, RowResult([], error=f"the grammar failed: {error}")
