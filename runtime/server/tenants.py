"""Who asks: API keys, and what keeps one key's requests apart from another's."""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.errors import error_response, unauthorized

MAX_ID_CHARS = 200
OPEN_ROUTES = frozenset(("/health", "/ready"))
"""Answered without a key: they tell nothing but whether the server works."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One API key's owner; the empty name is everyone's, where there are no keys."""

    name: str = ""

    def salted(self, cache_salt: str) -> str:
        """The salt of a tenant's requests: no other tenant shares, or can time, their cached prefixes."""
        return f"{self.name}:{cache_salt}" if self.name else cache_salt

    def owns(self, cache_salt: str) -> bool:
        """Whether a request with this salt, as the engine has it, is the tenant's."""
        return cache_salt.startswith(self.salted(""))

    def shown_id(self, request_id: str) -> str:
        """A request's id as the tenant knows it."""
        return request_id.removeprefix(self.salted(""))

    def request_id(self, request_id: str) -> str:
        """A client's own id for a request, in a name space of the tenant's.

        Raises:
            InvalidRequestError: it is empty, long, or has characters that cannot be shown.
        """
        if not 1 <= len(request_id) <= MAX_ID_CHARS or not request_id.isprintable():
            raise InvalidRequestError(
                f"request_id is {request_id[:80]!r}; it must be 1 to {MAX_ID_CHARS} printable characters",
                field="request_id",
            )
        return f"{self.name}:{request_id}" if self.name else request_id


class ApiKeys:
    """The keys, as digests: comparing takes the same time whatever is sent, and nothing here shows a key."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = {_digest(key): Tenant(_digest(key).hex()[:16]) for key in keys}

    def tenant(self, key: str) -> Tenant | None:
        """Whose key it is; None: nobody's. All keys are compared, always."""
        if not self._digests:
            return Tenant()
        sent = _digest(key)
        found = None
        for digest, tenant in self._digests.items():
            if hmac.compare_digest(digest, sent):
                found = tenant
        return found


def sent_key(headers: Mapping[str, str]) -> str:
    """The key in ``Authorization: Bearer``, as OpenAI's clients send it, or in Anthropic's ``x-api-key``."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    return headers.get("x-api-key", "")


class TenantMiddleware:
    """Answers 401 where no key fits, save to ``open_routes``; else the request's state has its ``tenant``."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, open_routes: frozenset[str] = OPEN_ROUTES) -> None:
        self._app = app
        self._keys = keys
        self._open_routes = open_routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        tenant = self._keys.tenant(sent_key(Headers(scope=scope)))
        if tenant is None and scope["path"] not in self._open_routes:
            await error_response(unauthorized(), scope["path"])(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = tenant or Tenant()
        await self._app(scope, receive, send)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
