"""Guide: one request's matcher, and what threads work out ahead of its next token.

As soon as a token is committed, a thread finds what the grammar forces next and fills the mask of the next
position; masks behind drafts are filled while the model computes them. So a mask costs a step nothing, and one
that is late, or never comes, is this request's trouble alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.backend import ForcedText, GrammarMatcher
from ramet.runtime.grammar.service import Job, JobThreads
from ramet.runtime.protocol import RametError, RequestFailedError

Mask = npt.NDArray[np.int32]

STUCK_SECONDS = 0.1
"""A thread that is at one mask for so long gets another beside it. A slow mask takes a few milliseconds."""
MAX_SPELLED_BYTES = 256
"""Of forced text that is drafted at a time."""
FIRST_SPELLED, MAX_SPELLED = 4, 64
"""Tokens of such drafts: fewer after one that was not sampled, more where all were."""
MAX_MISSPELLED = 3
"""Spellings in a row of which no token was right, after which a request's text is not spelled any more."""
DEAD_END = "the grammar allows no token here, and may not stop either"


@dataclass(frozen=True, slots=True)
class MaskWork:
    """Who fills masks, who is told when one is there (from the thread that filled it), and how forced text is
    spelled as a rule (called from those threads); None: only tokens that are forced themselves are drafted."""

    threads: JobThreads
    on_done: Callable[[], None] | None = None
    spell: Callable[[str], Sequence[int]] | None = None
    drafts_forced: bool = True
    """False: what the grammar forces is sampled token by token, as all else is."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What was worked out for the position behind the last committed token."""

    forced: list[int]
    is_spelled: bool
    """``forced`` is the likely spelling of text that is forced."""
    row: Mask


class RowMask:
    """The masks of one row of a step: its last known token, and each draft behind it."""

    def __init__(self, ahead: Job[_Ahead], behind: Job[Mask] | None) -> None:
        self._ahead = ahead
        self._behind = behind

    def wait(self, seconds: float) -> bool:
        """Whether they are there within so long."""
        return (self._behind or self._ahead).wait(seconds)

    def rows(self) -> Mask:
        """[1 + drafts, ceil(vocab_size / 32)]; only once there. Behind a draft that the grammar forbids nothing
        is allowed: that place is never reached.

        Raises:
            RametError: the grammar failed, or allows nothing at the first position.
        """
        first = self._ahead.result().row
        return first if self._behind is None else self._behind.result()


