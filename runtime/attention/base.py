"""What an attention backend is told of a step, and what it answers with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ramet.runtime.forward import AttentionPlan


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The rows of a step: row i's tokens follow row i - 1's in the flattened batch.

    Invariants: 1 <= query_lens[i] <= kv_lens[i]; page_table holds kv_lens[i] tokens' pages of row i; the slots
    that the rows' own tokens are written to are distinct.
    """

    query_lens: Sequence[int]
    """Tokens that the row computes in this step: its last ones."""
    kv_lens: Sequence[int]
    """Tokens whose KV the row has after this step, those of this step included."""
    page_table: npt.NDArray[np.int32]
    """[num_rows, at least the most pages of a row]: position p of row i is in page
    page_table[i, p // page_size], at offset p % page_size. What stands behind a row's last page is not read.
    It must not change while the plan is in use."""


class AttentionBackend(Protocol):
    """One way to compute paged attention; chosen once, when the engine starts."""

    def plan(self, metadata: AttentionMetadata) -> AttentionPlan:
        """The attention of one step, to be called once a layer. Rows may share pages, also pages that another
        row of the same step writes: the plan writes the KV of all rows before any row attends."""
        ...


@dataclass(frozen=True, slots=True)
class GraphSize:
    """What a graph of a decoding step is captured for; steps that are smaller are padded to it."""

    num_rows: int
    num_items: int
    """Programs of the attention, by KV head."""


class GraphBuffersLike(Protocol):
    """What the attention of captured decoding steps reads, at addresses that do not change."""

    def load(self, metadata: AttentionMetadata) -> GraphSize | None:
        """Take in a step of one token a row. None, with nothing changed, where it is too large for a graph or
        has rows of several tokens."""
        ...

    def plan(self, size: GraphSize) -> AttentionPlan:
        """The attention of what is loaded, now and whenever a graph that was captured with it is replayed.
        Tokens behind those that were loaded are padding: nothing is written for them."""
        ...


@runtime_checkable
class GraphableAttention(Protocol):
    """An AttentionBackend whose decoding steps can be captured in a graph."""

    def graph_buffers(self, max_rows: int, max_pages: int) -> GraphBuffersLike: ...


@runtime_checkable
class PlanOfStep(Protocol):
    """An AttentionPlan that still knows what it was made of."""

    @property
    def metadata(self) -> AttentionMetadata: ...
