"""Which sessions are open, by a clock that is set by hand."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from ramet.runtime.engine import EngineFace
from ramet.runtime.protocol import EngineDeadError, InvalidRequestError, SessionPin
from ramet.runtime.server.errors import HttpError
from ramet.runtime.server.sessions import Sessions
from ramet.runtime.server.tenants import Tenant

ALPHA, BETA = Tenant("alpha"), Tenant("beta")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(sessions: Sessions, tenant: Tenant = ALPHA, **options: Any) -> str:
    return sessions.open(tenant, **{"ttl": 10.0, "max_tokens": 100, **options}).id


def refused(ask: Callable[[], object], status: int) -> HttpError:
    with pytest.raises(HttpError) as raised:
        ask()
    assert raised.value.status == status
    return raised.value


def test_a_session_is_its_tenants_own() -> None:
    sessions = Sessions(4)
    one, other = opened(sessions), opened(sessions, BETA, session_id="mine")
    assert sessions.get(ALPHA, one).pin() == SessionPin(session=f"alpha:{one}", seconds=10.0, max_tokens=100)
    assert [session.id for session in sessions.of(BETA)] == [other] == ["mine"]
    assert refused(lambda: sessions.get(BETA, one), 404).detail.code == "session_not_found"
    assert sessions.close(ALPHA, one).id == one
    refused(lambda: sessions.close(ALPHA, one), 404)
    assert len(sessions) == 1


def test_each_tenant_has_so_many() -> None:
    sessions = Sessions(2)
    first = opened(sessions)
    opened(sessions)
    opened(sessions, BETA)
    assert refused(lambda: opened(sessions), 429).detail.code == "too_many_sessions"
    sessions.close(ALPHA, first)
    opened(sessions)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"ttl": 0.0}, "ttl"),
        ({"ttl": 1e9}, "ttl"),
        ({"ttl": float("nan")}, "ttl"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"session_id": ""}, "session_id"),
        ({"session_id": "a/b"}, "session_id"),
        ({"session_id": "a\n"}, "session_id"),
        ({"session_id": "x" * 1000}, "session_id"),
        ({"session_id": "taken"}, "session_id"),
    ],
)
def test_what_is_out_of_range_is_named(options: dict[str, Any], field: str) -> None:
    sessions = Sessions(4)
    opened(sessions, session_id="taken")
    with pytest.raises(InvalidRequestError) as raised:
        opened(sessions, **options)
    assert raised.value.field == field


def test_one_that_rests_too_long_is_closed_and_one_that_runs_is_not() -> None:
    clock = Clock()
    sessions = Sessions(1, clock)
    session = sessions.get(ALPHA, opened(sessions))
    sessions.begin(session)
    clock.now += 50.0
    assert sessions.get(ALPHA, session.id) is session
    assert sessions.expires_in(session) == 10.0
    sessions.end(session)
    clock.now += 9.0
    assert sessions.expires_in(session) == 1.0
    assert session.num_requests == 1
    clock.now += 1.0
    refused(lambda: sessions.get(ALPHA, session.id), 404)
    assert len(sessions) == 0
    opened(sessions)


class Releasing:
    """An engine, as far as sessions know it. Once ``dead`` it says so."""

    def __init__(self) -> None:
        self.released: list[str] = []
        self.dead = False

    def release_session(self, session: str) -> int:
        self.released.append(session)
        if self.dead:
            raise EngineDeadError("the engine has ended")
        return 0


def closed_in_time(act: Callable[[Sessions, Releasing], None]) -> list[str]:
    """What was released by the time that no session is open any more, without anybody asking for one."""
    engine = Releasing()

    async def run() -> None:
        sessions = Sessions(8)
        closing = asyncio.create_task(sessions.close_in_time(cast(EngineFace, engine)))
        await asyncio.sleep(0)
        act(sessions, engine)
        while sessions._open or sessions._expired:
            await asyncio.sleep(0.01)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert len(sessions) == 0

    asyncio.run(asyncio.wait_for(run(), 30.0))
    return engine.released


def test_the_engine_gives_up_what_a_session_kept_when_its_time_is_over() -> None:
    def act(sessions: Sessions, _: Releasing) -> None:
        opened(sessions, ttl=60.0, session_id="closed")
        opened(sessions, ttl=1.0, session_id="resting")
        used = sessions.get(ALPHA, opened(sessions, ttl=1.0, session_id="used"))
        sessions.begin(used)
        asyncio.get_running_loop().call_later(1.2, sessions.end, used)
        sessions.close(ALPHA, "closed")

    assert closed_in_time(act) == ["alpha:resting", "alpha:used"]


def test_an_engine_that_is_dead_does_not_end_it() -> None:
    def act(sessions: Sessions, engine: Releasing) -> None:
        engine.dead = True
        opened(sessions, ttl=1.0, session_id="first")
        opened(sessions, ttl=1.1, session_id="second")

    assert closed_in_time(act) == ["alpha:first", "alpha:second"]


def test_one_that_was_opened_again_keeps_what_it_has() -> None:
    clock = Clock()
    engine = Releasing()

    async def run() -> None:
        sessions = Sessions(8, clock)
        closing = asyncio.create_task(sessions.close_in_time(cast(EngineFace, engine)))
        await asyncio.sleep(0)
        opened(sessions, session_id="again")
        opened(sessions, session_id="gone")
        clock.now += 20.0
        opened(sessions, session_id="again")
        while sessions._expired:
            await asyncio.sleep(0.01)
        assert [one.id for one in sessions.of(ALPHA)] == ["again"]
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), 30.0))
    assert engine.released == ["alpha:gone"]
