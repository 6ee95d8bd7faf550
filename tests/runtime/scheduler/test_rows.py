"""Rows as the executor reads them: counts, pages, bans, drafts and masks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ramet.runtime.cache import PageAllocator, RadixCache
from ramet.runtime.protocol import RequestFailedError
from ramet.runtime.scheduler import Request
from ramet.runtime.scheduler.kv_pages import KVPages
from ramet.runtime.scheduler.rows import RowBuilder
from tests.runtime.scheduler.fakes import TurnMatcher, make_input

VOCAB_SIZE, EOS, PAGE_SIZE = 40, 7, 2


class FixedProposer:
    """Always the same guess."""

    def __init__(self, drafts: Sequence[int]) -> None:
        self.drafts = drafts

    def propose(self, request: Request) -> Sequence[int]:
        return self.drafts


class BrokenProposer:
    """Its grammar fails at a guess."""

    def propose(self, request: Request) -> Sequence[int]:
        raise RequestFailedError("out of fuel")


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
        self.pages = KVPages(RadixCache(PageAllocator(num_pages, PAGE_SIZE)), share=True)
        self.builder = RowBuilder(self.pages, VOCAB_SIZE, FixedProposer(drafts))
        source = make_input("a", [1, 2, 3, 4, 5], seed=9, **params)
        self.request = Request.from_input(source, arrival=0.0, matcher=matcher)
        self.request.history += outputs
        self.request.max_total_tokens = 100
        self.request.stop_token_ids = frozenset({EOS})
        self.request.banned_token_ids = (EOS,)
        self.request.slot = 3
        self.pages.attach(self.request)
        self.request.num_computed_tokens = computed
        assert self.pages.grow(self.request, len(self.request.history))


def test_a_chunk_of_the_prompt() -> None:
    rows = Rows([8, 9], computed=1, matcher=TurnMatcher(VOCAB_SIZE, EOS, length=9))
    row = rows.builder.build(rows.request, 3, draft_limit=4, page_reserve=0)
    assert (row.request_id, row.slot, row.seed) == ("a", 3, 9)
    assert (row.start, row.token_ids, row.end) == (1, [2, 3, 4], 4)
    # Nothing is sampled, so there is nothing to draft or to constrain.
    assert (row.samples, row.sampled_positions, row.num_drafts, row.mask) == (False, 0, 0, None)
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

    def test_a_proposer_that_fails_costs_the_drafts_only(self) -> None:
        rows = Rows(computed=4)
        builder = RowBuilder(rows.pages, VOCAB_SIZE, BrokenProposer())
        row = builder.build(rows.request, 1, draft_limit=4, page_reserve=0)
        assert (row.token_ids, row.samples, rows.request.failure) == ([5], True, None)


class TestMasks:
    def test_one_row_for_each_sampled_position(self) -> None:
        matcher = TurnMatcher(VOCAB_SIZE, EOS, length=9)
        rows = Rows([3, 4, 4], computed=4, matcher=matcher)
        row = rows.builder.build(rows.request, 1, draft_limit=9, page_reserve=0)
        assert row.token_ids == [5, 3, 4]  # the third draft is against the grammar
        assert row.mask is not None
        assert row.mask.shape == (row.sampled_positions, 2)
        expected = np.zeros((3, 2), dtype=np.int32)
        for place, token_id in enumerate((3, 4)):
            matcher.fill_bitmask(expected[place])
            assert matcher.accept(token_id)
        matcher.fill_bitmask(expected[2])
        np.testing.assert_array_equal(row.mask, expected)

    def test_the_matcher_is_left_as_it_was(self) -> None:
        matcher = TurnMatcher(VOCAB_SIZE, EOS, length=9)
        rows = Rows([3, 4], computed=4, matcher=matcher)
        rows.builder.build(rows.request, 1, draft_limit=9, page_reserve=0)
        assert matcher.accepted == []

    def test_a_grammar_that_fails_leaves_a_row_that_allows_nothing(self) -> None:
        """The row runs all the same, as later rows may read what it writes."""
        rows = Rows([3], computed=3, matcher=TurnMatcher(VOCAB_SIZE, EOS, length=9, breaks_at=0))
        row = rows.builder.build(rows.request, 2, draft_limit=9, page_reserve=0)
        assert (row.token_ids, row.num_drafts, row.samples) == ([4, 5], 0, True)
        assert row.mask is not None
        assert row.mask.shape == (1, 2)
        assert not row.mask.any()
        assert rows.request.failure == "the grammar failed: the grammar ran out of fuel"

    def test_without_a_grammar_there_is_none(self) -> None:
        rows = Rows([10], computed=4)
        assert rows.builder.build(rows.request, 1, draft_limit=4, page_reserve=0).mask is None
