"""RowBuilder: one request's part of a step, as the executor reads it."""

from ramet.runtime.protocol import RametError
from ramet.runtime.scheduler.batch import BatchRow
from ramet.runtime.scheduler.drafting import DraftProposer, Mask, constrain, empty_mask, usable_drafts
from ramet.runtime.scheduler.kv_pages import KVPages
from ramet.runtime.scheduler.request import Request


class RowBuilder:
    """Makes rows of requests that have their pages already; only pages for drafts are got here."""

    def __init__(self, pages: KVPages, vocab_size: int, proposer: DraftProposer | None) -> None:
        self._pages = pages
        self._vocab_size = vocab_size
        self._proposer = proposer

    def build(self, request: Request, num_tokens: int, draft_limit: int, page_reserve: int) -> BatchRow:
        """The next ``num_tokens`` of the history, and at most ``draft_limit`` drafts behind them if they are
        the last ones. Drafts leave ``page_reserve`` pages available, so that nobody is preempted for them."""
        start = request.num_computed_tokens
        history = request.history
        end = start + num_tokens
        samples = end == len(history)
        drafts: list[int] = []
        mask: Mask | None = None
        if samples:
            if draft_limit > 0 and self._proposer is not None:
                drafts = self._drafts(request, self._proposer, draft_limit, page_reserve)
            if request.matcher is not None:
                drafts, mask = self._constrain(request, drafts)
        is_banned = request.num_output_tokens < request.params.min_tokens
        first_new_page = request.num_sent_pages
        request.num_sent_pages = len(request.pages)
        return BatchRow(
            request_id=request.request_id,
            slot=request.slot,
            start=start,
            token_ids=history[start:end] + drafts,
            first_new_page=first_new_page,
            new_pages=request.pages[first_new_page:],
            num_drafts=len(drafts),
            samples=samples,
            params=request.params,
            seed=request.seed,
            num_prompt_tokens=request.num_prompt_tokens,
            history=history,
            banned_token_ids=request.banned_token_ids if is_banned else (),
            mask=mask,
        )

    def _drafts(self, request: Request, proposer: DraftProposer, limit: int, page_reserve: int) -> list[int]:
        try:
            proposed = proposer.propose(request)
        except RametError:
            # Its grammar failed at a guess; if it fails at the next token too, the mask says so.
            return []
        drafts = usable_drafts(request, proposed, limit, self._vocab_size)
        num_known = len(request.history)
        if drafts:
            room = self._pages.capacity(request, page_reserve) - num_known
            drafts = drafts[: max(0, room)]
            has_pages = self._pages.grow(request, num_known + len(drafts))
            assert has_pages
        return drafts

    def _constrain(self, request: Request, drafts: list[int]) -> tuple[list[int], Mask]:
        assert request.matcher is not None
        try:
            return constrain(request.matcher, drafts, self._vocab_size)
        except RametError as error:
            # The row runs, as later rows may read what it writes; it ends when the step is over.
            request.failure = f"the grammar failed: {error}"
            return [], empty_mask(1, self._vocab_size)
