"""Batch rows for tests of the executor."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ramet.runtime.protocol import SamplingParams
from ramet.runtime.scheduler.batch import BatchRow


def decode_row(
    prompt: Sequence[int] = (1, 2, 3),
    output: Sequence[int] = (),
    drafts: Sequence[int] = (),
    *,
    seed: int = 0,
    slot: int = 0,
    request_id: str = "r",
    banned: tuple[int, ...] = (),
    mask: npt.NDArray[np.int32] | None = None,
    **params: Any,
) -> BatchRow:
    """A row that computes the last known token and ``drafts`` behind it, and samples."""
    history = [*prompt, *output]
    return BatchRow(
        request_id=request_id,
        slot=slot,
        start=len(history) - 1,
        token_ids=[history[-1], *drafts],
        first_new_page=1,
        new_pages=[],
        num_drafts=len(drafts),
        samples=True,
        params=SamplingParams(**params),
        seed=seed,
        num_prompt_tokens=len(prompt),
        history=history,
        banned_token_ids=banned,
        mask=mask,
    )


def bitmask(vocab_size: int, *allowed: Sequence[int]) -> npt.NDArray[np.int32]:
    """One mask row for each sequence of allowed ids."""
    mask = np.zeros((len(allowed), -(-vocab_size // 32)), dtype=np.int32)
    for row, ids in zip(mask, allowed, strict=True):
        for token_id in ids:
            row.view(np.uint32)[token_id // 32] |= np.uint32(1 << (token_id % 32))
    return mask
