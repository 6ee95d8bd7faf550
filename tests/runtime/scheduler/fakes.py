"""An executor without a model, a clock that stands still, and the fakes around them.

The executor keeps what a KV pool would hold, slot by slot, and checks at every read that what is there is what
the reader's prefix needs. Its tokens are a function of the history, so what a request answers can be worked out
for it alone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import numpy.typing as npt

from ramet.runtime.protocol import (
    FinishReason,
    GenerateInput,
    Logprob,
    RequestFailedError,
    SamplingParams,
    TokenLogprobs,
)
from ramet.runtime.scheduler import BatchRow, Request, RowResult, ScheduledBatch, SchedulerConfig
from ramet.runtime.scheduler.batch import with_mask

START = 0x9E3779B97F4A7C15


class FakeClock:
    """Time moves by ``advance`` only."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def mix(state: int, token_id: int) -> int:
    """The state behind a prefix and one more token: what stands for the KV of that position."""
    state = ((state ^ (token_id + 1)) * 0xD6E8FEB86659FD93) % 2**64
    return state ^ state >> 32


def chain(token_ids: Sequence[int]) -> list[int]:
    states, state = [], START
    for token_id in token_ids:
        state = mix(state, token_id)
        states.append(state)
    return states


def choose(
    state: int,
    vocab_size: int,
    banned: Collection[int] = (),
    mask: npt.NDArray[np.int32] | None = None,
) -> int | None:
    """The token that follows: the first allowed one from a place that the state gives; None where none is."""
    first = (state >> 7) % vocab_size
    for offset in range(vocab_size):
        token_id = (first + offset) % vocab_size
        allowed = mask is None or bool(int(mask[token_id // 32]) >> (token_id % 32) & 1)
        if allowed and token_id not in banned:
            return token_id
    return None


def logprob_of(state: int, token_id: int) -> TokenLogprobs:
    return TokenLogprobs(Logprob(token_id, -(state % 997) / 100, 0))


def states_of(states: Sequence[int]) -> npt.NDArray[np.float32] | None:
    """[number of states, 2] hidden states; None: there are none."""
    return (
        np.array([[state % 1009, 1e-3 * (state % 7)] for state in states], dtype=np.float32) if states else None
    )


class StepFailed(Exception):
    """The device gave up in the middle of a step."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """What a slot of the KV pool holds. ``broken``: numbers that are not finite."""

    salt: str
    state: int
    broken: bool = False


class FakeExecutor:
    """Runs batches as a model runner does: a page table by slot, writes of all rows first, then reads."""

    def __init__(self, config: SchedulerConfig, salts: Mapping[str, str] | None = None) -> None:
        self.page_size = config.page_size
        self.vocab_size = config.vocab_size
        self.context_length = config.context_length
        self.salts: Mapping[str, str] = {} if salts is None else salts
        self.tables: list[list[int]] = [[] for _ in range(config.max_running_requests)]
        self.owners = [""] * config.max_running_requests
        self.cells: list[_Cell | None] = [None] * config.num_slots
        self.states: dict[str, list[int]] = {}
        self.num_computed: dict[str, int] = {}
        """Tokens computed for each request, drafts included."""
        self.fails = False
        """The next step raises, after it has written rubbish."""
        self.lateness: Random | None = None
        """Draws which masks are late: a third of them."""
        self.num_late = 0
        self.broken: set[str] = set()
        """Requests whose rows write numbers that are not finite."""

    def run(self, batch: ScheduledBatch) -> list[RowResult]:
        slots = [self._take_pages(row) for row in batch.rows]
        self._check_writes(batch, slots)
        if self.fails:
            self.fails = False
            for row, row_slots in zip(batch.rows, slots, strict=True):
                for slot in row_slots[row.start :]:
                    self.cells[slot] = _Cell("rubbish", 0)
            raise StepFailed("the device is on fire")
        states = [self._write(row, row_slots) for row, row_slots in zip(batch.rows, slots, strict=True)]
        return [self._result(*each) for each in zip(batch.rows, slots, states, strict=True)]

    def _result(self, row: BatchRow, slots: list[int], states: list[int]) -> RowResult:
        is_late = row.pending_mask is not None and self.lateness is not None and self.lateness.random() < 0.33
        row, instead = with_mask(row, 0.0)
        if is_late:
            self.num_late += 1
            instead = RowResult([], is_late=True)
        result = self._row(row, slots, states)
        if instead is None or result.error is not None:
            return result
        return replace(
            instead,
            prompt_logprobs=result.prompt_logprobs,
            target_logprobs=result.target_logprobs,
            hidden_states=result.hidden_states,
        )

    def _take_pages(self, row: BatchRow) -> list[int]:
        """The KV slot of each position up to the row's end."""
        table = self.tables[row.slot]
        if self.owners[row.slot] != row.request_id:
            assert row.first_new_page == 0, "a new owner of a slot must name all of its pages"
            self.owners[row.slot] = row.request_id
            table.clear()
        assert row.first_new_page <= len(table)
        assert row.end <= self.context_length
        table[row.first_new_page :] = row.new_pages or table[row.first_new_page :]
        assert row.end <= len(table) * self.page_size, "a position has no page"
        size = self.page_size
        return [table[position // size] * size + position % size for position in range(row.end)]

    def _check_writes(self, batch: ScheduledBatch, slots: list[list[int]]) -> None:
        written = [slot for row, ids in zip(batch.rows, slots, strict=True) for slot in ids[row.start :]]
        assert len(set(written)) == len(written), "two rows write the same slot"
        assert len({row.slot for row in batch.rows}) == len(batch.rows)

    def _write(self, row: BatchRow, slots: list[int]) -> list[int]:
        num_known = len(row.token_ids) - row.num_drafts
        assert list(row.token_ids[:num_known]) == list(row.history[row.start : row.start + num_known])
        assert row.samples == (row.start + num_known == len(row.history))
        known = self.states.setdefault(row.request_id, [])
        for token_id in row.history[len(known) : row.start + num_known]:
            known.append(mix(known[-1] if known else START, token_id))
        states = known[: row.start + num_known]
        for token_id in row.token_ids[num_known:]:
            states.append(mix(states[-1], token_id))
        salt = self.salts.get(row.request_id, "")
        for position in range(row.start, row.end):
            self.cells[slots[position]] = _Cell(salt, states[position])
        self.num_computed[row.request_id] = self.num_computed.get(row.request_id, 0) + len(row.token_ids)
        return states

    def _row(self, row: BatchRow, slots: list[int], states: list[int]) -> RowResult:
        salt = self.salts.get(row.request_id, "")
        is_broken = row.request_id in self.broken
        for position, slot in enumerate(slots):
            cell = self.cells[slot]
            assert cell is not None, f"{row.request_id} reads position {position}, which was never written"
            assert (cell.salt, cell.state) == (salt, states[position]), (
                f"{row.request_id} reads another prefix's KV at position {position}"
            )
            is_broken = is_broken or cell.broken
        if is_broken:
            for position in range(row.start, row.end):
                self.cells[slots[position]] = _Cell(salt, states[position], broken=True)
        prompt_logprobs = self._prompt_logprobs(row, states)
        targets = [
            [logprob_of(states[position], token_id).chosen.logprob - token_id for token_id in token_ids]
            for position, token_ids in enumerate(row.targets.token_ids, row.targets.first)
        ]
        hidden = states_of([states[position] for position in row.pooled])
        if not row.samples:
            return RowResult([], None, prompt_logprobs, target_logprobs=targets, hidden_states=hidden)
        if is_broken:
            return RowResult([], error="logits are not finite")
        sampled = self._sample(row, states, prompt_logprobs)
        return replace(sampled, target_logprobs=targets, hidden_states=hidden)

    def _prompt_logprobs(self, row: BatchRow, states: list[int]) -> list[TokenLogprobs] | None:
        if row.params.prompt_logprobs is None:
            return None
        first = max(row.start + 1, row.params.prompt_logprobs_start, 1)
        last = min(row.end, row.num_prompt_tokens - 1)
        return [logprob_of(states[p - 1], row.history[p]) for p in range(first, last + 1)]

    def _sample(
        self, row: BatchRow, states: list[int], prompt_logprobs: list[TokenLogprobs] | None
    ) -> RowResult:
        drafts = list(row.token_ids[len(row.token_ids) - row.num_drafts :])
        known_end = row.end - row.num_drafts
        token_ids: list[int] = []
        logprobs: list[TokenLogprobs] = []
        for index in range(row.sampled_positions):
            state = states[known_end - 1 + index]
            mask = None if row.mask is None else row.mask[index]
            token_id = choose(state, self.vocab_size, row.banned_token_ids, mask)
            if token_id is None and token_ids:
                # The next step meets it.
                break
            if token_id is None:
                return RowResult([], error="no token is allowed here")
            token_ids.append(token_id)
            logprobs.append(logprob_of(state, token_id))
            if index < row.num_drafts and drafts[index] != token_id:
                break
        wants = row.params.logprobs is not None
        return RowResult(token_ids, logprobs if wants else None, prompt_logprobs)


class TurnMatcher:
    """A grammar: token ``t`` may come at place ``i`` where ``t % 3 == i % 3``; at place ``length`` only the
    stop token may. ``breaks_at``: the place at which the grammar fails."""

    def __init__(self, vocab_size: int, stop_token_id: int, length: int, breaks_at: int = -1) -> None:
        self.vocab_size = vocab_size
        self.stop_token_id = stop_token_id
        self.length = length
        self.breaks_at = breaks_at
        self.accepted: list[int] = []

    def _allows(self, token_id: int) -> bool:
        place = len(self.accepted)
        if place >= self.length:
            return token_id == self.stop_token_id
        return token_id != self.stop_token_id and token_id % 3 == place % 3

    def accept(self, token_id: int) -> bool:
        if self.is_terminated() or not self._allows(token_id):
            return False
        self.accepted.append(token_id)
        return True

    def fill_bitmask(self, row: npt.NDArray[np.int32]) -> None:
        assert not self.is_terminated()
        if len(self.accepted) == self.breaks_at:
            raise RequestFailedError("the grammar ran out of fuel")
        words = np.zeros(len(row), dtype=np.uint32)
        for token_id in filter(self._allows, range(self.vocab_size)):
            words[token_id // 32] |= np.uint32(1 << token_id % 32)
        row[:] = words.view(np.int32)

    def rollback(self, num_tokens: int) -> None:
        assert 0 < num_tokens <= len(self.accepted)
        del self.accepted[-num_tokens:]

    def forced_tokens(self) -> list[int]:
        return [self.stop_token_id] if len(self.accepted) == self.length else []

    def is_unconstrained(self) -> bool:
        return False

    def is_terminated(self) -> bool:
        return bool(self.accepted) and self.accepted[-1] == self.stop_token_id

    def fork(self) -> "TurnMatcher":
        other = TurnMatcher(self.vocab_size, self.stop_token_id, self.length, self.breaks_at)
        other.accepted = self.accepted[:]
        return other


@dataclass(slots=True)
class Oracle:
    """What a request answers when it runs alone, without pages, batches or drafts."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.ERROR
    stop_token_id: int | None = None


def lone_run(
    source: GenerateInput,
    config: SchedulerConfig,
    stop_token_ids: Collection[int] = (),
    matcher: TurnMatcher | None = None,
) -> Oracle:
    params, history = source.params, list(source.token_ids)
    limit = min(config.context_length, config.num_slots)
    if params.max_tokens is not None:
        limit = min(limit, len(history) + params.max_tokens)
    stops = {*params.stop_token_ids, *(() if params.ignore_eos else stop_token_ids)}
    banned = stops if matcher is None else {*params.stop_token_ids, *stop_token_ids}
    state = chain(history)[-1]
    words = -(-config.vocab_size // 32)
    result = Oracle()
    while True:
        mask = None
        if matcher is not None:
            mask = np.zeros(words, dtype=np.int32)
            if len(matcher.accepted) == matcher.breaks_at:
                return result
            matcher.fill_bitmask(mask)
        may_stop = len(result.token_ids) >= params.min_tokens
        token_id = choose(state, config.vocab_size, () if may_stop else banned, mask)
        if token_id is None:
            return result
        if matcher is not None:
            assert matcher.accept(token_id)
        history.append(token_id)
        result.token_ids.append(token_id)
        state = mix(state, token_id)
        if token_id in stops and may_stop:
            result.finish_reason, result.stop_token_id = FinishReason.STOP, token_id
            return result
        if matcher is not None and matcher.is_terminated():
            result.finish_reason = FinishReason.STOP
            return result
        if len(history) >= limit:
            result.finish_reason = FinishReason.LENGTH
            return result


class MixedProposer:
    """Proposes the truth up to a wrong token, in a pattern that follows from the history."""

    def __init__(self, vocab_size: int, most: int = 4) -> None:
        self.vocab_size = vocab_size
        self.most = most

    def propose(self, request: Request, ahead: Sequence[int]) -> Sequence[int]:
        if ahead:
            return []
        state = chain(request.history)[-1]
        num_right, num_drafts = state % (self.most + 1), (state >> 9) % (self.most + 1)
        matcher = None if request.matcher is None else request.matcher.fork()
        drafts: list[int] = []
        for index in range(num_drafts):
            mask = None
            if matcher is not None:
                mask = np.zeros(-(-self.vocab_size // 32), dtype=np.int32)
                try:
                    matcher.fill_bitmask(mask)
                except RequestFailedError:
                    break
            token_id = choose(state, self.vocab_size, mask=mask)
            assert token_id is not None
            if index >= num_right:
                token_id = (token_id + 1) % self.vocab_size
            drafts.append(token_id)
            if matcher is not None and (not matcher.accept(token_id) or matcher.is_terminated()):
                break
            state = mix(state, token_id)
        return drafts

    def observe(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        assert 0 <= num_accepted <= num_proposed

    def forget(self, request: Request) -> None:
        assert request.finish_reason is None or request.pages == []


def make_input(
    request_id: str,
    token_ids: Sequence[int],
    *,
    priority: int = 0,
    salt: str = "",
    **params: object,
) -> GenerateInput:
    """Keyword arguments are those of SamplingParams; temperature is 0 unless given."""
    return GenerateInput(
        request_id=request_id,
        token_ids=list(token_ids),
        params=SamplingParams(**{"temperature": 0.0, **params}),  # type: ignore[arg-type]
        priority=priority,
        cache_salt=salt,
    )
