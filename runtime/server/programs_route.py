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
from ramet.runtime.server.errors import HttpError, internal_error, native_error
from ramet.runtime.server.program_runs import ProgramRun, ProgramRuns
from ramet.runtime.server.responding import CLIENT_GONE, OPENAI_FRAMING, while_connected
from ramet.runtime.server.state import ServerState, json_response, state_of, tenant_of

logger = logging.getLogger(__name__)


async def run_program(request: Request) -> Response:
    """POST /v1/programs"""
    state = state_of(request)
    asked = convert(await state.read(request), programs.ProgramRequest)
    state.check_model(asked.model)
    _check(state, asked)
    await state.program_runs.prepare()
    try:
        run = state.program_runs.open(asked, tenant_of(request))
    except RametError as error:
        raise native_error(error) from error
    started = programs.ProgramStarted(id=run.id, model=state.model)
    if asked.stream:
        return ProgramStream(state.program_runs, run, started)
    try:
        return json_response(await while_connected(request, _folded(state.program_runs, run, started)))
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)
    finally:
        await state.program_runs.close(run)


async def take_tool_results(request: Request) -> Response:
    """POST /v1/programs/{program_id}/tool_results"""
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
    program_id = request.path_params["program_id"]
    state_of(request).program_runs.cancel(program_id, tenant_of(request))
    return json_response(programs.ProgramCancelled(id=program_id))


class ProgramStream(StreamingResponse):
    """Server-sent events: an event each, and the end that says that they are whole. Leaving it ends the run."""

    def __init__(self, runs: ProgramRuns, run: ProgramRun, started: programs.ProgramStarted) -> None:
        self._runs = runs
        self._run = run
        super().__init__(
            _framed(runs, run, started),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Whatever ended the response, and even if it never began.
            await self._runs.close(self._run)


async def _framed(runs: ProgramRuns, run: ProgramRun, started: programs.ProgramStarted) -> AsyncIterator[bytes]:
    framing = OPENAI_FRAMING
    yield framing.frame(msgspec.json.encode(started))
    try:
        async for event in runs.events(run):
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
    runs: ProgramRuns, run: ProgramRun, started: programs.ProgramStarted
) -> programs.ProgramResult:
    variables: dict[str, programs.VariableDone] = {}
    failures: dict[str, ErrorDetail] = {}
    async for event in runs.events(run):
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


def _check(state: ServerState, asked: programs.ProgramRequest) -> None:
    """Raises HttpError for what can be known to be of no use before anything of it is run."""
    try:
        if asked.timeout is not None and not 0 < asked.timeout < math.inf:
            raise InvalidRequestError(
                f"timeout is {asked.timeout}; it must be a number of seconds above 0", field="timeout"
            )
        operations = [one for branch in asked.program.branches for one in branch.operations]
        if not asked.stream:
            if asked.events == "calls":
                raise InvalidRequestError(
                    "events is 'calls', and calls are told as they come; set stream to true", field="events"
                )
            if any(isinstance(one, programs.Gen) and one.tools is not None for one in operations):
                raise InvalidRequestError(
                    "the program calls tools of yours, and you are told of the calls by events; set stream to "
                    "true",
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
