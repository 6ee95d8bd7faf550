"""The ASGI application: an engine, and the routes that lead to it."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.engine import EngineFace
from ramet.runtime.protocol import programs, wire
from ramet.runtime.server import (
    chat_route,
    compact_route,
    completion_route,
    elsewhere,
    embedding_route,
    messages_route,
    native_routes,
    operations,
    page_route,
    programs_route,
    responses_route,
    score_route,
    session_routes,
)
from ramet.runtime.server.chat_chunks import ChatCompletion
from ramet.runtime.server.chat_prompt import ChatModel
from ramet.runtime.server.completion_writer import Completion
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.engine_questions import EngineQuestions
from ramet.runtime.server.errors import HttpError, bad_request, error_response
from ramet.runtime.server.gateway import Gateway
from ramet.runtime.server.metrics import ServerMetrics
from ramet.runtime.server.middleware import RequestMiddleware
from ramet.runtime.server.open_telemetry import traces_to_collector
from ramet.runtime.server.openapi import Answer, Records, described_body, with_records
from ramet.runtime.server.page_route import PAGE_PATHS
from ramet.runtime.server.program_runs import ProgramRuns
from ramet.runtime.server.prompt_size import PromptSize
from ramet.runtime.server.response_store import ResponseStore
from ramet.runtime.server.state import ServerState
from ramet.runtime.server.tenants import OPEN_ROUTES, ApiKeys, TenantMiddleware
from ramet.runtime.server.tools.formats import tool_format
from ramet.runtime.server.tracing import NoTracing, Tracing
from ramet.runtime.tokenizer import TokenizerSpec

_ANSWERS = {
    "/v1/chat/completions": Answer(ChatCompletion, streams=True),
    "/v1/completions": Answer(Completion, streams=True),
    "/v1/responses": Answer(streams=True),
    "/v1/messages": Answer(streams=True),
    programs.PROGRAMS_ROUTE: Answer(programs.ProgramResult, programs.ProgramState, streams=True),
    f"{programs.PROGRAMS_ROUTE}/{{program_id}}/tool_results": Answer(programs.ToolResultsTaken),
    f"GET {programs.PROGRAMS_ROUTE}": Answer(programs.ProgramList),
    f"GET {programs.PROGRAMS_ROUTE}/{{program_id}}": Answer(
        programs.ProgramState, streams=True, query=("stream",)
    ),
    f"DELETE {programs.PROGRAMS_ROUTE}/{{program_id}}": Answer(programs.ProgramCancelled),
    wire.GENERATE_ROUTE: Answer(wire.GenerateResponse, streams=True),
    wire.SCORE_ROUTE: Answer(wire.ScoreResponse),
    wire.ENCODE_CHAT_ROUTE: Answer(wire.EncodeChatResponse),
    wire.TOKENIZE_ROUTE: Answer(wire.TokenizeResponse),
    wire.DETOKENIZE_ROUTE: Answer(wire.DetokenizeResponse),
    wire.FLUSH_CACHE_ROUTE: Answer(wire.FlushCacheResponse),
    wire.MODEL_INFO_ROUTE: Answer(wire.ServedModel),
    wire.TOKENIZER_ROUTE: Answer(media_type="application/msgpack"),
    "/open_session": Answer(kind="string"),
    "/close_session": Answer(media_type=""),
    "/metrics": Answer(media_type="text/plain"),
}

Endpoint = Callable[[Request], Awaitable[Response]]

DEFAULT_WIDTH = 128

_POST: tuple[tuple[str, Endpoint, Records], ...] = (
    ("/v1/chat/completions", chat_route.chat_completions, chat_route.RECORDS),
    ("/v1/completions", completion_route.completions, completion_route.RECORDS),
    ("/v1/responses", responses_route.responses, responses_route.RECORDS),
    ("/v1/responses/compact", compact_route.compact, compact_route.COMPACT_RECORDS),
    ("/v1/responses/input_tokens", compact_route.count_input, compact_route.COUNT_RECORDS),
    ("/v1/responses/{response_id}/cancel", responses_route.cancel_response, ()),
    ("/v1/embeddings", embedding_route.embeddings, embedding_route.RECORDS),
    ("/v1/score", score_route.score_labels, score_route.RECORDS),
    ("/v1/messages", messages_route.messages, messages_route.RECORDS),
    ("/v1/messages/count_tokens", messages_route.count_tokens, messages_route.RECORDS[:1]),
    (programs.PROGRAMS_ROUTE, programs_route.run_program, (programs.ProgramRequest,)),
    (
        f"{programs.PROGRAMS_ROUTE}/{{program_id}}/tool_results",
        programs_route.take_tool_results,
        (programs.ToolResults,),
    ),
    ("/v1/sessions", session_routes.open_session, (session_routes.OpenSession,)),
    ("/open_session", session_routes.sglang_open, (session_routes.SglangOpenSession,)),
    ("/close_session", session_routes.sglang_close, (session_routes.SglangCloseSession,)),
    (wire.GENERATE_ROUTE, native_routes.generate, (wire.GenerateRequest,)),
    (wire.SCORE_ROUTE, native_routes.score, (wire.ScoreRequest,)),
    (wire.ENCODE_CHAT_ROUTE, native_routes.encode, (wire.EncodeChatRequest,)),
    (wire.TOKENIZE_ROUTE, native_routes.tokenize, (wire.TokenizeRequest,)),
    (wire.DETOKENIZE_ROUTE, native_routes.detokenize, (wire.DetokenizeRequest,)),
    (wire.FLUSH_CACHE_ROUTE, operations.flush_cache, ()),
    ("/abort", operations.abort, (operations.AbortRequest,)),
)
_DELETE: tuple[tuple[str, Endpoint], ...] = (
    ("/v1/responses/{response_id}", responses_route.delete_response),
    (f"{programs.PROGRAMS_ROUTE}/{{program_id}}", programs_route.cancel_program),
    ("/v1/sessions/{session_id}", session_routes.delete_session),
)
_GET: tuple[tuple[str, Endpoint], ...] = (
    (wire.HEALTH_ROUTE, operations.health),
    ("/ready", operations.ready),
    ("/v1/responses/{response_id}", responses_route.stored_response),
    ("/v1/responses/{response_id}/input_items", responses_route.stored_input),
    (programs.PROGRAMS_ROUTE, programs_route.list_programs),
    (f"{programs.PROGRAMS_ROUTE}/{{program_id}}", programs_route.get_program),
    ("/v1/sessions", session_routes.list_sessions),
    ("/v1/sessions/{session_id}", session_routes.get_session),
    ("/v1/models", operations.models),
    ("/v1/models/{model:path}", operations.model),
    (wire.MODEL_INFO_ROUTE, operations.model_info),
    (wire.TOKENIZER_ROUTE, native_routes.tokenizer),
    (wire.STATS_ROUTE, operations.stats),
    ("/metrics", operations.metrics),
    ("/activity", page_route.activity),
    ("/cache_tree", page_route.cache_tree),
)


def create_app(
    engine: EngineFace,
    tokenizer_spec: TokenizerSpec,
    config: ServerConfig | None = None,
    *,
    width: int = DEFAULT_WIDTH,
    tracing: Tracing | None = None,
) -> FastAPI:
    """The application. It uses the engine, and leaves closing it to whoever opened it.

    ``width``: requests that the engine computes in one step at most. ``tracing``: where traces go; None:
    nowhere, unless the config has ``otel``.
    """
    config = config or ServerConfig()
    names = config.served_model_names or (engine.info.model,)
    metrics = ServerMetrics(names[0])
    if tracing is None:
        tracing = traces_to_collector(names[0]) if config.otel else NoTracing()
    app = FastAPI(title="ramet", version=version("ramet"), docs_url=None, redoc_url=None, lifespan=_lifespan)
    gateway = Gateway(engine, config, metrics, width=width, tracing=tracing)
    app.state.server = ServerState(
        engine=engine,
        config=config,
        gateway=gateway,
        program_runs=ProgramRuns(
            engine,
            gateway,
            limit=config.max_programs,
            timeout=config.request_timeout,
            model=names[0],
        ),
        metrics=metrics,
        tracing=tracing,
        tokenizer_spec=tokenizer_spec,
        chat_model=ChatModel.of(
            engine.tokenizer,
            tokenizer_spec,
            frozenset(engine.info.grammars),
            tool_format(config.tool_format, tokenizer_spec),
            config.reasoning_format,
        ),
        engine_questions=EngineQuestions(),
        response_store=ResponseStore(config.response_store) if config.response_store else None,
        prompt_size=PromptSize(engine.tokenizer, engine.info.context_length),
        model_names=names,
        started=int(time.time()),
    )
    _add_routes(app)
    with_records(app, [records for _, _, records in _POST], _ANSWERS)
    app.add_exception_handler(HttpError, _http_error)
    app.add_exception_handler(HTTPException, _no_route)
    # The last one added is the outermost.
    app.add_middleware(TenantMiddleware, keys=ApiKeys(config.api_keys), open_routes=OPEN_ROUTES | PAGE_PATHS)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type", "x-api-key", "x-request-id"],
            expose_headers=["x-request-id"],
        )
    app.add_middleware(RequestMiddleware, metrics=metrics, tracing=tracing)
    return app


def _add_routes(app: FastAPI) -> None:
    for path, endpoint, records in _POST:
        app.add_api_route(path, endpoint, methods=["POST"], openapi_extra=described_body(records))
    for path, endpoint in _GET:
        # HEAD is what load balancers ask.
        app.add_api_route(path, endpoint, methods=["GET"])
        app.add_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    for path, endpoint in page_route.page_endpoints().items():
        app.add_route(path, endpoint, methods=["GET"], include_in_schema=False)
    for path, endpoint in _DELETE:
        app.add_api_route(path, endpoint, methods=["DELETE"])


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: ServerState = app.state.server
    closing = asyncio.create_task(state.gateway.sessions.close_in_time(state.engine))
    yield
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    state.gateway.start_draining()
    await state.program_runs.aclose()
    if state.response_store is not None:
        state.response_store.close()
    # It sends what is left, which takes a while.
    await asyncio.to_thread(state.tracing.close)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return error_response(error, request.url.path)


async def _no_route(request: Request, error: Exception) -> Response:
    """404 and 405 of the router."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    ours = [route for route, _, _ in _POST] + [route for route, _ in (*_GET, *_DELETE)]
    # One that is not here may look like another route's with an id.
    status = 404 if elsewhere.is_elsewhere(path) else error.status_code
    hint = elsewhere.reason(path)
    if hint is None and status == 404:
        under_v1 = f"/v1{path.rstrip('/')}" in ours
        hint = (
            "OpenAI's routes are under /v1: end the client's base URL with it"
            if under_v1
            else elsewhere.served(ours)
        )
    elif hint is not None and status == 404:
        hint = f"{hint}; {elsewhere.served(ours)}"
    what = "does not take this method" if status == 405 else "is not a route of this server"
    answer = bad_request(
        f"{path[:200]} {what}" + (f": {hint}" if hint else ""),
        code="method_not_allowed" if status == 405 else "not_found",
        status=status,
    )
    if status == error.status_code:
        answer.headers.update(error.headers or {})
    return error_response(answer, path)
