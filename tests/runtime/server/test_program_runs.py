"""Runs of programs, with a runner that does what it is told."""

import asyncio

import pytest

from ramet.runtime.protocol import InvalidRequestError, programs
from ramet.runtime.server import ServerConfig
from ramet.runtime.server.errors import HttpError
from ramet.runtime.server.gateway import Gateway
from ramet.runtime.server.metrics import ServerMetrics
from ramet.runtime.server.program_runs import DEFAULT_RUNNER, ProgramRun, ProgramRuns, Tell, load_runner
from ramet.runtime.server.tenants import Tenant
from tests.runtime.server.speaking_server import SECONDS, open_engine, spec

PROGRAM = programs.ProgramRequest(
    program=programs.WireProgram(version=1, branches=[programs.ProgramBranch(name="0", operations=[])])
)


class Program:
    """Ends when it is told to, or does not."""

    def __init__(self, tell: Tell, error: Exception | None) -> None:
        self.tell = tell
        self.error = error
        self.ended = asyncio.Event()
        self.was_cancelled = False

    async def run(self) -> programs.ProgramDone:
        if self.error is not None:
            raise self.error
        await self.ended.wait()
        return programs.ProgramDone(id="x", status="cancelled")

    def cancel(self, reason: str) -> None:
        self.was_cancelled = True
        self.ended.set()

    def answer_tools(self, results: programs.ToolResults) -> None:
        raise InvalidRequestError("none", field="variable")


class Runner:
    started: list[Program]
    error: Exception | None = None

    def __init__(self, engine: object) -> None:
        Runner.started = []

    def start(self, program: object, engine: object, tell: Tell, **options: object) -> Program:
        one = Program(tell, Runner.error)
        Runner.started.append(one)
        return one


NAME = f"{__name__}:Runner"


async def told(runs: ProgramRuns, run: ProgramRun) -> list[programs.ProgramEvent | None]:
    async with asyncio.timeout(SECONDS):
        return [event async for event in runs.events(run.feed.follow())]


def opened(
    body: object,
    *,
    limit: int = 2,
    timeout: float = SECONDS,
    error: Exception | None = None,
    drain_timeout: float = 30.0,
    keep_alive: float = SECONDS,
    kept_seconds: float = SECONDS,
) -> None:
    async def main() -> None:
        Runner.error = error
        with open_engine(spec()) as engine:
            config = ServerConfig(drain_timeout=drain_timeout)
            gateway = Gateway(engine, config, ServerMetrics("m"), width=4)
            runs = ProgramRuns(
                engine,
                gateway,
                limit=limit,
                timeout=timeout,
                runner=NAME,
                keep_alive=keep_alive,
                kept_seconds=kept_seconds,
            )
            await runs.prepare()
            await runs.prepare()
            await body(runs, gateway)  # type: ignore[operator]
            assert runs.num_live == 0

    asyncio.run(main())


def test_the_runner_is_the_language() -> None:
    assert load_runner(DEFAULT_RUNNER).__name__ == "ProgramRunner"


def test_there_are_so_many_at_most() -> None:
    async def body(runs: ProgramRuns, gateway: Gateway) -> None:
        first, second = runs.open(PROGRAM, Tenant("a")), runs.open(PROGRAM, Tenant("b"))
        with pytest.raises(HttpError) as refused:
            runs.open(PROGRAM, Tenant("a"))
        assert (refused.value.status, refused.value.detail.code) == (429, "too_many_programs")
        assert "--max-programs" in refused.value.detail.message
        await runs.close(first)
        await runs.close(first)
        assert Runner.started[0].was_cancelled
        await runs.close(runs.open(PROGRAM, Tenant("a")))
        await runs.close(second)
        assert runs.num_started == 3

    opened(body)


def test_a_run_is_its_tenants_own() -> None:
    async def body(runs: ProgramRuns, gateway: Gateway) -> None:
        run = runs.open(PROGRAM, Tenant("a"))
        results = programs.ToolResults(variable="x", results=[])
        for program_id, tenant in ((run.id, Tenant("b")), ("prog_", Tenant("a"))):
            with pytest.raises(HttpError) as refused:
                runs.cancel(program_id, tenant)
            assert refused.value.status == 404
        with pytest.raises(HttpError):
            runs.answer_tools(run.id, Tenant("b"), results)
        with pytest.raises(InvalidRequestError):
            runs.answer_tools(run.id, Tenant("a"), results)
        runs.cancel(run.id, Tenant("a"))
        assert [type(event).__name__ for event in await told(runs, run)] == ["ProgramDone"]
        await runs.close(run)

    opened(body)


