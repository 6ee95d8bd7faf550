"""Scheduler: which tokens of which requests a step computes, and what becomes of them."""

import time
from bisect import insort
from collections.abc import Callable, Iterable, Sequence

from ramet.runtime.cache import PageAccountingError, PageAllocator, RadixCache
from ramet.runtime.grammar.backend import GrammarMatcher
from ramet.runtime.grammar.guide import Guide, MaskWork
from ramet.runtime.grammar.service import JobThreads
from ramet.runtime.protocol import (
    FinishReason,
    InvalidRequestError,
    Prefix,
    RametError,
    SessionPin,
    TokenOutput,
)
from ramet.runtime.scheduler.admission import check_request
from ramet.runtime.scheduler.batch import BatchRow, RowResult, ScheduledBatch
from ramet.runtime.scheduler.commit import (
    check_results,
    commit_tokens,
    gather_pooled,
    gather_prompt_logprobs,
    gather_target_logprobs,
)
from ramet.runtime.scheduler.config import SchedulerConfig
from ramet.runtime.scheduler.drafting import DraftProposer
from ramet.runtime.scheduler.kv_pages import KVPages
from ramet.runtime.scheduler.policy import LongestPrefixMatch, OrderingPolicy
from ramet.runtime.scheduler.request import NO_SLOT, Request, RequestStatus
from ramet.runtime.scheduler.rows import RowBuilder
from ramet.runtime.scheduler.session_pins import SessionPins
from ramet.runtime.scheduler.stats import Counts, SchedulerStats
from ramet.runtime.scheduler.waiting import WaitingQueue


class _Step:
    """The step that is being made up."""

    __slots__ = ("budget", "has_preempted", "rows")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.rows: dict[str, BatchRow] = {}
        self.has_preempted = False


