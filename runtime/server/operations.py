"""Routes for those who run the server: is it well, what does it serve, what is it doing."""

import asyncio
from importlib.metadata import version

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.engine import EngineStats
from ramet.runtime.protocol import EngineDeadError, EngineRestartingError, RametError, programs
from ramet.runtime.protocol.wire import FlushCacheResponse, ServedModel
from ramet.runtime.server.body import convert
from ramet.runtime.server.errors import HttpError, draining, model_not_found, native_error
from ramet.runtime.server.state import ServerState, json_response, state_of, tenant_of

STATS_SECONDS = 5.0
"""How long the engine may take to finish its step and answer; then /metrics comes without its numbers."""


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which request to end: the ``request_id`` that it was sent with, or that its answer has."""

    request_id: str


async def health(request: Request) -> Response:
    """GET /health: 200 while requests are taken, also while a dead engine is started again; 503 once it is gone
    for good. Never waits for a step.
    """
    state = state_of(request)
    try:
        state.engine.check_alive()
    except EngineRestartingError:
        return json_response({"status": "restarting"})
    except EngineDeadError as error:
        raise native_error(error) from error
    return json_response({"status": "ok"})


async def ready(request: Request) -> Response:
    """GET /ready: 200 while requests are computed; 503 while the server drains or there is no engine."""
    state = state_of(request)
    if state.gateway.is_draining:
        raise draining()
    try:
        state.engine.check_alive()
    except EngineDeadError as error:
        raise native_error(error) from error
    return json_response({"status": "ok"})


async def models(request: Request) -> Response:
    """GET /v1/models"""
    state = state_of(request)
    return json_response({"object": "list", "data": [_model(state, name) for name in state.model_names]})


async def model(request: Request) -> Response:
    """GET /v1/models/{model}; with nothing behind the slash, all of them."""
    state = state_of(request)
    name = request.path_params["model"]
    if not name:
        return await models(request)
    if name not in state.model_names:
        raise model_not_found(name, state.model)
    return json_response(_model(state, name))


def _model(state: ServerState, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": state.started,
        "owned_by": "ramet",
        "root": state.engine.info.model,
        "parent": None,
        "max_model_len": state.engine.info.context_length,
    }


async def model_info(request: Request) -> Response:
    """GET /model_info"""
    state = state_of(request)
    info = state.engine.info
    return json_response(
        ServedModel(
            model=state.model,
            vocab_size=info.vocab_size,
            context_length=info.context_length,
            kv_tokens=info.kv_tokens,
            grammars=info.grammars,
            version=version("ramet"),
            programs=programs.PROGRAM_VERSION if state.config.max_programs else 0,
        )
    )


async def metrics(request: Request) -> Response:
    """GET /metrics"""
    state = state_of(request)
    stats: EngineStats | None = None
    try:
        stats = await _engine_stats(state)
    except (RametError, TimeoutError):
        # An engine that is gone, or in a long step, has no numbers; the server's own are there all the same.
        stats = None
    state.metrics.set_engine(stats)
    return Response(state.metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def stats(request: Request) -> Response:
    """GET /stats"""
    state = state_of(request)
    try:
        counters = await _engine_stats(state)
    except RametError as error:
        raise native_error(error) from error
    except TimeoutError:
        raise _busy() from None
    return json_response(
        {
            "model": state.model,
            "engine": {**msgspec.to_builtins(counters), "hit_rate": counters.hit_rate},
            "server": {
                "live_answers": state.gateway.live,
                "sessions": len(state.gateway.sessions),
                "live_programs": state.program_runs.num_live,
                "started_programs": state.program_runs.num_started,
                "draining": state.gateway.is_draining,
                "started": state.started,
            },
            "info": msgspec.to_builtins(state.engine.info),
        }
    )


async def flush_cache(request: Request) -> Response:
    """POST /flush_cache: drops every cached prefix that no running request uses."""
    try:
        num_tokens = await asyncio.to_thread(state_of(request).engine.flush_cache)
    except RametError as error:
        raise native_error(error) from error
    return json_response(FlushCacheResponse(num_tokens=num_tokens))


async def abort(request: Request) -> Response:
    """POST /abort: ends a running request of the same API key; an unknown or finished one is ignored."""
    state = state_of(request)
    asked = convert(await state.read(request), AbortRequest)
    try:
        request_id = tenant_of(request).request_id(asked.request_id)
    except RametError as error:
        raise native_error(error) from error
    state.gateway.abort(request_id)
    return json_response({"request_id": asked.request_id})


async def _engine_stats(state: ServerState) -> EngineStats:
    return await asyncio.wait_for(asyncio.to_thread(state.engine.stats), STATS_SECONDS)


def _busy() -> HttpError:
    return native_error(RametError(f"the engine is in a step of more than {STATS_SECONDS:g} s; ask again"))