def test_time_that_is_over_and_faults_are_told() -> None:
    async def late(runs: ProgramRuns, gateway: Gateway) -> None:
        run = runs.open(PROGRAM, Tenant())
        with pytest.raises(HttpError) as refused:
            await told(runs, run)
        assert refused.value.status == 504
        await runs.close(run)

    async def broken(runs: ProgramRuns, gateway: Gateway) -> None:
        run = runs.open(PROGRAM, Tenant())
        with pytest.raises(HttpError) as refused:
            await told(runs, run)
        assert refused.value.status == 500
        await runs.close(run)

    opened(late, timeout=0.01)
    opened(broken, error=KeyError("ours"))


def test_a_run_that_has_nothing_to_tell_says_that_it_runs() -> None:
    async def body(runs: ProgramRuns, gateway: Gateway) -> None:
        run = runs.open(PROGRAM, Tenant())
        events = runs.events(run.feed.follow())
        async with asyncio.timeout(SECONDS):
            assert await anext(events) is None
            assert await anext(events) is None
            runs.cancel(run.id, Tenant())
            seen = [event async for event in events if event is not None]
        assert [type(event).__name__ for event in seen] == ["ProgramDone"]
        await runs.close(run)

    opened(body, keep_alive=0.01)


def test_what_waits_when_the_server_shuts_down_is_cut() -> None:
    async def body(runs: ProgramRuns, gateway: Gateway) -> None:
        run = runs.open(PROGRAM, Tenant())
        await asyncio.sleep(0)
        gateway.start_draining()
        with pytest.raises(HttpError) as refused:
            await told(runs, run)
        assert refused.value.detail.code == "draining"
        await runs.close(run)

    opened(body, drain_timeout=0.01)


def test_none_begins_while_the_server_shuts_down() -> None:
    async def body(runs: ProgramRuns, gateway: Gateway) -> None:
        gateway.start_draining()
        with pytest.raises(HttpError) as refused:
            runs.open(PROGRAM, Tenant())
        assert refused.value.status == 503

    opened(body)


BACKGROUND = programs.ProgramRequest(program=PROGRAM.program, background=True, stream=False)


async def settled(run: ProgramRun) -> None:
    assert run.task is not None
    await asyncio.wait_for(asyncio.wait((run.task,)), SECONDS)


def test_one_in_the_background_is_kept_and_makes_room_for_others() -> None:
    async def body(runs: ProgramRuns, gateway: Gateway) -> None:
        alpha, beta = Tenant("a"), Tenant("b")
        run = runs.open(BACKGROUND, alpha)
        Runner.started[0].tell(programs.VariableDelta(variable="x", text="grown"))
        assert runs.record(run.id, alpha).state().partial == {"x": "grown"}
        assert runs.cancel(run.id, alpha)
        await settled(run)
        assert runs.num_live == 0
        assert runs.record(run.id, alpha).status == "cancelled"
        assert [one.summary().id for one in runs.of(alpha)] == [run.id]
        assert runs.of(beta) == []
        for ask in (runs.record, runs.follow, runs.cancel):
            with pytest.raises(HttpError) as refused:
                ask(run.id, beta)
            assert refused.value.status == 404
        reader, live = runs.follow(run.id, alpha)
        assert live is None
        kinds = [type(event).__name__ async for event in runs.events(reader)]
        assert kinds == ["VariableDelta", "ProgramDone"]
        assert not runs.cancel(run.id, alpha)
        assert runs.of(alpha) == []

    opened(body, limit=1)


def test_what_is_kept_goes_after_a_while() -> None:
    async def body(runs: ProgramRuns, gateway: Gateway) -> None:
        run = runs.open(BACKGROUND, Tenant())
        runs.cancel(run.id, Tenant())
        await settled(run)
        async with asyncio.timeout(SECONDS):
            while runs.of(Tenant()):
                await asyncio.sleep(0.01)

    opened(body, kept_seconds=0.02)


def test_a_reader_that_leaves_ends_nothing() -> None:
    async def body(runs: ProgramRuns, gateway: Gateway) -> None:
        run = runs.open(BACKGROUND, Tenant())
        reader, live = runs.follow(run.id, Tenant())
        assert live is run
        was_read = run.feed.is_read
        run.feed.leave(reader)
        run.feed.leave(reader)
        assert (was_read, run.feed.is_read) == (True, False)
        assert run.feed.record.state().ended_at is None
        await runs.aclose()
        await runs.aclose()
        assert run.feed.record.status == "cancelled"

    opened(body)


def test_what_nobody_reads_is_cut_at_once_when_the_server_shuts_down() -> None:
    async def body(runs: ProgramRuns, gateway: Gateway) -> None:
        read, unread = runs.open(BACKGROUND, Tenant()), runs.open(BACKGROUND, Tenant())
        read.feed.follow()
        await asyncio.sleep(0)
        gateway.start_draining()
        await settled(unread)
        state = unread.feed.record.state()
        assert state.status == "failed"
        assert state.error is not None
        assert state.error.code == "draining"
        assert read.feed.record.status == "running"
        await runs.close(read)

    opened(body)
