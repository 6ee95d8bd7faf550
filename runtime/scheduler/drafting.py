"""Where drafts come from: tokens that a step verifies beside the one that it would compute anyway."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.backend import GrammarMatcher
from ramet.runtime.protocol import RametError
from ramet.runtime.scheduler.request import Request

Mask = npt.NDArray[np.int32]


class DraftProposer(Protocol):
    """Guesses what comes next. A wrong guess costs computation, never a wrong token."""

    def propose(self, request: Request) -> Sequence[int]:
        """The tokens that may follow ``request.history``, in order; may be empty, and is cut to what fits."""
        ...


def usable_drafts(request: Request, proposed: Sequence[int], limit: int, vocab_size: int) -> list[int]:
    """The leading drafts that can be verified in one row: ``limit`` at most, none beyond max_total_tokens, no
    token that would end the request (nothing can be sampled behind it), and, while stop tokens are banned, no
    position at which they are not banned any more."""
    num_known = len(request.history)
    limit = min(limit, request.max_total_tokens - num_known - 1)
    if request.num_output_tokens < request.params.min_tokens:
        limit = min(limit, request.params.min_tokens - request.num_output_tokens - 1)
    drafts: list[int] = []
    for token_id in proposed[: max(0, limit)]:
        if token_id in request.stop_token_ids or not 0 <= token_id < vocab_size:
            break
        drafts.append(token_id)
    return drafts


def constrain(matcher: GrammarMatcher, drafts: list[int], vocab_size: int) -> tuple[list[int], Mask]:
    """The leading drafts that the grammar allows, and one mask row for each sampled position: the last known
    token and each of these drafts. The matcher's state is as before.

    Raises:
        RametError: the grammar fails at the first position. If it fails at a draft, that one is not used.
    """
    mask = empty_mask(1 + len(drafts), vocab_size)
    matcher.fill_bitmask(mask[0])
    num_accepted = 0
    num_kept = 0
    try:
        for token_id in drafts:
            if not matcher.accept(token_id):
                break
            num_accepted += 1
            if matcher.is_terminated():
                break
            matcher.fill_bitmask(mask[num_accepted])
            num_kept = num_accepted
    except RametError:
        # It may never come to this position; if it does, the first mask row of that step tells.
        return drafts[:num_kept], mask[: 1 + num_kept]
    finally:
        if num_accepted:
            matcher.rollback(num_accepted)
    return drafts[:num_kept], mask[: 1 + num_kept]


def empty_mask(num_positions: int, vocab_size: int) -> Mask:
    """Mask rows that allow nothing."""
    return np.zeros((num_positions, -(-vocab_size // 32)), dtype=np.int32)
