"""Runs of whole programs: who they belong to, how many there are at once, and their way to an end."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from ramet.runtime.engine import EngineFace
from ramet.runtime.protocol import programs
from ramet.runtime.server.errors import (
    HttpError,
    bad_request,
    cut_by_shutdown,
    deadline_exceeded,
    draining,
    internal_error,
    too_many_programs,
)
from ramet.runtime.server.gateway import Gateway
from ramet.runtime.server.kept_programs import KEPT_SECONDS, KeptPrograms
from ramet.runtime.server.program_checks import ConstraintsAhead
from ramet.runtime.server.program_engine import GatewayEngine
from ramet.runtime.server.program_record import ProgramFeed, ProgramRecord, Reader, replayed
from ramet.runtime.server.tenants import Tenant
from ramet.runtime.server.tracing import ProgramSpan

logger = logging.getLogger(__name__)

DEFAULT_RUNNER = "ramet.lang.serving:ProgramRunner"
"""Who carries programs out: the language, which stands above the server and is handed to it by name, as an
engine's builder is handed to the engine's process."""
RETRY_SECONDS = 1
KEEP_ALIVE_SECONDS = 15.0
"""A program that waits for its client's tools sends nothing; a client, or a proxy between, would take it to be
dead."""

Tell = Callable[[programs.ProgramEvent], None]


class RunningProgram(Protocol):
    """One run, on the server's event loop."""

    async def run(self) -> programs.ProgramDone:
        """To its end. Cancelling it ends everything that runs."""
        ...

    def cancel(self, reason: str) -> None: ...

    def answer_tools(self, results: programs.ToolResults) -> None:
        """Raises InvalidRequestError where nothing waits for these results."""
        ...


class Runner(Protocol):
    """What carries programs out; made of an engine, whose model it is for."""

    def start(
        self,
        program: programs.WireProgram,
        engine: Any,
        tell: Tell,
        *,
        program_id: str,
        cache_salt: str = "",
        tells_calls: bool = False,
    ) -> RunningProgram:
        """Raises InvalidRequestError where the model cannot do what the program asks."""
        ...


def load_runner(name: str) -> Callable[[EngineFace], Runner]:
    """What ``module:name`` names."""
    module, _, attribute = name.partition(":")
    make: Callable[[EngineFace], Runner] = getattr(import_module(module), attribute)
    return make


@dataclass(slots=True, eq=False)
class ProgramRun:
    """A run that is carried out, or whose end its client has not read yet."""

    id: str
    tenant: str
    program: RunningProgram
    feed: ProgramFeed
    span: ProgramSpan
    background: bool = False
    tells_calls: bool = False
    task: "asyncio.Task[None] | None" = None
    limit: asyncio.Timeout | None = None
    """While it is carried out."""
    is_cut: bool = False
    """By the server's end."""
    has_ended: bool = False

    def end(self, end: programs.ProgramDone | HttpError) -> None:
        self.has_ended = True
        self.feed.end(end)
        self.span.end(self.feed.record.status)


