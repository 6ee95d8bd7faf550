"""Where drafts come from: tokens that a step verifies beside the one that it would compute anyway."""

from collections.abc import Sequence
from typing import Protocol

from ramet.runtime.scheduler.request import Request


class DraftProposer(Protocol):
    """Guesses what comes next. A wrong guess costs computation, never a wrong token."""

    def propose(self, request: Request, ahead: Sequence[int]) -> Sequence[int]:
        """The tokens that may follow ``request.history`` and then ``ahead``, in order; may be empty, and is cut
        to what fits. ``ahead``: what the request's grammar forces."""
        ...

    def observe(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        """What became of the last proposal, as far as it was used."""
        ...

    def forget(self, request: Request) -> None:
        """The request has ended."""
        ...


def usable_drafts(request: Request, proposed: Sequence[int], limit: int, vocab_size: int) -> list[int]:
    """The leading drafts that can be verified in one row: ``limit`` at most, none beyond max_total_tokens, no
    token that would end the request (nothing can be sampled behind it), and, while stop tokens are banned, no
    position at which they are not banned any more."""
    num_known = len(request.history)
    limit = min(limit, request.max_total_tokens - num_known - 1)
    if request.num_output_tokens < request.params.min_tokens:
        limit = min(limit, request.params.min_tokens - request.num_output_tokens - 1)
    # A grammar ends with any of the model's stop tokens, also where they do not stop a free text.
    ends = request.stop_token_ids if request.guide is None else frozenset(request.banned_token_ids)
    drafts: list[int] = []
    for token_id in proposed[: max(0, limit)]:
        if token_id in ends or not 0 <= token_id < vocab_size:
            break
        drafts.append(token_id)
    return drafts
