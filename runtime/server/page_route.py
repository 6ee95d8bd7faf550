"""The page at /, and what it is drawn from: live requests, the last minutes, the shape of the radix tree."""

import hashlib
import time
from collections.abc import Awaitable, Callable
from importlib.resources import files

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.protocol import RametError
from ramet.runtime.server.engine_questions import ENGINE_SECONDS
from ramet.runtime.server.errors import HttpError, native_error
from ramet.runtime.server.state import json_response, state_of, tenant_of

INDEX = "index.html"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
NAMES = (
    INDEX,
    "activity.js",
    "api.js",
    "app.js",
    "charts.js",
    "chat.js",
    "dom.js",
    "icon.svg",
    "style.css",
    "tree.js",
)
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
PAGE_PATHS = frozenset(("/", *(f"/page/{name}" for name in NAMES)))
"""They are the same for everyone and need no key: what they show does."""


def page_endpoints() -> dict[str, Callable[[Request], Awaitable[Response]]]:
    """Path -> endpoint, of each file of the page. Read once: no path of a request is ever opened."""
    folder = files("ramet.runtime.server") / "page"
    endpoints = {f"/page/{name}": _file(name, (folder / name).read_bytes()) for name in NAMES}
    return {"/": endpoints.pop(f"/page/{INDEX}"), **endpoints}


def _file(name: str, content: bytes) -> Callable[[Request], Awaitable[Response]]:
    media_type = MEDIA_TYPES[name[name.rindex(".") :]]
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {**HEADERS, "etag": tag}

    async def endpoint(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return endpoint


async def activity(request: Request) -> Response:
    """GET /activity: the key's own requests that run, how many others do, and the last five minutes."""
    state, tenant = state_of(request), tenant_of(request)
    live, num_others = state.gateway.live_requests(tenant)
    try:
        stats = await state.engine_questions.ask("stats", state.engine.stats)
    except (RametError, TimeoutError):
        # Gone, or in a long step: what the server knows is there all the same.
        stats = None
    engine = None if stats is None else {**msgspec.to_builtins(stats), "hit_rate": stats.hit_rate}
    return json_response(
        {
            "model": state.model,
            "now": time.time(),
            "draining": state.gateway.is_draining,
            "live_answers": state.gateway.live,
            "requests": live,
            "other_requests": num_others,
            "history": state.gateway.activity.history(),
            "engine": engine,
        }
    )


async def cache_tree(request: Request) -> Response:
    """GET /cache_tree: the nodes of the key's own radix trees that were used last, in numbers."""
    state, tenant = state_of(request), tenant_of(request)
    try:
        outline = await state.engine_questions.ask(
            f"cache:{tenant.name}", lambda: state.engine.cache_outline(tenant.salted(""))
        )
    except RametError as error:
        raise native_error(error) from error
    except TimeoutError:
        raise _busy() from None
    return json_response(outline)


def _busy() -> HttpError:
    return native_error(RametError(f"the engine is in a step of more than {ENGINE_SECONDS:g} s; ask again"))
