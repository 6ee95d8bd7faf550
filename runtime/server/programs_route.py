"""/v1/programs: a compiled program sent whole, run here, its events streamed, its tools called back."""

import logging
import math
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ramet.runtime.protocol import InvalidRequestError, RametError, programs
from ramet.runtime.protocol.wire import ErrorDetail
from ramet.runtime.server.body import convert
from ramet.runtime.server.errors import HttpError, bad_request, internal_error, native_error
from ramet.runtime.server.program_checks import check_calls
from ramet.runtime.server.program_record import Reader
from ramet.runtime.server.program_runs import ProgramRun, ProgramRuns
from ramet.runtime.server.responding import CLIENT_GONE, OPENAI_FRAMING, while_connected
from ramet.runtime.server.state import ServerState, json_response, state_of, tenant_of

logger = logging.getLogger(__name__)


async def run_program(request: Request) -> Response:
    """POST /v1/programs"""
    _check_query(request)
    state = state_of(request)
    asked = convert(await state.read(request), programs.ProgramRequest)
    state.check_model(asked.model)
    _check(state, asked)
    await state.program_runs.prepare()
    try:
        if asked.events == "variables":
            # A client that has the language is told of each call, as if it had made it by itself.
            check_calls(asked.program, state.engine.info)
            await state.program_runs.constraints.check(asked.program, tenant_of(request))
        run = state.program_runs.open(asked, tenant_of(request))
    except RametError as error:
        raise native_error(error) from error
    started = programs.ProgramStarted(id=run.id, model=state.model)
    if asked.stream:
        return ProgramStream(state.program_runs, started, run.feed.follow(), run, ends_it=not run.background)
    if asked.background:
        return json_response(run.feed.record.state())
    try:
        whole = _folded(state.program_runs, run.feed.follow(), started)
        return json_response(await while_connected(request, whole))
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)
    finally:
        await state.program_runs.close(run)


async def list_programs(request: Request) -> Response:
    """GET /v1/programs: the key's own."""
    _check_query(request)
    found = state_of(request).program_runs.of(tenant_of(request))
    return json_response(programs.ProgramList(data=[one.summary() for one in found]))


async def get_program(request: Request) -> Response:
    """GET /v1/programs/{program_id}: what it has come to so far, or with ``stream=true`` its events."""
    wants_stream = _wants_stream(request)
    runs, tenant = state_of(request).program_runs, tenant_of(request)
    program_id = request.path_params["program_id"]
    record = runs.record(program_id, tenant)
    if not wants_stream or request.method == "HEAD":
        return json_response(record.state())
    reader, run = runs.follow(program_id, tenant)
    started = programs.ProgramStarted(id=program_id, model=state_of(request).model)
    return ProgramStream(runs, started, reader, run, ends_it=False)


async def take_tool_results(request: Request) -> Response:
    """POST /v1/programs/{program_id}/tool_results"""
    _check_query(request)
    state = state_of(request)
    results = convert(await state.read(request), programs.ToolResults)
    program_id = request.path_params["program_id"]
    try:
        for result in results.results:
            state.prompt_size.check(result.content, "results")
        state.program_runs.answer_tools(program_id, tenant_of(request), results)
    except RametError as error:
        raise native_error(error) from error
    return json_response(programs.ToolResultsTaken(id=program_id, variable=results.variable))


async def cancel_program(request: Request) -> Response:
    """DELETE /v1/programs/{program_id}"""
    _check_query(request)
    program_id = request.path_params["program_id"]
    ran = state_of(request).program_runs.cancel(program_id, tenant_of(request))
    return json_response(programs.ProgramCancelled(id=program_id, cancelled=ran, deleted=not ran))