class Guide:
    """Wraps the matcher of one request.

    Invariant: the matcher is used by one thread at a time. While a job is at work it is the job's; otherwise it
    is the engine's thread's, which alone calls the methods here, and accepts tokens only once the row's masks
    are there.
    """

    def __init__(
        self,
        matcher: GrammarMatcher,
        vocab_size: int,
        work: MaskWork,
    ) -> None:
        self.matcher = matcher
        self._vocab_size = vocab_size
        self._threads = work.threads
        self._on_done = work.on_done
        self._drafts_forced = work.drafts_forced
        self._spell = work.spell if work.drafts_forced else None
        self._num_misspelled = 0
        self._spelled_length = FIRST_SPELLED
        self.is_late = False
        """The request sits out: its masks were not there in time, and still are not."""
        self._skips_drafts = False
        self._ahead: Job[_Ahead]
        self._behind: Job[Mask] | None
        self._begin()

    def forced(self, seconds: float) -> list[int] | None:
        """The tokens that must come next, or are likely to because their text must.

        None: no drafts are to be made, for that is not known within ``seconds``, the grammar has failed, or the
        masks of the last drafts were late."""
        if self._skips_drafts:
            self._skips_drafts = False
            return None
        if not self._ahead.wait(seconds):
            return None
        try:
            ahead = self._ahead.result()
        except RametError:
            return None
        return ahead.forced[: self._spelled_length] if ahead.is_spelled else ahead.forced

    def masks(self, drafts: Sequence[int]) -> RowMask:
        """Of a row with these drafts; there are none unless ``forced`` has just had an answer."""
        self._behind = None
        if drafts:
            first = self._ahead.result().row
            work = partial(_fill_behind, self.matcher, first, list(drafts), self._vocab_size)
            self._behind = self._threads.submit(work, self._on_done)
        return RowMask(self._ahead, self._behind)

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """How many of the forced tokens that were drafted were sampled too."""
        if not num_drafted or not self._ahead.result().is_spelled:
            return
        self._num_misspelled = 0 if num_accepted else self._num_misspelled + 1
        whole = num_accepted == num_drafted
        self._spelled_length = min(MAX_SPELLED, 2 * self._spelled_length) if whole else num_accepted + 1
        if self._num_misspelled >= MAX_MISSPELLED:
            # This model spells differently here: each draft would be computed for nothing.
            self._spell = None

    def advance(self) -> None:
        """The matcher has accepted what was committed: look ahead from there."""
        self._begin()

    def be_late(self) -> None:
        """The row's masks were not there when its logits were."""
        self.is_late = True
        self._skips_drafts = self._behind is not None

    def recheck(self) -> None:
        """See whether what was late has come."""
        job = self._slow_job()
        if job is None:
            self.is_late = False
        elif job.seconds_running() > STUCK_SECONDS:
            # Others' masks must not wait behind it; it still counts if it comes.
            self._threads.give_up(cast(Job[object], job))

    def seconds_overdue(self) -> float:
        """For how long a thread has been at the mask that is late; 0.0 where none is."""
        job = self._slow_job() if self.is_late else None
        return 0.0 if job is None else job.seconds_running()

    def seconds_waiting(self) -> float:
        """Since the mask that is late was asked for; 0.0 where none is."""
        job = self._slow_job() if self.is_late else None
        return 0.0 if job is None else job.seconds_since_submitted()

    def _begin(self) -> None:
        self._behind = None
        work = partial(_look_ahead, self.matcher, self._vocab_size, self._drafts_forced, self._spell)
        self._ahead = self._threads.submit(work, self._on_done)

    def _slow_job(self) -> Job[_Ahead] | Job[Mask] | None:
        if not self._ahead.is_done:
            return self._ahead
        return None if self._behind is None or self._behind.is_done else self._behind


def _look_ahead(
    matcher: GrammarMatcher,
    vocab_size: int,
    drafts_forced: bool,
    spell: Callable[[str], Sequence[int]] | None,
) -> _Ahead:
    forced = matcher.forced_tokens() if drafts_forced else []
    spelled: list[int] = []
    if spell is not None and isinstance(matcher, ForcedText):
        spelled = _spelled(matcher.forced_bytes(), spell)
    row = empty_mask(1, vocab_size)
    matcher.fill_bitmask(row[0])
    if not row.any():
        raise RequestFailedError(DEAD_END)
    is_spelled = len(spelled) > len(forced)
    return _Ahead(spelled if is_spelled else forced, is_spelled, row)


def _spelled(text: bytes, spell: Callable[[str], Sequence[int]]) -> list[int]:
    """A text's usual tokens. The last one is left out: it may be spelled together with what follows."""
    whole = text[:MAX_SPELLED_BYTES].decode(errors="ignore")
    return list(spell(whole))[:-1] if whole else []


def _fill_behind(matcher: GrammarMatcher, first: Mask, drafts: list[int], vocab_size: int) -> Mask:
    """The mask of the position ahead, and one behind each draft as far as the grammar goes along."""
    mask = empty_mask(1 + len(drafts), vocab_size)
    mask[0] = first[0]
    num_accepted = 0
    try:
        for token_id in drafts:
            if not matcher.accept(token_id):
                # Where the mask allows it all the same there is no room for it (see ClosingGrammar).
                mask[num_accepted, token_id // 32] &= ~np.left_shift(np.uint32(1), token_id % 32).view(np.int32)
                break
            num_accepted += 1
            if matcher.is_terminated():
                break
            matcher.fill_bitmask(mask[num_accepted])
    except RametError:
        # It may never come to this position; if it does, the first mask of that step tells.
        mask[num_accepted] = 0
    finally:
        if num_accepted:
            matcher.rollback(num_accepted)
    return mask


def empty_mask(num_positions: int, vocab_size: int) -> Mask:
    """Mask rows that allow nothing."""
    return np.zeros((num_positions, -(-vocab_size // 32)), dtype=np.int32)
