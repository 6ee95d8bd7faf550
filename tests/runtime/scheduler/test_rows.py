"""Rows as the executor reads them: counts, pages, bans, drafts and masks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ramet.runtime.cache import PageAllocator, RadixCache
from ramet.runtime.grammar.guide import Guide, MaskWork
from ramet.runtime.grammar.service import JobThreads
from ramet.runtime.scheduler import BatchRow, Request, RowResult
from ramet.runtime.scheduler.batch import with_mask
from ramet.runtime.scheduler.kv_pages import KVPages
from ramet.runtime.scheduler.rows import RowBuilder
from ramet.runtime.scheduler.session_pins import SessionPins
from tests.runtime.scheduler.fakes import TurnMatcher, make_input

VOCAB_SIZE, EOS, PAGE_SIZE = 40, 7, 2


class FixedProposer:
    """Always the same guess."""

    def __init__(self, drafts: Sequence[int]) -> None:
        self.drafts = drafts
        self.ahead: list[list[int]] = []

    def propose(self, request: Request, ahead: Sequence[int]) -> Sequence[int]:
        self.ahead.append(list(ahead))
        return self.drafts

    def observe(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        raise AssertionError("no step was computed")

    def forget(self, request: Request) -> None:
        raise AssertionError("no request has ended")


class Rows:
    """A builder over a small pool, and one running request with its prompt computed up to ``computed``."""

    def __init__(
        self,
        drafts: Sequence[int] = (),
        *,
        computed: int = 0,
        outputs: Sequence[int] = (),
        num_pages: int = 8,
        matcher: TurnMatcher | None = None,
        **params: Any,
    ) -> None:
        cache = RadixCache(PageAllocator(num_pages, PAGE_SIZE))
        self.pages = KVPages(cache, SessionPins(cache, lambda: 0.0), share=True)
        self.proposer = FixedProposer(drafts)
        self.builder = RowBuilder(self.pages, VOCAB_SIZE, self.proposer)
        source = make_input("a", [1, 2, 3, 4, 5], seed=9, **params)
        self.request = Request.from_input(source, arrival=0.0, matcher=matcher)
        self.request.history += outputs
        self.request.max_total_tokens = 100
        self.request.stop_token_ids = frozenset({EOS})
        self.request.banned_token_ids = (EOS,)
        self.request.slot = 3
        if matcher is not None:
            self.request.guide = Guide(matcher, VOCAB_SIZE, MaskWork(JobThreads("mask", 0)))
        self.pages.attach(self.request)
        self.request.num_computed_tokens = computed
        assert self.pages.grow(self.request, len(self.request.history))


def test_a_chunk_of_the_prompt() -> None:
    rows = Rows([8, 9], computed=1, matcher=TurnMatcher(VOCAB_SIZE, EOS, length=9))
    row = rows.builder.build(rows.request, 3, draft_limit=4, page_reserve=0)
    assert (row.request_id, row.slot, row.seed) == ("a", 3, 9)
    assert (row.start, row.token_ids, row.end) == (1, [2, 3, 4], 4)
    # Nothing is sampled, so there is nothing to draft or to constrain.
    assert (row.samples, row.sampled_positions, row.num_drafts, row.pending_mask) == (False, 0, 0, None)
    assert (row.num_prompt_tokens, row.params) == (5, rows.request.params)
    assert row.history is rows.request.history


def test_the_last_known_token_is_sampled_from() -> None:
    rows = Rows(computed=3)
    row = rows.builder.build(rows.request, 2, draft_limit=0, page_reserve=0)
    assert (row.token_ids, row.samples, row.sampled_positions) == ([4, 5], True, 1)
    decode = Rows(computed=6, outputs=[10, 11])
    row = decode.builder.build(decode.request, 1, draft_limit=4, page_reserve=0)
    assert (row.start, row.token_ids, row.sampled_positions) == (6, [11], 1)


def test_each_page_is_sent_once() -> None:
    rows = Rows(computed=0)
    pages = rows.request.pages[:]
    row = rows.builder.build(rows.request, 2, draft_limit=0, page_reserve=0)
    assert (row.first_new_page, row.new_pages) == (0, pages)
    rows.request.num_computed_tokens = 2
    assert rows.pages.grow(rows.request, 7)
    row = rows.builder.build(rows.request, 2, draft_limit=0, page_reserve=0)
    assert (row.first_new_page, row.new_pages) == (3, rows.request.pages[3:])
    assert len(row.new_pages) == 1
    row = rows.builder.build(rows.request, 2, draft_limit=0, page_reserve=0)
    assert (row.first_new_page, row.new_pages) == (4, [])
    assert rows.request.num_sent_pages == 4


def test_stop_tokens_are_banned_before_min_tokens_only() -> None:
    for num_outputs, banned in ((0, (EOS,)), (1, (EOS,)), (2, ())):
        rows = Rows(computed=4 + num_outputs, outputs=[9] * num_outputs, min_tokens=2)
        row = rows.builder.build(rows.request, 1, draft_limit=0, page_reserve=0)
        assert row.banned_token_ids == banned


class TestDrafts:
    def test_they_follow_the_last_known_token_and_get_pages(self) -> None:
        rows = Rows([10, 11, 12, 13], computed=4)
        row = rows.builder.build(rows.request, 1, draft_limit=3, page_reserve=0)
        assert (row.token_ids, row.num_drafts, row.sampled_positions) == ([5, 10, 11, 12], 3, 4)
        assert len(rows.request.pages) * PAGE_SIZE >= row.end == 8
        assert list(row.new_pages) == rows.request.pages
        assert rows.request.history == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize(("reserve", "num_drafts"), [(0, 5), (1, 3), (2, 1), (3, 1), (99, 1)])
    def test_pages_in_reserve_are_left(self, reserve: int, num_drafts: int) -> None:
        """The prompt's last page has room for one more token whatever is in reserve."""
        rows = Rows([10] * 9, computed=4, num_pages=5)
        row = rows.builder.build(rows.request, 1, draft_limit=9, page_reserve=reserve)
        assert row.num_drafts == num_drafts
        assert rows.pages.num_available >= min(reserve, 2)

    def test_without_room_there_are_none(self) -> None:
        rows = Rows([10], computed=5, outputs=[9], num_pages=3)
        row = rows.builder.build(rows.request, 1, draft_limit=9, page_reserve=0)
        assert (row.token_ids, row.num_drafts) == ([9], 0)

    def test_a_limit_of_0_or_no_proposer(self) -> None:
        rows = Rows([10], computed=4)
        assert rows.builder.build(rows.request, 1, draft_limit=0, page_reserve=0).num_drafts == 0
        plain = RowBuilder(rows.pages, VOCAB_SIZE, None)
        assert plain.build(rows.request, 1, draft_limit=4, page_reserve=0).num_drafts == 0

    @pytest.mark.parametrize("wrong", [EOS, -1, VOCAB_SIZE])
    def test_they_end_before_what_cannot_be_verified(self, wrong: int) -> None:
        rows = Rows([10, wrong, 11], computed=4)
        assert rows.builder.build(rows.request, 1, draft_limit=4, page_reserve=0).token_ids == [5, 10]

    def test_what_the_grammar_forces_comes_first(self) -> None:
        rows = Rows([3, 4], computed=4, matcher=TurnMatcher(VOCAB_SIZE, 9, length=0))
        row = rows.builder.build(rows.request, 1, draft_limit=2, page_reserve=0)
        assert (row.token_ids, rows.request.num_forced_drafts) == ([5, 9, 3], 1)
        assert rows.proposer.ahead == [[9]]
        row = rows.builder.build(rows.request, 1, draft_limit=1, page_reserve=0)
        assert (row.token_ids, rows.request.num_forced_drafts) == ([5, 9], 1)
        assert rows.proposer.ahead == [[9]], "there was no room for more"
        row = rows.builder.build(rows.request, 1, draft_limit=0, page_reserve=0)
        assert (row.token_ids, rows.request.num_forced_drafts) == ([5], 0)


