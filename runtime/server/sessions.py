"""Sessions: conversations whose prefix clients ask to keep in the cache, until they close them."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ramet.runtime.engine import EngineFace
from ramet.runtime.protocol import InvalidRequestError, RametError, SessionPin
from ramet.runtime.protocol.wire import ErrorDetail
from ramet.runtime.server.errors import HttpError, bad_request
from ramet.runtime.server.tenants import MAX_ID_CHARS, Tenant

logger = logging.getLogger(__name__)

DEFAULT_TTL = 600.0
MAX_TTL = 86400.0
"""Seconds."""
SHORTEST_WAIT = 0.01
"""Seconds between two looks: a clock may be a little behind the event loop's."""


@dataclass(slots=True)
class Session:
    """One conversation of a tenant's. It rests while none of its requests runs."""

    id: str
    tenant: str
    ttl: float
    """Seconds that it may rest; then it is closed."""
    max_tokens: int
    """Most tokens of its prefix that are kept."""
    created: int
    """Unix time, seconds."""
    rests_since: float
    """Of the registry's clock."""
    num_running: int = 0
    num_requests: int = 0

    def pin(self) -> SessionPin:
        return SessionPin(session=f"{self.tenant}:{self.id}", seconds=self.ttl, max_tokens=self.max_tokens)


class Sessions:
    """The open sessions of one server. Lives on one event loop.

    Those that rested too long are closed when somebody next looks, or by ``close_in_time`` where that runs,
    which has the engine give up what it keeps for them as well.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        """``limit``: of each tenant."""
        self._limit = limit
        self._clock = clock
        self._open: dict[tuple[str, str], Session] = {}
        self._expired: list[Session] = []
        """Closed since ``close_in_time`` last looked; empty where it does not run."""
        self._changed: asyncio.Event | None = None
        """Set by whatever may be due earlier than what was known; None: ``close_in_time`` does not run."""

    async def close_in_time(self, engine: EngineFace) -> None:
        """Closes each session when its time is over. For ever: cancel it."""
        self._changed = asyncio.Event()
        try:
            while True:
                self._changed.clear()
                self._expire()
                expired, self._expired = self._expired, []
                # One of the same name may have been opened since; what it keeps took the other's place.
                expired = [one for one in expired if (one.tenant, one.id) not in self._open]
                if expired:
                    await asyncio.to_thread(_release, engine, expired)
                    continue
                try:
                    async with asyncio.timeout(self._until_next()):
                        await self._changed.wait()
                except TimeoutError:
                    pass  # The next one is due.
        finally:
            self._changed = None

    def __len__(self) -> int:
        self._expire()
        return len(self._open)

    def open(self, tenant: Tenant, *, ttl: float, max_tokens: int, session_id: str | None = None) -> Session:
        """Raises InvalidRequestError for a value out of range or an id in use, HttpError (429) for too many."""
        if not 1 <= ttl <= MAX_TTL:
            raise InvalidRequestError(
                f"ttl is {ttl}; it must be a number of seconds from 1 to {MAX_TTL:g}", field="ttl"
            )
        if max_tokens < 1:
            raise InvalidRequestError(f"max_tokens is {max_tokens}; it must be at least 1", field="max_tokens")
        session_id = _checked_id(session_id)
        own = self.of(tenant)
        if any(session.id == session_id for session in own):
            raise InvalidRequestError(
                f"session_id {session_id[:80]!r} is that of an open session; close it, or choose another one",
                field="session_id",
            )
        if len(own) >= self._limit:
            raise _too_many(self._limit)
        session = Session(session_id, tenant.name, ttl, max_tokens, int(time.time()), self._clock())
        self._open[tenant.name, session_id] = session
        self._tell()
        return session

    def of(self, tenant: Tenant) -> list[Session]:
        """The tenant's own, the oldest first."""
        self._expire()
        return [session for session in self._open.values() if session.tenant == tenant.name]

    def get(self, tenant: Tenant, session_id: str) -> Session:
        """Raises HttpError (404) where the tenant has no such session open."""
        self._expire()
        session = self._open.get((tenant.name, session_id))
        if session is None:
            raise bad_request(
                f"no session {session_id[:80]!r} is open: it was closed, or rested for longer than its ttl; "
                "POST /v1/sessions opens one",
                param="session",
                code="session_not_found",
                status=404,
            )
        return session

    def close(self, tenant: Tenant, session_id: str) -> Session:
        """Raises HttpError (404) where the tenant has no such session open."""
        session = self.get(tenant, session_id)
        del self._open[tenant.name, session_id]
        return session

    def begin(self, session: Session) -> None:
        """One of its requests runs."""
        session.num_running += 1
        session.num_requests += 1

    def end(self, session: Session) -> None:
        session.num_running -= 1
        session.rests_since = self._clock()
        self._tell()

    def expires_in(self, session: Session) -> float:
        """Seconds; the whole time while a request runs."""
        return session.ttl if session.num_running else session.rests_since + session.ttl - self._clock()

    def _expire(self) -> None:
        for key in [key for key, session in self._open.items() if self.expires_in(session) <= 0]:
            expired = self._open.pop(key)
            if self._changed is not None:
                self._expired.append(expired)
                self._changed.set()

    def _until_next(self) -> float | None:
        """Seconds until one may be due; None: there is none that rests."""
        resting = [self.expires_in(one) for one in self._open.values() if not one.num_running]
        return max(min(resting), SHORTEST_WAIT) if resting else None

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed.set()


def _release(engine: EngineFace, sessions: Sequence[Session]) -> None:
    for session in sessions:
        try:
            engine.release_session(session.pin().session)
        except RametError as error:
            # An engine that is dead keeps nothing; one that is too busy to answer gives it up by its own clock.
            logger.info("what session %s kept was not given up at once: %s", session.id, error)


def _checked_id(session_id: str | None) -> str:
    if session_id is None:
        return f"sess_{secrets.token_hex(12)}"
    if not 1 <= len(session_id) <= MAX_ID_CHARS or not session_id.isprintable() or "/" in session_id:
        raise InvalidRequestError(
            f"session_id is {session_id[:80]!r}; it must be 1 to {MAX_ID_CHARS} printable characters without /",
            field="session_id",
        )
    return session_id


def _too_many(limit: int) -> HttpError:
    detail = ErrorDetail(
        message=f"{limit} sessions are open, which is the limit for a key (--max-sessions); close one",
        type="rate_limit_error",
        code="too_many_sessions",
    )
    return HttpError(429, detail)
