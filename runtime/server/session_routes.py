"""/v1/sessions, and the same under the names that SGLang's clients know."""

import asyncio
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.protocol import EngineDeadError, InvalidRequestError, RametError
from ramet.runtime.server.body import convert
from ramet.runtime.server.errors import native_error
from ramet.runtime.server.sessions import DEFAULT_TTL, Session
from ramet.runtime.server.state import ServerState, json_response, state_of, tenant_of


class OpenSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keeps a conversation's prefix in the cache between its requests, which name it by ``session``."""

    session_id: str | None = None
    """None: one is drawn."""
    ttl: float = DEFAULT_TTL
    """Seconds that it may rest between two requests."""
    max_tokens: int | None = None
    """Most tokens of its prefix that are kept; None: what fits the context."""


class SglangOpenSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As SGLang's clients open one."""

    capacity_of_str_len: int = 0
    """At most so many tokens are kept; 0: what fits the context."""
    session_id: str | None = None
    timeout: float | None = None
    streaming: bool | None = None


class SglangCloseSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    session_id: str


async def open_session(request: Request) -> Response:
    """POST /v1/sessions"""
    state = state_of(request)
    asked = convert(await state.read(request), OpenSession)
    return json_response(_described(state, _opened(request, asked)))


async def list_sessions(request: Request) -> Response:
    """GET /v1/sessions: the key's own."""
    state = state_of(request)
    found = state.gateway.sessions.of(tenant_of(request))
    return json_response({"object": "list", "data": [_described(state, one) for one in found]})


async def get_session(request: Request) -> Response:
    """GET /v1/sessions/{session_id}"""
    state = state_of(request)
    session = state.gateway.sessions.get(tenant_of(request), request.path_params["session_id"])
    return json_response(_described(state, session))


async def delete_session(request: Request) -> Response:
    """DELETE /v1/sessions/{session_id}"""
    num_tokens = await _closed(request, request.path_params["session_id"])
    closed = {"id": request.path_params["session_id"], "object": "session", "closed": True}
    return json_response({**closed, "released_tokens": num_tokens})


async def sglang_open(request: Request) -> Response:
    """POST /open_session: the session's id, as JSON."""
    asked = convert(await state_of(request).read(request), SglangOpenSession)
    if asked.streaming:
        error = InvalidRequestError(
            "streaming is true, and a request here carries its whole conversation, whose prefix is cached; "
            "leave it out",
            field="streaming",
        )
        raise native_error(error)
    session = _opened(
        request,
        OpenSession(
            session_id=asked.session_id,
            ttl=DEFAULT_TTL if asked.timeout is None else asked.timeout,
            max_tokens=asked.capacity_of_str_len or None,
        ),
    )
    return Response(msgspec.json.encode(session.id), media_type="application/json")


async def sglang_close(request: Request) -> Response:
    """POST /close_session"""
    asked = convert(await state_of(request).read(request), SglangCloseSession)
    await _closed(request, asked.session_id)
    return Response(status_code=200)


def _opened(request: Request, asked: OpenSession) -> Session:
    state = state_of(request)
    try:
        return state.gateway.sessions.open(
            tenant_of(request),
            ttl=asked.ttl,
            max_tokens=state.engine.info.context_length if asked.max_tokens is None else asked.max_tokens,
            session_id=asked.session_id,
        )
    except RametError as error:
        raise native_error(error) from error


async def _closed(request: Request, session_id: str) -> int:
    """How many tokens it kept. Those that still run in it keep nothing when they end."""
    state = state_of(request)
    session = state.gateway.sessions.close(tenant_of(request), session_id)
    try:
        return await asyncio.to_thread(state.engine.release_session, session.pin().session)
    except EngineDeadError:
        # With the engine its cache is gone.
        return 0


def _described(state: ServerState, session: Session) -> dict[str, object]:
    return {
        "id": session.id,
        "object": "session",
        "created_at": session.created,
        "expires_at": int(time.time() + state.gateway.sessions.expires_in(session)),
        "ttl": session.ttl,
        "max_tokens": session.max_tokens,
        "num_requests": session.num_requests,
    }
