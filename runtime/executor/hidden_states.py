"""The hidden states of pooled positions, from a step's tensor to the rows that want them."""

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ramet.runtime.executor.sampler import NOT_FINITE
from ramet.runtime.scheduler.batch import BatchRow, RowResult

NO_STATES = "the model gives no hidden states, and so no embeddings"


def with_hidden_states(
    rows: Sequence[BatchRow], states: Tensor | None, results: list[RowResult]
) -> list[RowResult]:
    """``states``: [number of all pooled positions, hidden_size], row after row; None: the model gives none, and
    the rows that want some fail."""
    if not any(row.pooled for row in rows):
        return results
    known = None if states is None else states.float().cpu().numpy()
    results = list(results)
    first = 0
    for index, row in enumerate(rows):
        if not row.pooled or results[index].error is not None:
            first += len(row.pooled)
            continue
        if known is None:
            results[index] = RowResult([], error=NO_STATES)
            continue
        own = known[first : first + len(row.pooled)]
        first += len(row.pooled)
        # Its sum, so that one array is looked at instead of one a position.
        if not math.isfinite(float(own.sum())):
            results[index] = RowResult([], error=NOT_FINITE)
        else:
            results[index] = replace(results[index], hidden_states=own)
    return results
