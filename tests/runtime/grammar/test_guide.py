"""Masks and forced tokens, worked out by threads ahead of the engine's."""

import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from ramet.runtime.grammar.choice import ChoiceBackend, ChoiceMatcher
from ramet.runtime.grammar.guide import DEAD_END, Guide, MaskWork
from ramet.runtime.grammar.service import JobThreads
from ramet.runtime.protocol import Choice, RequestFailedError
from tests.runtime.grammar.fakes import ListVocabulary, allowed_ids
from tests.runtime.grammar.service.test_job_threads import LIMIT, until

VOCABULARY = ListVocabulary([b"a", b"b", b"c", None], [3])
INLINE = MaskWork(JobThreads("mask", 0))


def choice(*options: str) -> ChoiceMatcher:
    return ChoiceBackend(VOCABULARY).compile(Choice(options)).matcher()


class SlowMatcher(ChoiceMatcher):
    """Its masks wait until they are let go."""

    def __init__(self, *options: str) -> None:
        super().__init__(choice(*options)._compiled, list(choice(*options)._path))
        self.let_go = threading.Event()
        self.num_fills = 0

    def fill_bitmask(self, row: npt.NDArray[np.int32]) -> None:
        assert self.let_go.wait(LIMIT)
        self.num_fills += 1
        super().fill_bitmask(row)


class FailingMatcher(ChoiceMatcher):
    """Fails at every mask from the given place on; ``empty``: or allows nothing there."""

    def __init__(self, place: int, *, empty: bool = False) -> None:
        super().__init__(choice("abc")._compiled, list(choice("abc")._path))
        self.place = place
        self.empty = empty

    def fill_bitmask(self, row: npt.NDArray[np.int32]) -> None:
        if len(self._path) - 1 < self.place:
            super().fill_bitmask(row)
        elif self.empty:
            row.fill(0)
        else:
            raise RequestFailedError("out of fuel")


def masks_of(guide: Guide, *drafts: int) -> list[list[int]]:
    mask = guide.masks(drafts)
    assert mask.wait(LIMIT)
    return [allowed_ids(row, VOCABULARY.vocab_size) for row in mask.rows()]


@pytest.fixture(params=[0, 2])
def work(request: pytest.FixtureRequest) -> Iterator[MaskWork]:
    threads = JobThreads("mask", request.param)
    yield MaskWork(threads)
    threads.close()


def test_a_mask_a_position_and_the_matcher_stays_where_it_was(work: MaskWork) -> None:
    guide = Guide(choice("abc", "acb"), 4, work)
    assert guide.forced(LIMIT) == [0]
    assert masks_of(guide) == [[0]]
    assert masks_of(guide, 0, 1, 2) == [[0], [1, 2], [2], [3]]
    assert masks_of(guide, 0) == [[0], [1, 2]]
    assert guide.matcher.accept(0)
    guide.advance()
    assert guide.forced(LIMIT) == []
    assert masks_of(guide, 2, 1, 3) == [[1, 2], [1], [3], []]


def test_behind_a_draft_that_is_forbidden_nothing_is_allowed(work: MaskWork) -> None:
    guide = Guide(choice("abc"), 4, work)
    assert guide.forced(LIMIT) == [0, 1, 2, 3]
    assert masks_of(guide, 0, 0, 1) == [[0], [1], [], []]
    assert guide.matcher.accept(0)


def test_a_grammar_that_fails_says_so_at_its_first_position_only(work: MaskWork) -> None:
    guide = Guide(FailingMatcher(1), 4, work)
    assert guide.forced(LIMIT) == [0, 1, 2, 3]
    assert masks_of(guide, 0, 1) == [[0], [], []]
    assert guide.matcher.accept(0)
    guide.advance()
    assert guide.forced(LIMIT) is None
    mask = guide.masks([])
    assert mask.wait(LIMIT)
    with pytest.raises(RequestFailedError, match="out of fuel"):
        mask.rows()


def test_a_mask_that_allows_nothing_is_an_error_with_a_name(work: MaskWork) -> None:
    guide = Guide(FailingMatcher(0, empty=True), 4, work)
    mask = guide.masks([])
    assert mask.wait(LIMIT)
    with pytest.raises(RequestFailedError, match=DEAD_END):
        mask.rows()