def mask_of(row: BatchRow) -> npt.NDArray[np.int32]:
    assert row.mask is None
    masked, instead = with_mask(row, 0.0)
    assert (masked.pending_mask, instead) == (None, None)
    assert masked.mask is not None
    return masked.mask


class TestMasks:
    def test_one_row_for_each_sampled_position(self) -> None:
        matcher = TurnMatcher(VOCAB_SIZE, EOS, length=9)
        rows = Rows([3, 4, 4, 8], computed=4, matcher=matcher)
        row = rows.builder.build(rows.request, 1, draft_limit=9, page_reserve=0)
        assert row.token_ids == [5, 3, 4, 4, 8]
        expected = np.zeros((5, 2), dtype=np.int32)
        for place, token_id in enumerate((3, 4)):
            matcher.fill_bitmask(expected[place])
            assert matcher.accept(token_id)
        matcher.fill_bitmask(expected[2])
        # The third draft is against the grammar: nothing is sampled behind it.
        np.testing.assert_array_equal(mask_of(row), expected)

    def test_the_matcher_is_left_as_it_was(self) -> None:
        matcher = TurnMatcher(VOCAB_SIZE, EOS, length=9)
        rows = Rows([3, 4], computed=4, matcher=matcher)
        rows.builder.build(rows.request, 1, draft_limit=9, page_reserve=0)
        assert matcher.accepted == []

    def test_a_grammar_that_fails_is_the_rows_result(self) -> None:
        """The row runs all the same, as later rows may read what it writes."""
        rows = Rows([3], computed=3, matcher=TurnMatcher(VOCAB_SIZE, EOS, length=9, breaks_at=0))
        row = rows.builder.build(rows.request, 2, draft_limit=9, page_reserve=0)
        assert (row.token_ids, row.num_drafts, row.samples) == ([4, 5], 0, True)
        _, instead = with_mask(row, 0.0)
        assert instead == RowResult([], error="the grammar failed: the grammar ran out of fuel")

    def test_without_a_grammar_there_is_none(self) -> None:
        rows = Rows([10], computed=4)
        assert rows.builder.build(rows.request, 1, draft_limit=4, page_reserve=0).pending_mask is None
