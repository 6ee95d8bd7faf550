"""Around every request: an id, a line in the log, a count, and an answer even where we are at fault."""

import logging
import re
import secrets
import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ramet.runtime.server.errors import ANTHROPIC_ROUTES, HttpError, bad_request, error_response, internal_error
from ramet.runtime.server.metrics import ServerMetrics
from ramet.runtime.server.responding import CLIENT_GONE
from ramet.runtime.server.tracing import NoTracing, RequestSpan, Tracing

logger = logging.getLogger(__name__)

PROBES = frozenset(("/health", "/ready", "/metrics", "/activity", "/cache_tree"))
"""Machines and pages ask them every second: they are not traced."""
_PLAIN_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
"""What a client's own id may be to go into the log and back in a header."""


class RequestMiddleware:
    """Gives each request an ``x-request-id`` (the client's own where it sent a plain one), logs and counts it.

    HttpError becomes its answer; any other exception a 500, its cause in the log.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, tracing: Tracing) -> None:
        self._app = app
        self._metrics = metrics
        self._tracing = tracing
        self._no_tracing = NoTracing()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        tracing = self._no_tracing if scope["path"] in PROBES else self._tracing
        with tracing.request(scope["method"], Headers(scope=scope)) as span:
            await self._answer(scope, receive, send, span)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, span: RequestSpan) -> None:
        sent_id = Headers(scope=scope).get("x-request-id", "")
        request_id = sent_id if _PLAIN_ID.fullmatch(sent_id) else f"req-{secrets.token_hex(12)}"
        scope.setdefault("state", {})["http_request_id"] = request_id
        started = time.monotonic()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                if scope["path"].startswith(ANTHROPIC_ROUTES):
                    # Clients look for it under another name there.
                    headers["request-id"] = request_id
            await send(message)

        try:
            _check_framing(Headers(scope=scope))
            await self._app(scope, receive, send_with_id)
        except HttpError as error:
            if status == 0:
                await error_response(error, scope["path"])(scope, receive, send_with_id)
        except ClientDisconnect:
            # While its body was read: there is nobody to answer.
            status = CLIENT_GONE
        except Exception:
            logger.exception("request %s failed", request_id)
            if status == 0:
                await error_response(internal_error(), scope["path"])(scope, receive, send_with_id)
        finally:
            route = route_pattern(scope)
            self._metrics.answered(route, status)
            span.answered(route, status)
            seconds = time.monotonic() - started
            fields = {
                "method": scope["method"],
                "route": route,
                "status": status,
                "seconds": round(seconds, 6),
                "request_id": request_id,
                **({"trace_id": span.trace_id} if span.trace_id else {}),
            }
            logger.info(
                "%s %s %d %.3f s %s",
                scope["method"],
                route,
                status,
                seconds,
                request_id,
                extra={"fields": fields},
            )


def _check_framing(headers: Headers) -> None:
    """Raises HttpError for a request that two servers on its way may take to end at different places (RFC 9112,
    6.3): what one takes for the rest of its body is another client's request to the other.
    """
    if "transfer-encoding" in headers and "content-length" in headers:
        refusal = bad_request(
            "the request has both Content-Length and Transfer-Encoding; send one of them",
            code="invalid_framing",
        )
        refusal.headers["connection"] = "close"
        raise refusal


def route_pattern(scope: Scope) -> str:
    """The route's pattern: what a client writes into a path appears neither in labels nor in the log."""
    route: Any = scope.get("route")
    return getattr(route, "path", None) or "unknown"
