"""The way of every request into the engine: room in the queue, a deadline, the first token, and the drain."""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from ramet.runtime.engine import EngineFace, Increment
from ramet.runtime.engine.intake import CacheUse
from ramet.runtime.engine.streams import OpenedBatch
from ramet.runtime.protocol import FinishReason, InvalidRequestError, ProgramTag, RametError, SamplingParams
from ramet.runtime.server.activity import Activity
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.errors import (
    bad_request,
    cut_by_shutdown,
    deadline_exceeded,
    draining,
    overloaded,
)
from ramet.runtime.server.metrics import ServerMetrics
from ramet.runtime.server.sessions import Session, Sessions
from ramet.runtime.server.shared_fields import RoutingFields
from ramet.runtime.server.tenants import Tenant
from ramet.runtime.server.tracing import AnswerSpan, AnswerStart, NoTracing, Tracing

MAX_RETRY_SECONDS = 60
MAX_SHOWN = 100
"""Live requests that are told of at once, the latest ones."""
NO_PROGRAM = ProgramTag()
NOBODY = Tenant()
_SMOOTHING = 0.1
"""Weight of the latest answer in the running mean of their times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One HTTP request as the engine is asked: prompts (one, or several) or messages, and the rest."""

    params: SamplingParams
    prompts: object = None
    messages: object = None
    num_prompts: int = 1
    chat_options: Mapping[str, Any] = field(default_factory=dict)
    tag: ProgramTag = NO_PROGRAM
    priority: int = 0
    cache_salt: str = ""
    request_id: str | None = None
    timeout: float | None = None
    """Seconds; None: the server's own limit."""
    operation: str = "text_completion"
    """For traces: that, or chat."""
    session: str | None = None
    """Of the tenant's: where its conversation's prefix is kept."""
    tenant: Tenant = NOBODY

    @classmethod
    def routed(
        cls,
        params: SamplingParams,
        routing: RoutingFields,
        tenant: Tenant,
        *,
        prompts: object,
        num_prompts: int = 1,
        operation: str = "chat",
    ) -> "Job":
        """With a client's routing, in its tenant's name space.

        Raises:
            InvalidRequestError: the timeout is no time.
        """
        if routing.timeout is not None and not 0 < routing.timeout < math.inf:
            raise InvalidRequestError(
                f"timeout is {routing.timeout}; it must be a number of seconds above 0", field="timeout"
            )
        return cls(
            params=params,
            prompts=prompts,
            num_prompts=num_prompts,
            tag=routing.program,
            priority=routing.priority,
            cache_salt=tenant.salted(routing.cache_salt),
            request_id=None if routing.request_id is None else tenant.request_id(routing.request_id),
            timeout=routing.timeout,
            operation=operation,
            session=routing.session,
            tenant=tenant,
        )

    @property
    def num_answers(self) -> int:
        return self.num_prompts * self.params.n


class LiveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has not ended, as its own tenant may see it."""

    request_id: str
    state: str
    """waiting: for its first token; or running."""
    seconds: float
    """Since it came."""
    ttft: float | None
    """Seconds from its arrival to its first token."""
    num_answers: int
    prompt_tokens: int
    output_tokens: int
    program_id: str
    branch: str
    step: int
    priority: int


class Gateway:
    """Lets jobs in. Lives on one event loop.

    Invariant: ``live`` is the sum of the answers of all open ``Answers`` and ``room``s, and at most the
    engine's width plus the queue's bound.
    """

    def __init__(
        self,
        engine: EngineFace,
        config: ServerConfig,
        metrics: ServerMetrics,
        *,
        width: int,
        tracing: Tracing | None = None,
    ) -> None:
        """``width``: requests that the engine computes in one step at most."""
        self.tracing = NoTracing() if tracing is None else tracing
        self._engine = engine
        self._config = config
        self._metrics = metrics
        self._width = width
        self._limit = width + config.max_queued_requests
        self._open: set[Answers] = set()
        self._mean_seconds = 1.0
        self.activity = Activity()
        self.sessions = Sessions(config.max_sessions)
        self.live = 0
        self.is_draining = False
        self._drain_followers: list[Callable[[float], None]] = []
        self._waiters: deque[_Waiter] = deque()

    async def open(self, job: Job, *, waits: bool = False) -> "Answers":
        """Submits the job and waits for its first increment, so that what the engine refuses is known here.

        ``waits``: where there is no room it waits for it, after those that waited before; its time begins then.

        Raises:
            HttpError: no room (429), too many answers at once (400), shutting down (503), too late (504), or
                there is no such session (404).
            RametError: the engine refused the request or failed.
        """
        timeout = min(job.timeout or math.inf, self._config.request_timeout)
        session = None if job.session is None else self.sessions.get(job.tenant, job.session)
        if waits:
            await self._take_room_in_turn(job.num_answers)
        else:
            self._take_room(job.num_answers)
        span = self.tracing.answer(AnswerStart(job.operation, job.params, job.tag, job.num_answers))
        answers = Answers(self, job, timeout, self._metrics, span)
        if session is not None:
            answers.session = session
            self.sessions.begin(session)
        self._open.add(answers)
        try:
            await answers.start(self._engine)
        except BaseException as error:
            if isinstance(error, RametError):
                span.failed(error)
            await answers.aclose()
            raise
        return answers

    def check_size(self, num_answers: int) -> None:
        """Raises HttpError (400) for more answers than there is ever room for."""
        if num_answers > self._limit:
            raise bad_request(
                f"the request asks for {num_answers} answers (prompts times n); the server takes at most "
                f"{self._limit} at once (--max-running-requests, --max-queued-requests)",
                param="n",
                code="too_many_answers",
            )

    @contextmanager
    def room(self, num_answers: int) -> Iterator[None]:
        """Room for work that has no increments. Raises HttpError as ``open`` does."""
        self._take_room(num_answers)
        try:
            yield
        finally:
            self._count(-num_answers)

    @asynccontextmanager
    async def room_in_turn(self, num_answers: int) -> AsyncIterator[None]:
        """The same, waited for as in ``open``."""
        await self._take_room_in_turn(num_answers)
        try:
            yield
        finally:
            self._count(-num_answers)

    @contextmanager
    def traced_score(self, tag: ProgramTag, num_continuations: int) -> Iterator[None]:
        """Around scores, as ``open`` is around answers."""
        span = self.tracing.answer(AnswerStart("score", None, tag, num_continuations))
        try:
            yield
            span.scored()
        except RametError as error:
            span.failed(error)
            raise
        finally:
            span.end()

    def abort(self, request_id: str) -> None:
        """Ends a running request; an unknown id is ignored."""
        self._engine.abort(request_id)

    def live_requests(self, tenant: Tenant) -> tuple[list[LiveRequest], int]:
        """Those of the tenant, oldest first, and how many others there are."""
        mine = [answers for answers in self._open if tenant.owns(answers.job.cache_salt)]
        mine.sort(key=lambda answers: answers.arrival)
        shown = [answers.described(tenant) for answers in mine[-MAX_SHOWN:]]
        return [one for one in shown if one is not None], len(self._open) - len(mine)

    def start_draining(self) -> None:
        """From now on nothing new is let in, and what runs has ``drain_timeout`` seconds."""
        if not self.is_draining:
            self.is_draining = True
            for waiter in self._waiters:
                if not waiter.turn.done():
                    waiter.turn.set_exception(draining())
            self._waiters.clear()
            for answers in list(self._open):
                answers.cut_after(self._config.drain_timeout)
            for follow in self._drain_followers:
                follow(self._config.drain_timeout)

    def when_draining(self, follow: Callable[[float], None]) -> None:
        """Calls it once the server shuts down, with the seconds that what runs then has."""
        self._drain_followers.append(follow)

    def leave(self, answers: "Answers", num_answers: int) -> None:
        """Called by Answers when they are closed, once."""
        self._open.discard(answers)
        if answers.session is not None:
            self.sessions.end(answers.session)
        self._count(-num_answers)

    def took(self, seconds: float) -> None:
        """How long an answer took from arrival to end."""
        self._mean_seconds += _SMOOTHING * (seconds - self._mean_seconds)

    def _count(self, num_answers: int) -> None:
        self.live += num_answers
        self._metrics.in_flight(self.live)
        if num_answers < 0:
            self._let_in()

    def _take_room(self, num_answers: int) -> None:
        if self.is_draining:
            raise draining()
        self.check_size(num_answers)
        if self.live + num_answers > self._limit:
            self._metrics.refused()
            # When about as many have left as there have to.
            rounds = (self.live + num_answers - self._limit) / self._width
            raise overloaded(max(1, min(MAX_RETRY_SECONDS, math.ceil(rounds * self._mean_seconds))))
        self._count(num_answers)

    async def _take_room_in_turn(self, num_answers: int) -> None:
        if not self._waiters and self.live + num_answers <= self._limit:
            self._take_room(num_answers)
            return
        if self.is_draining:
            raise draining()
        self.check_size(num_answers)
        waiter = _Waiter(num_answers, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                # It may have stood before others for which there is room.
                self._let_in()
            elif not waiter.turn.cancelled() and waiter.turn.exception() is None:
                self._count(-num_answers)
            raise

    def _let_in(self) -> None:
        """Gives the room that there is to those that wait, the first first."""
        while self._waiters and (
            self._waiters[0].turn.done() or self.live + self._waiters[0].num_answers <= self._limit
        ):
            waiter = self._waiters.popleft()
            # A cancelled one takes nothing.
            if not waiter.turn.done():
                self._count(waiter.num_answers)
                waiter.turn.set_result(None)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """Work that waits for room. Its turn comes with the room, which is counted from then on."""

    num_answers: int
    turn: "asyncio.Future[None]"


class Answers:
    """The increments of one job, in the order they come, each within the job's time. Close them."""

    def __init__(
        self, gateway: Gateway, job: Job, timeout: float, metrics: ServerMetrics, span: AnswerSpan
    ) -> None:
        self.job = job
        self.session: Session | None = None
        self.prompt_token_ids: list[list[int]] = []
        """Of each prompt; known once started."""
        self._gateway: Gateway | None = gateway
        self._metrics = metrics
        self._activity = gateway.activity
        self._span = span
        self._timeout = timeout
        self.arrival = time.monotonic()
        self._first_token_time: float | None = None
        self._num_output_tokens = 0
        self._deadline = asyncio.get_running_loop().time() + timeout
        self._is_cut = False
        self._waiting: asyncio.Timeout | None = None
        self._opened: OpenedBatch | None = None
        self._first: Increment | None = None
        self._last_times: dict[int, float] = {}

    @property
    def request_id(self) -> str:
        assert self._opened is not None
        return self._opened.stream.request_id

    def described(self, tenant: Tenant) -> LiveRequest | None:
        """For the tenant whose it is; None: it has not reached the engine yet."""
        if self._opened is None:
            return None
        first = self._first_token_time
        return LiveRequest(
            request_id=tenant.shown_id(self.request_id),
            state="waiting" if first is None else "running",
            seconds=time.monotonic() - self.arrival,
            ttft=None if first is None else first - self.arrival,
            num_answers=self.job.num_answers,
            prompt_tokens=sum(map(len, self.prompt_token_ids)),
            output_tokens=self._num_output_tokens,
            program_id=self.job.tag.program_id,
            branch=self.job.tag.branch,
            step=self.job.tag.step,
            priority=self.job.priority,
        )

    async def start(self, engine: EngineFace) -> None:
        """Submits; returns with the first increment."""
        job = self.job
        self._opened = await engine.astream_batch(
            job.prompts,
            job.params,
            messages=job.messages,
            chat_options=job.chat_options,
            tag=job.tag,
            priority=job.priority,
            cache=CacheUse(job.cache_salt, None if self.session is None else self.session.pin()),
            request_id=job.request_id,
        )
        self.prompt_token_ids = self._opened.prompt_token_ids
        self._span.started(self.request_id)
        self._first = await self._next()

    def cut_after(self, seconds: float) -> None:
        """Gives the answers this much time at most."""
        deadline = asyncio.get_running_loop().time() + seconds
        if deadline < self._deadline:
            self._deadline, self._is_cut = deadline, True
            if self._waiting is not None and not self._waiting.expired():
                self._waiting.reschedule(deadline)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Increment:
        """Raises HttpError when the time is over, RametError where the engine failed."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return await self._next()

    async def aclose(self) -> None:
        """Aborts what still runs. Closing twice is allowed."""
        gateway, self._gateway = self._gateway, None
        if gateway is None:
            return
        gateway.leave(self, self.job.num_answers)
        self._span.end()
        if self._opened is not None:
            await self._opened.stream.aclose()

    async def _next(self) -> Increment:
        assert self._opened is not None
        try:
            async with asyncio.timeout_at(self._deadline) as self._waiting:
                # A failed or aborted end has nothing to say: the stream raises its error next.
                while True:
                    increment = await anext(self._opened.stream)
                    if increment.finish_reason not in (FinishReason.ABORT, FinishReason.ERROR):
                        break
        except TimeoutError:
            late = cut_by_shutdown() if self._is_cut else deadline_exceeded(self._timeout)
            self._span.failed(late)
            raise late from None
        except RametError as error:
            self._span.failed(error)
            raise
        finally:
            self._waiting = None
        self._measure(increment)
        return increment

    def _measure(self, increment: Increment) -> None:
        now = time.monotonic()
        last = self._last_times.get(increment.index)
        if increment.token_ids:
            if last is None:
                self._metrics.first_token(now - self.arrival)
                self._activity.first_token(now - self.arrival)
                self._span.first_token(now - self.arrival)
                self._first_token_time = self._first_token_time or now
            else:
                self._metrics.next_token(now - last)
            self._num_output_tokens += len(increment.token_ids)
            self._activity.tokens(len(increment.token_ids))
            self._last_times[increment.index] = now
        if increment.finish_reason is not None and increment.stats is not None:
            seconds = now - self.arrival
            self._metrics.finished(increment.finish_reason, increment.stats, seconds)
            self._activity.finished(increment.stats)
            self._span.finished(increment.finish_reason, increment.stats)
            if self._gateway is not None:
                self._gateway.took(seconds)