def test_a_late_mask_holds_the_request_until_it_is_there() -> None:
    work = MaskWork(JobThreads("mask", 1))
    matcher = SlowMatcher("abc")
    guide = Guide(matcher, 4, work)
    until(lambda: guide._ahead.started is not None)
    assert guide.forced(0.0) is None
    mask = guide.masks([])
    assert not mask.wait(0.0)
    guide.be_late()
    until(lambda: guide.recheck() is None and work.threads.num_stuck == 1)  # type: ignore[func-returns-value]
    assert guide.is_late
    assert guide.seconds_overdue() > 0.0
    assert guide.seconds_waiting() > 0.0
    other = Guide(choice("b"), 4, work)
    assert masks_of(other) == [[1]], "it does not hold others"
    matcher.let_go.set()
    assert mask.wait(LIMIT)
    guide.recheck()
    assert (guide.is_late, guide.seconds_overdue(), guide.seconds_waiting()) == (False, 0.0, 0.0)
    assert masks_of(guide) == [[0]]
    assert matcher.num_fills == 1
    work.threads.close()


def test_after_late_masks_of_drafts_one_step_goes_without_drafts() -> None:
    work = MaskWork(JobThreads("mask", 1))
    matcher = SlowMatcher("abc")
    matcher.let_go.set()
    guide = Guide(matcher, 4, work)
    assert guide.forced(LIMIT) == [0, 1, 2, 3]
    matcher.let_go.clear()
    mask = guide.masks([0, 1])
    assert not mask.wait(0.0)
    guide.be_late()
    guide.recheck()
    assert guide.is_late
    matcher.let_go.set()
    assert mask.wait(LIMIT)
    guide.recheck()
    assert guide.seconds_waiting() == 0.0
    assert guide.forced(LIMIT) is None
    assert masks_of(guide) == [[0]]
    assert guide.forced(LIMIT) == [0, 1, 2, 3]
    work.threads.close()


def test_whoever_waits_is_told() -> None:
    told = threading.Event()
    work = MaskWork(JobThreads("mask", 1), told.set)
    Guide(choice("a"), 4, work)
    assert told.wait(LIMIT)
    work.threads.close()


def spelled_guide(*options: str, drafts: tuple[int, ...] = ()) -> Guide:
    """Over a vocabulary in which every text has several spellings; single letters are taken for the usual."""
    vocabulary = ListVocabulary([b"a", b"b", b"c", b"ab", b"bc", b"abc", None], [6])
    matcher = ChoiceBackend(vocabulary).compile(Choice(options)).matcher()
    letters = {"a": 0, "b": 1, "c": 2}
    work = MaskWork(INLINE.threads, spell=lambda text: [letters[letter] for letter in text])
    return Guide(matcher, 7, work)


def test_the_usual_spelling_of_forced_text_is_drafted_save_its_last_token() -> None:
    guide = spelled_guide("abcab", "abcac")
    assert guide.matcher.forced_tokens() == []
    assert guide.forced(LIMIT) == [0, 1, 2]
    mask = guide.masks([0, 1, 2])
    assert [allowed_ids(row, 7) for row in mask.rows()] == [[0, 3, 5], [1, 4], [2], [0, 3]]
    assert guide.matcher.accept(5)
    guide.advance()
    assert guide.forced(LIMIT) == []


def test_spelled_drafts_grow_while_they_are_right_and_stop_while_they_are_wrong() -> None:
    guide = spelled_guide("abc" * 40)
    lengths = []
    for _ in range(4):
        forced = guide.forced(LIMIT)
        assert forced is not None
        lengths.append(len(forced))
        guide.observe(len(forced), len(forced))
    assert lengths == [4, 8, 16, 32]
    guide.observe(32, 2)
    assert guide.forced(LIMIT) == [0, 1, 2]
    for _ in range(3):
        guide.observe(3, 0)
    assert guide.forced(LIMIT) == [0]
    guide.advance()
    assert guide.forced(LIMIT) == []


def test_tokens_that_are_forced_themselves_do_not_depend_on_their_record() -> None:
    guide = Guide(choice("abcabcabc"), 4, INLINE)
    for _ in range(5):
        guide.observe(9, 0)
    assert guide.forced(LIMIT) == [0, 1, 2, 0, 1, 2, 0, 1, 2, 3]


def test_drafts_can_be_left_out() -> None:
    work = MaskWork(INLINE.threads, spell=lambda text: [0] * len(text), drafts_forced=False)
    guide = Guide(choice("abc"), 4, work)
    assert guide.forced(LIMIT) == []
    assert masks_of(guide) == [[0]]
