"""Requests against a server that refuses, fails, breaks off, is slow, or is not there."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from email.utils import formatdate
from typing import Any, TypeVar

import pytest

from ramet.lang.backends import http_client
from ramet.lang.backends.http_client import Connection, HttpClient, RetryPolicy, Server, retry_after
from ramet.lang.backends.http_errors import answered_error
from ramet.lang.backends.sse import ServerSentEvent
from ramet.lang.errors import GenerationError
from ramet.runtime.protocol import InvalidRequestError
from tests.lang.backends.loopback import Answer, Handler, Request, of_events, of_json, serving

T = TypeVar("T")
QUICK = RetryPolicy(max_retries=3, first_delay=0.001, max_delay=0.002, max_retry_after=1.0)


def client_of(url: str, **options: Any) -> HttpClient:
    connection = Connection(**{"retries": QUICK, "headers": {"x-more": "m"}, **options})
    server = Server(name="the server", base_url=url, headers={"x-key": "k"}, connection=connection)
    return HttpClient(server, lambda status, body: answered_error("the server", status, body))


def used(url: str, use: Callable[[HttpClient], Coroutine[Any, Any, T]], **options: Any) -> T:
    async def main() -> T:
        client = client_of(url, **options)
        try:
            return await asyncio.wait_for(use(client), 60)
        finally:
            await client.aclose()

    return asyncio.run(main())


def is_done(event: ServerSentEvent) -> bool:
    return event.data == "[DONE]"


async def read_all(client: HttpClient) -> list[str]:
    async with client.events("/stream", {"a": 1}, is_done) as events:
        return [event.data async for event in events]


def in_turn(*answers: Callable[[], Answer]) -> Handler:
    left = list(answers)

    async def handler(request: Request) -> Answer:
        return left.pop(0)()

    return handler


def test_json_goes_there_and_back_on_one_connection() -> None:
    async def echo(request: Request) -> Answer:
        return of_json({"said": request.json, "key": request.headers["x-key"] + request.headers["x-more"]})

    async def twice(client: HttpClient) -> list[Any]:
        return [await client.post("/echo", {"n": n}) for n in range(2)]

    with serving(echo) as server:
        answers = used(server.url, twice)
        assert answers == [{"said": {"n": n}, "key": "km"} for n in range(2)]
        assert [request.connection for request in server.requests] == [0, 0]


def test_no_secret_is_shown() -> None:
    connection = Connection(headers={"x-more": "hidden"})
    assert "hidden" not in repr(Server("s", "http://x", {"authorization": "hidden"}, connection))


def test_an_error_with_a_status_of_success() -> None:
    handler = in_turn(lambda: of_json({"error": {"message": "no such model"}}))
    with serving(handler) as server, pytest.raises(GenerationError, match="with status 200: no such model"):
        used(server.url, read_all)


def test_a_redirect_is_not_followed() -> None:
    moved = Answer(307, b"", {"location": "http://elsewhere.invalid/"})
    with serving(in_turn(lambda: moved)) as server, pytest.raises(GenerationError, match="with status 307"):
        used(server.url, read_all)


def test_streams_follow_one_another_on_one_connection() -> None:
    async def twice(client: HttpClient) -> list[list[str]]:
        return [await read_all(client) for _ in range(2)]

    with serving(in_turn(*[lambda: of_events("data: 1\n\n", "data: [DONE]\n\n", "data: 2\n\n")] * 2)) as server:
        assert used(server.url, twice) == [["1", "[DONE]"]] * 2
        assert [request.connection for request in server.requests] == [0, 0]


def test_a_stream_that_does_not_end_behind_its_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "DRAIN_TIMEOUT", 0.05)

    async def parts() -> AsyncIterator[bytes]:
        yield b"data: [DONE]\n\n"
        await asyncio.sleep(10)

    with serving(in_turn(lambda: Answer(parts=parts()))) as server:
        assert used(server.url, read_all) == ["[DONE]"]
        assert server.left.wait(60)


def test_each_event_loop_has_its_connections() -> None:
    with serving(in_turn(*[lambda: of_json(1)] * 2)) as server:
        client = client_of(server.url)

        async def once() -> Any:
            answer = await client.post("/", {})
            await client.aclose()
            await client.aclose()
            return answer

        assert [asyncio.run(once()), asyncio.run(once())] == [1, 1]


def test_a_stream() -> None:
    with serving(in_turn(lambda: of_events({"x": "é"}, ": comment\n\n"))) as server:
        events = used(server.url, read_all)
        assert [json.loads(events[0]), events[1]] == [{"x": "é"}, "[DONE]"]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
def test_a_busy_server_is_asked_again(status: int) -> None:
    busy = of_json({"error": {"message": "busy"}}, status)
    with serving(in_turn(lambda: busy, lambda: busy, lambda: of_events("data: 1\n\n"))) as server:
        assert used(server.url, read_all) == ["1", "[DONE]"]
        assert len(server.requests) == 3


def test_not_for_ever() -> None:
    busy = of_json({"error": {"message": "busy"}}, 503)
    with serving(in_turn(*[lambda: busy] * 4)) as server:
        with pytest.raises(GenerationError, match="the server answered with status 503: busy"):
            used(server.url, read_all)
        assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("status", "error", "headers"),
    [
        (400, {"message": "no"}, {}),
        (401, {"message": "no"}, {}),
        (429, {"message": "no", "code": "insufficient_quota"}, {}),
        (503, {"message": "no"}, {"retry_after": "3600"}),
        (500, {"message": "no"}, {"x_should_retry": "false"}),
    ],
)
def test_what_is_not_tried_again(status: int, error: dict[str, Any], headers: dict[str, str]) -> None:
    with serving(in_turn(lambda: of_json({"error": error}, status, **headers))) as server:
        with pytest.raises(GenerationError, match=f"status {status}: no"):
            used(server.url, read_all)
        assert len(server.requests) == 1


def test_the_server_says_how_long() -> None:
    now = 1_800_000_000.0
    assert retry_after({"retry-after": "2.5"}, now) == 2.5
    assert retry_after({"retry-after-ms": "250", "retry-after": "9"}, now) == 0.25
    assert retry_after({"retry-after": formatdate(now + 7, usegmt=True)}, now) == 7
    assert retry_after({"retry-after": formatdate(now - 7, usegmt=True)}, now) == 0
    assert retry_after({"retry-after": "soon"}, now) is None
    assert retry_after({}, now) is None
    policy = RetryPolicy(max_retries=9, first_delay=1.0, max_delay=8.0)
    assert policy.delay(0, {"retry-after": "3"}) == 3
    assert all(0.75 * 2**n <= (policy.delay(n, {}) or 0) <= 2**n for n in range(4))
    assert (policy.delay(8, {}) or 0) <= 8
    assert policy.delay(9, {}) is None


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        with pytest.raises(GenerationError, match=rf"cannot be reached at {url} \(4 attempts\): ConnectError"):
            used(url, read_all)


def test_a_server_that_says_nothing() -> None:
    async def silent(request: Request) -> Answer:
        await asyncio.sleep(10)
        return of_json(1)

    with serving(silent) as server:
        with pytest.raises(GenerationError, match=r"sent nothing for 0\.5 s; give the backend a lon"):
            used(server.url, read_all, timeout=0.5)
        assert len(server.requests) == 1


def test_an_answer_that_breaks_off() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"

    with serving(in_turn(lambda: Answer(parts=parts(), broken=True))) as server:
        with pytest.raises(GenerationError, match="the server broke off its answer"):
            used(server.url, read_all)
        assert len(server.requests) == 1


def test_an_answer_that_is_no_json() -> None:
    handler = in_turn(lambda: Answer(body=b"<html>"))
    with serving(handler) as server, pytest.raises(GenerationError, match="no JSON"):
        used(server.url, lambda client: client.post("/x", {}))


@pytest.mark.parametrize("how", ["leave", "cancel"])
def test_leaving_a_stream_closes_the_connection(how: str) -> None:
    async def endless(request: Request) -> Answer:
        async def parts() -> AsyncIterator[bytes]:
            while True:
                yield b"data: x\n\n"
                await asyncio.sleep(0.01)

        return Answer(parts=parts())

    async def leave(client: HttpClient) -> None:
        async with client.events("/stream", {}, is_done) as events:
            async for _ in events:
                break

    async def cancel(client: HttpClient) -> None:
        begun = asyncio.Event()

        def notice(event: ServerSentEvent) -> bool:
            begun.set()
            return False

        async def read() -> None:
            async with client.events("/stream", {}, notice) as events:
                async for _ in events:
                    pass

        task = asyncio.create_task(read())
        # Not sooner: a connection on which nothing was asked yet is none that a stream is left on.
        await begun.wait()
        task.cancel()
        await asyncio.wait({task})

    with serving(endless) as server:
        used(server.url, leave if how == "leave" else cancel)
        assert server.left.wait(60)


def test_only_so_many_at_once() -> None:
    running = most = 0
    full = asyncio.Event()

    async def counting(request: Request) -> Answer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await asyncio.wait_for(full.wait(), 30)
        await asyncio.sleep(0.01)
        running -= 1
        return of_json(1)

    async def many(client: HttpClient) -> list[Any]:
        return await asyncio.gather(*[client.post("/", {}) for _ in range(20)])

    with serving(counting) as server:
        assert used(server.url, many, max_connections=3) == [1] * 20
        assert most == 3


def test_who_is_cancelled_while_it_waits_for_a_connection_takes_none() -> None:
    came: list[str] = []

    async def slow(request: Request) -> Answer:
        came.append(request.path)
        if request.path == "/first":
            await asyncio.sleep(0.2)
        return of_json({})

    async def some_leave(client: HttpClient) -> Any:
        first = asyncio.create_task(client.post("/first", {}))
        await asyncio.sleep(0.05)
        leaving = [asyncio.create_task(client.post("/leaves", {})) for _ in range(5)]
        staying = [asyncio.create_task(client.post(f"/{number}", {})) for number in range(5)]
        await asyncio.sleep(0)
        for task in leaving[1:]:
            task.cancel()
        await first
        leaving[0].cancel()  # As its turn has come.
        return await asyncio.gather(*staying)

    with serving(slow) as server:
        assert used(server.url, some_leave, max_connections=1) == [{}] * 5
    assert [path for path in came if path not in ("/first", "/leaves")] == [f"/{number}" for number in range(5)]
    assert came.count("/leaves") <= 1


@pytest.mark.parametrize(("field", "value"), [("timeout", 0.0), ("max_connections", 0)])
def test_wrong_settings(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=field):
        Connection(**{field: value})
    with pytest.raises(InvalidRequestError, match="max_retries is -1"):
        RetryPolicy(max_retries=-1)
    with pytest.raises(InvalidRequestError, match="base_url is 'ftp://x'"):
        Server("s", "ftp://x", {})