class ProgramRuns:
    """The programs of one server. Lives on one event loop.

    Invariant: ``_live`` has the runs that are carried out, or whose events are read by the client that sent
    them; at most ``limit``.
    """

    def __init__(
        self,
        engine: EngineFace,
        gateway: Gateway,
        *,
        limit: int,
        timeout: float,
        model: str | None = None,
        runner: str = DEFAULT_RUNNER,
        keep_alive: float = KEEP_ALIVE_SECONDS,
        kept_seconds: float = KEPT_SECONDS,
    ) -> None:
        """``timeout``: seconds that a program may take. ``model``: what it is called; None: the engine's name.
        ``keep_alive``: seconds without an event after which a reader is told that it still runs.
        ``kept_seconds``: for which what ran in the background can be looked at after its end."""
        self._engine = engine
        self._gateway = gateway
        self._limit = limit
        self._timeout = timeout
        self._model = model or engine.info.model
        self._runner_name = runner
        self._live: dict[tuple[str, str], ProgramRun] = {}
        self._num_started = 0
        self._keep_alive = keep_alive
        self._kept = KeptPrograms(kept_seconds)
        self.constraints = ConstraintsAhead(engine, gateway)
        self._runner: Runner | None = None
        gateway.when_draining(self._cut_after)

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def num_started(self) -> int:
        return self._num_started

    async def prepare(self) -> None:
        """Before the first ``open``: loading the language takes a moment, for which nobody else has to wait."""
        if self._runner is None:
            self._runner = await asyncio.to_thread(lambda: load_runner(self._runner_name)(self._engine))

    def open(self, request: programs.ProgramRequest, tenant: Tenant) -> ProgramRun:
        """Begins with it.

        Raises:
            HttpError: too many programs run (429), or the server shuts down (503).
            InvalidRequestError: the model cannot do what the program asks.
        """
        if self._gateway.is_draining:
            raise draining()
        if len(self._live) >= self._limit:
            raise too_many_programs(self._limit, RETRY_SECONDS)
        program_id = f"prog_{secrets.token_hex(12)}"
        span = self._gateway.tracing.program(program_id, request.program.name)
        # What a program begins is part of its span, and so is what that begins.
        with span.inside():
            try:
                run = self._started(request, tenant, program_id, span)
            except BaseException:
                span.end("failed")
                raise
            self._live[tenant.name, program_id] = run
            self._num_started += 1
            seconds = min(self._timeout, request.timeout or self._timeout)
            run.task = asyncio.create_task(self._carry_out(run, seconds))
        return run

    def follow(self, program_id: str, tenant: Tenant) -> tuple[Reader, ProgramRun | None]:
        """A new reader, who is told what was told so far, and the rest as well where it still runs.

        Raises:
            HttpError: the tenant has no such run (404), or its calls are told to the client alone that sent it.
        """
        if (kept := self._kept.get(tenant.name, program_id)) is not None:
            return replayed(kept), None
        run = self._run(program_id, tenant)
        if run.tells_calls:
            raise bad_request(
                "this program's events are those of its calls, which its client alone is told of; ask for its "
                "state, without stream",
                param="stream",
                code="invalid_value",
            )
        return run.feed.follow(), run

    def record(self, program_id: str, tenant: Tenant) -> ProgramRecord:
        """Of one that runs, or is kept. Raises HttpError (404) where the tenant has no such one."""
        kept = self._kept.get(tenant.name, program_id)
        return self._run(program_id, tenant).feed.record if kept is None else kept

    def of(self, tenant: Tenant) -> list[ProgramRecord]:
        """The tenant's own: those that are kept, and then those that run, each the oldest first."""
        running = [run.feed.record for run in self._live.values() if run.tenant == tenant.name]
        return [*self._kept.of(tenant.name), *running]

    async def close(self, run: ProgramRun) -> None:
        """Nobody wants it any more: what runs is ended. Closing twice is allowed."""
        if self._live.pop((run.tenant, run.id), None) is not None and run.task is not None:
            # A task that has not begun would be cancelled without the program ever hearing of it.
            run.program.cancel("its client has left")
            run.task.cancel()
            await asyncio.gather(run.task, return_exceptions=True)
            if not run.has_ended:
                run.end(programs.ProgramDone(id=run.id, status="cancelled"))

    async def aclose(self) -> None:
        """Ends all that run. Closing twice is allowed."""
        for run in list(self._live.values()):
            await self.close(run)

    def cancel(self, program_id: str, tenant: Tenant) -> bool:
        """Ends one that runs, or drops what is kept of one that has ended; whether it ran.

        Raises HttpError (404) where the tenant has no such one.
        """
        if self._kept.drop(tenant.name, program_id):
            return False
        self._run(program_id, tenant).program.cancel("its client has cancelled it")
        return True

    def answer_tools(self, program_id: str, tenant: Tenant, results: programs.ToolResults) -> None:
        """Raises HttpError (404) where the tenant has no such run, or (409) one that has ended,
        InvalidRequestError for other results."""
        kept = self._kept.get(tenant.name, program_id)
        run = None if kept is not None else self._run(program_id, tenant)
        if run is None or run.has_ended:
            raise bad_request(
                f"program {program_id!r} has ended, and waits for no tool results",
                code="program_ended",
                status=409,
            )
        run.program.answer_tools(results)
        run.feed.record.answered(results.variable)

    async def events(self, reader: Reader) -> AsyncIterator[programs.ProgramEvent | None]:
        """To the ProgramDone; None where there was none for a while. Raises HttpError where the time is over or
        the server shuts down."""
        while True:
            try:
                async with asyncio.timeout(self._keep_alive):
                    event = await reader.get()
            except TimeoutError:
                yield None
                continue
            if isinstance(event, HttpError):
                raise event
            yield event
            if isinstance(event, programs.ProgramDone):
                return

    def _started(
        self, request: programs.ProgramRequest, tenant: Tenant, program_id: str, span: ProgramSpan
    ) -> ProgramRun:
        assert self._runner is not None
        record = ProgramRecord(
            program_id,
            request.program.name,
            self._model,
            background=request.background,
            created=int(time.time()),
        )
        feed = ProgramFeed(record)
        program = self._runner.start(
            request.program,
            GatewayEngine(self._engine, self._gateway, tenant),
            feed.tell,
            program_id=program_id,
            cache_salt=request.cache_salt,
            tells_calls=request.events == "calls",
        )
        return ProgramRun(
            program_id,
            tenant.name,
            program,
            feed,
            span,
            background=request.background,
            tells_calls=request.events == "calls",
        )

    def _run(self, program_id: str, tenant: Tenant) -> ProgramRun:
        run = self._live.get((tenant.name, program_id))
        if run is None:
            raise bad_request(
                f"there is no program {program_id[:80]!r}; one is there while its client reads its events, or, "
                f"in the background, until {self._kept.seconds:g} s after its end",
                code="not_found",
                status=404,
            )
        return run

    def _cut_after(self, seconds: float) -> None:
        """The server shuts down: what runs has this much time at most."""
        for run in self._live.values():
            if run.limit is None or run.limit.expired():
                continue
            before = run.limit.when()
            # What one comes to that nobody reads ends with this process, before anybody could look at it.
            is_lost = run.background and not run.feed.is_read
            deadline = asyncio.get_running_loop().time() + (0.0 if is_lost else seconds)
            if before is not None and deadline < before:
                run.is_cut = True
                run.limit.reschedule(deadline)

    async def _carry_out(self, run: ProgramRun, seconds: float) -> None:
        done: programs.ProgramDone | HttpError
        try:
            async with asyncio.timeout(seconds) as run.limit:
                done = await run.program.run()
        except TimeoutError:
            done = cut_by_shutdown() if run.is_cut else deadline_exceeded(seconds)
        except Exception:
            # The boundary to the language: whoever reads has to be told that this is not the program's end.
            logger.exception("program %s failed", run.id)
            done = internal_error()
        finally:
            run.limit = None
        if self._gateway.is_draining:
            done = _told_of_shutdown(done)
        run.end(done)
        if run.background and self._live.pop((run.tenant, run.id), None) is not None:
            self._kept.keep(run.tenant, run.id, run.feed.record)


def _told_of_shutdown(done: "programs.ProgramDone | HttpError") -> "programs.ProgramDone | HttpError":
    """A program that failed while the server shut down was cut by that."""
    if isinstance(done, programs.ProgramDone) and done.status == "failed":
        return cut_by_shutdown()
    return done