class Scheduler:
    """Continuous batching under one token budget a step: decode rows, then running prefills, then admissions.

    Invariants: ``schedule`` and ``update`` (or ``fail_batch``) alternate, and every other call comes between
    an ``update`` and the next ``schedule``; each request ends in exactly one TokenOutput with a finish_reason
    (or in ``finish``, whose caller knows); the oldest running request of the highest priority that is not held
    (see ``Request.is_held``) is in every step; a running request that was alone could always go on to its end.

    New whole pages of a prompt enter the radix tree when their chunk is scheduled, not when it was computed: a
    later row of the same step may read them, because a step writes a layer's KV for all rows before any row
    attends.

    Not thread-safe: one thread owns it, and the cache with it.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        cache: RadixCache | None = None,
        policy: OrderingPolicy | None = None,
        stop_token_ids: Iterable[int] = (),
        proposer: DraftProposer | None = None,
        mask_work: MaskWork | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``cache``: None makes one with LRU eviction. ``stop_token_ids``: the model's end-of-turn tokens.
        ``mask_work``: who fills grammars' masks; None: this thread does."""
        if cache is None:
            cache = RadixCache(PageAllocator(config.num_pages, config.page_size))
        allocator = cache.allocator
        if (allocator.num_pages, allocator.page_size) != (config.num_pages, config.page_size):
            raise ValueError(
                f"the cache has {allocator.num_pages} pages of {allocator.page_size} tokens, "
                f"the config {config.num_pages} of {config.page_size}"
            )
        self._config = config
        self._cache = cache
        self._policy: OrderingPolicy = LongestPrefixMatch() if policy is None else policy
        self._model_stop_ids = frozenset(stop_token_ids)
        self._clock = clock
        self._pins = SessionPins(cache, clock)
        self._pages = KVPages(cache, self._pins, share=config.enable_prefix_cache)
        self._proposer = proposer
        self._mask_work = MaskWork(JobThreads("mask", 0)) if mask_work is None else mask_work
        self._row_builder = RowBuilder(self._pages, config.vocab_size, proposer)
        self._requests: dict[str, Request] = {}
        self._compiling: dict[str, Request] = {}
        self._waiting = WaitingQueue(config.max_overtakes)
        self._running: list[Request] = []
        """Higher priorities first, then by age: the last one is the first to be preempted."""
        self._free_slots = list(range(config.max_running_requests - 1, -1, -1))
        self._in_flight: ScheduledBatch | None = None
        self._num_arrivals = 0
        self._is_blocked = False
        """The first candidate did not fit, and nothing has been given up since: no need to look again."""
        self._counts = Counts()

    @property
    def config(self) -> SchedulerConfig:
        return self._config

    @property
    def cache(self) -> RadixCache:
        return self._cache

    @property
    def has_work(self) -> bool:
        """A request has not ended; ``schedule`` returns a batch, unless each one waits for its grammar or for
        its masks."""
        return bool(self._requests)

    def now(self) -> float:
        """Seconds of the scheduler's clock, in which a request's ``arrival`` is given."""
        return self._clock()

    def get(self, request_id: str) -> Request | None:
        """A request that has not ended, to read."""
        return self._requests.get(request_id)

    def stats(self) -> SchedulerStats:
        counts = self._counts
        self._pins.expire()
        return SchedulerStats(
            num_waiting=len(self._waiting),
            num_compiling=len(self._compiling),
            num_running=len(self._running),
            num_free_pages=self._cache.allocator.num_free,
            num_steps=counts.steps,
            num_computed_tokens=counts.computed,
            num_prompt_tokens=counts.prompt,
            num_cached_tokens=counts.cached,
            num_output_tokens=counts.outputs,
            num_draft_tokens=counts.drafts,
            num_accepted_draft_tokens=counts.accepted,
            num_late_masks=counts.late,
            num_preemptions=counts.preemptions,
            num_finished=counts.finished,
            num_sessions=self._pins.num_sessions,
            num_pinned_tokens=self._pins.num_tokens,
            num_dropped_pins=self._pins.num_dropped,
            cache=self._cache.stats,
        )

    # -- Requests come and go --------------------------------------------------------------------------------

    def add(self, request: Request, *, compiling: bool = False) -> None:
        """Take in a request that has just been made; it waits. ``compiling``: for ``supply`` first.

        Raises:
            InvalidRequestError: see ``check_request``; or its id is that of a request that has not ended.
            PromptTooLongError: it can never fit the context or the KV pool.
        """
        if request.request_id in self._requests:
            raise InvalidRequestError(
                f"request_id {request.request_id!r} belongs to a running request; choose another one",
                field="request_id",
            )
        request.max_total_tokens = check_request(request, self._config)
        own_stops = frozenset(request.params.stop_token_ids)
        model_stops = self._model_stop_ids
        request.stop_token_ids = own_stops if request.params.ignore_eos else own_stops | model_stops
        # A grammar ends with the model's stop tokens, whether or not they stop a free text.
        grammar = request.params.grammar
        is_constrained = compiling or request.matcher is not None
        is_free = not is_constrained or (isinstance(grammar, Prefix) and grammar.inner is None)
        banned = request.stop_token_ids if is_free else own_stops | model_stops
        request.banned_token_ids = tuple(sorted(banned))
        request.sequence = self._num_arrivals
        self._num_arrivals += 1
        self._requests[request.request_id] = request
        if compiling:
            request.status = RequestStatus.GRAMMAR
            self._compiling[request.request_id] = request
        else:
            self._enqueue(request)

    def supply(self, request_id: str, matcher: GrammarMatcher) -> None:
        """The grammar that a request waited for is there: it waits to be admitted now, as the youngest.

        Raises:
            KeyError: no such request waits for its grammar.
        """
        request = self._compiling.pop(request_id)
        request.matcher = matcher
        request.grammar_time = self._clock() - request.arrival
        request.status = RequestStatus.WAITING
        self._enqueue(request)

    def fail(self, request_id: str, error: RametError) -> TokenOutput:
        """End a request with ERROR; everything it held is free when this returns.

        Raises:
            KeyError: there is no such request.
        """
        request = self._requests[request_id]
        self._end(request, FinishReason.ERROR, keep=True)
        return self._output(request, error=str(error), error_kind=type(error).__name__)

    def held(self) -> list[Request]:
        """The requests that sit out until their masks are there."""
        return [request for request in self._running if request.is_held]

    def abort(self, request_id: str) -> TokenOutput | None:
        """End a request now; everything it held is free when this returns. None: there is no such request."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        self._end(request, FinishReason.ABORT, keep=True)
        return self._output(request)

    def finish(self, request_id: str, reason: FinishReason) -> bool:
        """The caller found that a request has ended (a stop string in its text). False: it had ended before."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._end(request, reason, keep=True)
        return True

    def release_session(self, session: str) -> int:
        """What the session has pinned may be evicted, and its running requests pin nothing; how many tokens."""
        for request in self._requests.values():
            if request.pin is not None and request.pin.session == session:
                request.pin = None
        self._is_blocked = False
        return self._pins.release(session)

    # -- Steps -----------------------------------------------------------------------------------------------

    def schedule(self) -> ScheduledBatch | None:
        """Make up the next step; None where there is nothing to do."""
        self._check_between_steps()
        if not self._requests:
            return None
        for request in self.held():
            assert request.guide is not None
            request.guide.recheck()
        step = _Step(self._config.max_tokens_per_step)
        self._schedule_decodes(step)
        self._schedule_prefills(step)
        if not step.has_preempted:
            self._admit(step)
        if not step.rows:
            return None
        self._counts.steps += 1
        batch = ScheduledBatch(self._counts.steps, tuple(step.rows.values()))
        self._in_flight = batch
        return batch

    def update(self, batch: ScheduledBatch, results: Sequence[RowResult]) -> list[TokenOutput]:
        """Commit what the executor computed: one output for each request that got tokens or ended.

        Raises:
            ValueError: the results do not fit the batch; nothing has changed, and ``fail_batch`` is due.
        """
        self._check_in_flight(batch)
        check_results(batch, results)
        self._in_flight = None
        self._cache.mark_written()
        now = self._clock()
        outputs: list[TokenOutput] = []
        for row, result in zip(batch.rows, results, strict=True):
            request = self._requests[row.request_id]
            request.num_steps += 1
            self._counts.computed += len(row.token_ids)
            if result.error is not None:
                outputs.append(self._fail(request, result.error))
                continue
            self._pages.settle(request)
            gather_prompt_logprobs(request, row, result)
            gather_target_logprobs(request, row, result)
            gather_pooled(request, row, result)
            request.num_computed_tokens = row.end - row.num_drafts
            if result.is_late:
                self._hold(request)
            elif row.samples:
                output = self._commit(request, row, result, now)
                if output.token_ids or output.finish_reason is not None:
                    outputs.append(output)
        return outputs

    def fail_batch(self, batch: ScheduledBatch, message: str) -> list[TokenOutput]:
        """The step raised: its requests end with ERROR, and the pages that it was to write leave the tree."""
        self._check_in_flight(batch)
        self._in_flight = None
        outputs = []
        for row in batch.rows:
            request = self._requests[row.request_id]
            self._end(request, FinishReason.ERROR, keep=False)
            outputs.append(self._output(request, error=message))
        self._cache.discard_pending()
        return outputs

    def check_integrity(self) -> None:
        """Every page has one owner, every lock a holder, every slot at most one request. Costs the tree's size.

        Raises:
            PageAccountingError: it is not so.
        """
        running = self._running
        slots = sorted([request.slot for request in running] + self._free_slots)
        if slots != list(range(self._config.max_running_requests)):
            raise PageAccountingError("a slot was lost or given twice")
        waiting = [*self._waiting, *self._compiling.values()]
        if {*running, *waiting} != set(self._requests.values()):
            raise PageAccountingError("a request is neither waiting nor running")
        page_size = self._config.page_size
        for request in running:
            if not request.num_computed_tokens < len(request.history) <= request.max_total_tokens:
                raise PageAccountingError(f"request {request.request_id!r} is computed beyond its end")
            if request.num_computed_tokens > len(request.pages) * page_size:
                raise PageAccountingError(f"request {request.request_id!r} lacks pages")
            if request.node is not None and request.node.end != request.num_tree_pages * page_size:
                raise PageAccountingError(f"request {request.request_id!r} holds the wrong node")
        for request in waiting:
            if request.pages or request.node is not None or request.slot != NO_SLOT:
                raise PageAccountingError(f"request {request.request_id!r} waits and holds pages")
        self._cache.check_integrity(
            held_pages=[page for request in running for page in self._pages.own_pages(request)],
            handles=[*self._pins.nodes(), *(request.node for request in running if request.node is not None)],
        )

    # -- Making up a step ------------------------------------------------------------------------------------

    def _schedule_decodes(self, step: _Step) -> None:
        """One token for each decoding request, and drafts from what is left."""
        decoding = [request for request in self._running if request.is_decoding and not request.is_held]
        draft_budget = step.budget - len(decoding)
        guess_budget = min(draft_budget, self._config.max_guessing_tokens - len(decoding))
        may_admit = bool(self._waiting) and not self._is_blocked and bool(self._free_slots)
        if may_admit or any(not request.is_decoding for request in self._running):
            # Prompts fill the step; a guess would take the place of what is certain to be needed.
            draft_budget //= 2
            guess_budget = 0
        # Everybody's next page comes before anybody's drafts.
        ready = [
            request
            for request in decoding[: step.budget]
            if request.status is RequestStatus.RUNNING and self._make_room(request, len(request.history), step)
        ]
        for request in ready:
            row = self._row_builder.build(
                request, 1, draft_budget, page_reserve=len(self._running), guess_limit=guess_budget
            )
            step.rows[request.request_id] = row
            step.budget -= 1 + row.num_drafts
            draft_budget -= row.num_drafts
            guess_budget -= row.num_drafts - request.num_forced_drafts

    def _schedule_prefills(self, step: _Step) -> None:
        for request in [request for request in self._running if not request.is_decoding]:
            if step.budget <= 0:
                break
            if request.status is RequestStatus.RUNNING and not request.is_held:
                self._take_from_others(request)
                if self._make_room(request, request.num_computed_tokens + 1, step):
                    self._add_chunk(request, step)

    def _take_from_others(self, request: Request) -> None:
        """What others have computed of its prompt since its last chunk comes from the cache as well."""
        before = request.num_computed_tokens
        self._pages.extend(request)
        if request.num_preemptions == 0:
            gained = request.num_computed_tokens - before
            request.num_cached_tokens += gained
            self._counts.cached += gained

    def _admit(self, step: _Step) -> None:
        if step.budget <= 0 or self._is_blocked or not self._free_slots or not self._waiting:
            return
        num_reserved = sum(map(self._num_pages_to_come, self._running))
        for request in self._waiting.candidates(self._policy, self._pages.prefix_length):
            num_wanted = self._num_wanted_tokens(request)
            if self._pages.admission_cost(request, num_wanted) > self._pages.num_available - num_reserved:
                if self._running:
                    self._is_blocked = True
                    return
                self._pages.make_room(num_wanted)
            self._start(request)
            self._add_chunk(request, step)
            num_reserved += self._num_pages_to_come(request)
            if step.budget <= 0 or not self._free_slots:
                return

    def _start(self, request: Request) -> None:
        self._waiting.admit(request)
        self._pages.attach(request)
        request.slot = self._free_slots.pop()
        request.status = RequestStatus.RUNNING
        insort(self._running, request, key=_rank)
        if request.admission_time is None:
            request.admission_time = self._clock()
            request.num_cached_tokens = request.num_computed_tokens
            self._counts.prompt += request.num_prompt_tokens
            self._counts.cached += request.num_cached_tokens

    def _add_chunk(self, request: Request, step: _Step) -> None:
        """Schedule as much of what is known and not computed as budget and pages allow; a page is there."""
        start, known = request.num_computed_tokens, len(request.history)
        page_size = self._config.page_size
        end = min(known, start + step.budget, self._pages.capacity(request))
        if end < known:
            # A chunk that ends with a page can be shared whole.
            whole_pages = end // page_size * page_size
            end = whole_pages if whole_pages > start else end
        has_pages = self._pages.grow(request, end)
        assert has_pages
        self._pages.publish(request, end)
        spare = 0 if self._waiting else (step.budget - (end - start)) // 2
        row = self._row_builder.build(
            request, end - start, spare, page_reserve=len(self._running), guess_limit=0
        )
        step.rows[request.request_id] = row
        step.budget -= len(row.token_ids)

    def _make_room(self, request: Request, num_tokens: int, step: _Step) -> bool:
        """Pages for ``num_tokens`` of a request, by preemption if need be; False: it was itself preempted."""
        while not self._pages.grow(request, num_tokens):
            victim = self._running[-1]
            # A row of this step can be taken back only if no other one reads what it writes: a decode row.
            # The prefill rows there are belong to requests that come before this one, which is not last then.
            row = step.rows.pop(victim.request_id, None)
            if row is not None:
                step.budget += len(row.token_ids)
            self._preempt(victim)
            step.has_preempted = True
            if victim is request:
                return False
        return True

    def _may_come_first(self, request: Request) -> bool:
        """Whether a new request may be admitted before those that wait already."""
        top = self._waiting.top_priority
        if top is None or request.priority != top:
            return top is None or request.priority > top
        return self._waiting.num_fresh(top) < self._policy.window

    def _num_wanted_tokens(self, request: Request) -> int:
        return min(len(request.history) + self._config.admission_headroom, request.max_total_tokens)

    def _num_pages_to_come(self, request: Request) -> int:
        """Pages that a running request is likely to need soon."""
        num_pages = -(-self._num_wanted_tokens(request) // self._config.page_size)
        return max(0, num_pages - len(request.pages))

    # -- The ends of a request -------------------------------------------------------------------------------

    def _commit(self, request: Request, row: BatchRow, result: RowResult, now: float) -> TokenOutput:
        if request.node is not None:
            self._cache.mark_verified(request.node)
        if request.guide is not None:
            num_forced = request.num_forced_drafts
            request.guide.observe(num_forced, min(num_forced, len(result.token_ids) - 1))
        commit = commit_tokens(request, result.token_ids)
        num_tokens = len(commit.token_ids)
        request.num_computed_tokens += max(0, num_tokens - 1)
        self._counts.outputs += num_tokens
        self._count_drafts(request, row.num_drafts, len(result.token_ids) - 1)
        prompt_logprobs = target_logprobs = None
        if num_tokens:
            if request.first_token_time is None:
                request.first_token_time = now
                target_logprobs = request.target_logprobs or None
            prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
        if commit.finish_reason is not None:
            self._end(request, commit.finish_reason, keep=commit.error is None)
        elif not num_tokens:
            self._compute_last_again(request)
        return TokenOutput(
            request_id=request.request_id,
            token_ids=commit.token_ids,
            logprobs=None if result.logprobs is None else result.logprobs[:num_tokens],
            prompt_logprobs=prompt_logprobs,
            target_logprobs=target_logprobs,
            finish_reason=commit.finish_reason,
            stop_token_id=commit.stop_token_id,
            error=commit.error,
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=request.num_cached_tokens,
        )

    def _count_drafts(self, request: Request, num_drafts: int, num_accepted: int) -> None:
        self._counts.drafts += num_drafts
        self._counts.accepted += num_accepted
        request.num_sampling_steps += 1
        request.num_drafts += num_drafts
        request.num_accepted_drafts += num_accepted
        num_proposed = num_drafts - request.num_forced_drafts
        if self._proposer is not None and num_proposed:
            self._proposer.observe(request, num_proposed, max(0, num_accepted - request.num_forced_drafts))

    def _hold(self, request: Request) -> None:
        """Its logits are there and its masks are not: its last known token is computed again once they are."""
        assert request.guide is not None
        request.guide.be_late()
        request.num_late_masks += 1
        self._counts.late += 1
        self._compute_last_again(request)

    def _compute_last_again(self, request: Request) -> None:
        """Nothing was sampled from the logits of its last known token: the next step has them again."""
        request.num_computed_tokens = len(request.history) - 1
        if request.node is None:
            return
        self._cache.mark_verified(request.node)
        if request.num_computed_tokens < request.num_tree_pages * self._config.page_size:
            # A page of the tree is never written again: the last one is computed into a page of its own.
            self._pages.release(request, keep=True)
            self._pages.attach(request)

    def _enqueue(self, request: Request) -> None:
        if request.matcher is not None:
            request.guide = Guide(request.matcher, self._config.vocab_size, self._mask_work)
        if self._is_blocked:
            self._is_blocked = not self._may_come_first(request)
        self._waiting.add(request)

    def _fail(self, request: Request, error: str) -> TokenOutput:
        """A row of its own failed: what its logits were computed from is suspect."""
        node = request.node
        self._end(request, FinishReason.ERROR, keep=False)
        if node is not None:
            self._cache.discard_unverified(node)
        return self._output(request, error=error)

    def _output(self, request: Request, error: str | None = None, error_kind: str | None = None) -> TokenOutput:
        return TokenOutput(
            request_id=request.request_id,
            finish_reason=request.finish_reason,
            error=error,
            error_kind=error_kind,
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=request.num_cached_tokens,
        )

    def _preempt(self, request: Request) -> None:
        self._leave(request, keep=True)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self._counts.preemptions += 1
        self._waiting.add_preempted(request)

    def _end(self, request: Request, reason: FinishReason, *, keep: bool) -> None:
        self._check_between_steps()
        if request.status is RequestStatus.RUNNING:
            ended = reason in (FinishReason.STOP, FinishReason.LENGTH)
            self._leave(request, keep=keep, pin=request.pin if ended else None)
        elif request.status is RequestStatus.GRAMMAR:
            del self._compiling[request.request_id]
        else:
            self._waiting.remove(request)
        if self._proposer is not None:
            self._proposer.forget(request)
        self._is_blocked = False
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.finish_time = self._clock()
        request.hint = None
        request.guide = None
        self._counts.finished += 1
        del self._requests[request.request_id]

    def _leave(self, request: Request, *, keep: bool, pin: SessionPin | None = None) -> None:
        """Stop running: everything it held is free or in the tree."""
        self._pages.release(request, keep=keep, pin=pin)
        self._running.remove(request)
        self._free_slots.append(request.slot)
        request.slot = NO_SLOT
        self._is_blocked = False

    def _check_between_steps(self) -> None:
        if self._in_flight is not None:
            raise RuntimeError("a step is in flight: update() or fail_batch() must come first")

    def _check_in_flight(self, batch: ScheduledBatch) -> None:
        if batch is not self._in_flight:
            raise RuntimeError("this is not the batch that the latest schedule() returned")


def _rank(request: Request) -> tuple[int, int]:
    return -request.priority, request.sequence