class ProgramStream(StreamingResponse):
    """Server-sent events: an event each, and the end that says that they are whole."""

    def __init__(
        self,
        runs: ProgramRuns,
        started: programs.ProgramStarted,
        reader: Reader,
        run: ProgramRun | None,
        *,
        ends_it: bool,
    ) -> None:
        """``run``: None where it has ended. ``ends_it``: leaving the stream ends the run."""
        self._runs = runs
        self._reader = reader
        self._run = run
        self._ends_it = ends_it
        super().__init__(
            _framed(runs, reader, started),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Whatever ended the response, and even if it never began.
            if self._run is not None:
                self._run.feed.leave(self._reader)
                if self._ends_it:
                    await self._runs.close(self._run)


async def _framed(runs: ProgramRuns, reader: Reader, started: programs.ProgramStarted) -> AsyncIterator[bytes]:
    framing = OPENAI_FRAMING
    yield framing.frame(msgspec.json.encode(started))
    try:
        async for event in runs.events(reader):
            # A line that begins with a colon is a comment, which readers of events skip.
            yield b": running\n\n" if event is None else framing.frame(msgspec.json.encode(event))
    except HttpError as error:
        yield framing.error(error)
        return
    except Exception:
        # The process boundary: the client has to be told that this is not the program's end.
        logger.exception("a program's stream failed")
        yield framing.error(internal_error())
        return
    yield framing.end()


async def _folded(
    runs: ProgramRuns, reader: Reader, started: programs.ProgramStarted
) -> programs.ProgramResult:
    variables: dict[str, programs.VariableDone] = {}
    failures: dict[str, ErrorDetail] = {}
    async for event in runs.events(reader):
        match event:
            case programs.VariableDone(variable=name):
                variables[name] = event
            case programs.VariableFailed(variable=name, error=error):
                failures[name] = error
            case programs.ProgramDone(status=status, error=reason):
                return programs.ProgramResult(
                    id=started.id,
                    model=started.model,
                    status=status,
                    variables=variables,
                    failures=failures,
                    error=reason,
                )
    raise AssertionError("a run ends with its ProgramDone")


def _wants_stream(request: Request) -> bool:
    """Raises HttpError (400) for a query that is none."""
    _check_query(request, "stream")
    value = request.query_params.get("stream", "false")
    if value not in ("true", "false"):
        raise bad_request(
            f"stream is {value[:80]!r}; it must be true or false", param="stream", code="invalid_value"
        )
    return value == "true"


def _check_query(request: Request, *known: str) -> None:
    """Raises HttpError (400) for a parameter that the route does not have."""
    for name in request.query_params:
        if name not in known:
            there_are = f"; {', '.join(known)} is one" if known else ", this route takes none in its query"
            raise bad_request(
                f"there is no parameter {name[:100]!r}{there_are}",
                param=name[:100],
                code="unknown_parameter",
            )


def _check(state: ServerState, asked: programs.ProgramRequest) -> None:
    """Raises HttpError for what can be known to be of no use before anything of it is run."""
    try:
        if asked.timeout is not None and not 0 < asked.timeout < math.inf:
            raise InvalidRequestError(
                f"timeout is {asked.timeout}; it must be a number of seconds above 0", field="timeout"
            )
        operations = [one for branch in asked.program.branches for one in branch.operations]
        if asked.events == "calls" and (asked.background or not asked.stream):
            raise InvalidRequestError(
                "events is 'calls', and calls are told as they come, to the client that sent the program; "
                + ("leave background out" if asked.background else "set stream to true"),
                field="events",
            )
        has_tools = any(isinstance(one, programs.Gen) and one.tools is not None for one in operations)
        if has_tools and not (asked.stream or asked.background):
            raise InvalidRequestError(
                "the program calls tools of yours, and you are told of the calls by events; set stream to "
                "true, or background to true and ask for its state",
                field="stream",
            )
        for branch in asked.program.branches:
            said = [one.text for one in branch.operations if isinstance(one, programs.SayText)]
            state.prompt_size.check(said, "program")
        for one in operations:
            if isinstance(one, programs.Gen):
                state.gateway.check_size(one.params.n)
            elif isinstance(one, programs.Select):
                state.gateway.check_size(len(one.options))
    except RametError as error:
        raise native_error(error) from error
