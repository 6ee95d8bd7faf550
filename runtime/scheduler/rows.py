"""RowBuilder: one request's part of a step, as the executor reads it."""

from ramet.runtime.grammar.guide import RowMask
from ramet.runtime.scheduler.batch import NO_POSITIONS, BatchRow
from ramet.runtime.scheduler.drafting import DraftProposer, usable_drafts
from ramet.runtime.scheduler.kv_pages import KVPages
from ramet.runtime.scheduler.request import Request

FORCED_SECONDS = 0.001
"""How long a step waits for what a request's grammar forces next; a few tens of microseconds are the rule, and
it was begun when the last token was committed."""


class RowBuilder:
    """Makes rows of requests that have their pages already; only pages for drafts are got here."""

    def __init__(self, pages: KVPages, vocab_size: int, proposer: DraftProposer | None) -> None:
        self._pages = pages
        self._vocab_size = vocab_size
        self._proposer = proposer

    def build(
        self,
        request: Request,
        num_tokens: int,
        draft_limit: int,
        page_reserve: int,
        guess_limit: int | None = None,
    ) -> BatchRow:
        """The next ``num_tokens`` of the history, and at most ``draft_limit`` drafts behind them if they are
        the last ones, of which ``guess_limit`` (None: all) may be other than forced. Drafts leave
        ``page_reserve`` pages available, so that nobody is preempted for them."""
        start = request.num_computed_tokens
        history = request.history
        end = start + num_tokens
        samples = end == len(history)
        drafts: list[int] = []
        request.num_forced_drafts = 0
        pending_mask: RowMask | None = None
        if samples:
            if draft_limit > 0:
                guess_limit = draft_limit if guess_limit is None else min(guess_limit, draft_limit)
                drafts = self._drafts(request, draft_limit, guess_limit, page_reserve)
            if request.guide is not None:
                pending_mask = request.guide.masks(drafts)
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
            pending_mask=pending_mask,
            targets=request.targets.within(start, end),
            pooled=NO_POSITIONS if request.pooled is None else request.pooled.within(start, end),
        )

    def _drafts(self, request: Request, limit: int, guess_limit: int, page_reserve: int) -> list[int]:
        forced = [] if request.guide is None else request.guide.forced(FORCED_SECONDS)
        if forced is None:
            return []
        proposed = forced
        if self._proposer is not None and guess_limit > 0 and len(forced) < limit:
            proposed = [*forced, *self._proposer.propose(request, forced)[:guess_limit]]
        drafts = usable_drafts(request, proposed, limit, self._vocab_size)
        num_known = len(request.history)
        if drafts:
            room = self._pages.capacity(request, page_reserve) - num_known
            drafts = drafts[: max(0, room)]
            has_pages = self._pages.grow(request, num_known + len(drafts))
            assert has_pages
        request.num_forced_drafts = min(len(forced), len(drafts))
        return drafts
