"""The bare client against a server that sends exactly these bytes, and against the fake one."""

import asyncio
import json

import pytest

from benchmarks.lean_client import LeanClient
from benchmarks.load_client import ServedCall, Target

EVENTS = b'data: {"choices": [{"text": "one "}]}\n\ndata: {"choices": [{"text": "two"}]}\n\ndata: [DONE]\n\n'
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"content-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def in_chunks(data: bytes, size: int) -> bytes:
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def ask(answer: bytes, *, timeout: float = 20.0, stays: bool = False) -> tuple[ServedCall, bytes]:
    """What comes of one completion, and what was sent. ``stays``: the server keeps the connection open."""
    seen: list[bytes] = []
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        seen.append(head + await reader.readexactly(length))
        writer.write(answer)
        await writer.drain()
        if stays:
            await ended.wait()
        writer.close()

    async def run() -> ServedCall:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            try:
                return await LeanClient(Target(f"http://127.0.0.1:{port}", "m", "key"), timeout).complete(
                    "go", 5
                )
            finally:
                ended.set()

    return asyncio.run(run()), seen[0]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_chunks_may_be_cut_anywhere(size: int) -> None:
    done, sent = ask(CHUNKED + in_chunks(EVENTS, size) + b"0\r\n\r\n")
    assert (done.error, done.text, done.num_output_tokens) == (None, "one two", 2)
    assert done.sent <= done.first_token <= done.last_token
    head, _, body = sent.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Authorization: Bearer key" in head
    assert json.loads(body)["prompt"] == "go"


def test_a_body_that_ends_with_its_connection() -> None:
    done, _ = ask(OK + b"content-type: text/event-stream\r\n\r\n" + EVENTS)
    assert (done.error, done.text) == (None, "one two")


def test_the_end_of_a_stream_is_enough() -> None:
    done, _ = ask(CHUNKED + in_chunks(EVENTS, 9), stays=True)
    assert (done.error, done.text) == (None, "one two")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 503 Busy\r\n\r\nlater", "status 503: later"),
        (CHUNKED + in_chunks(EVENTS[:40], 10), "IncompleteReadError"),
        (OK + b"\r\n" + EVENTS[:40], "the stream ended with neither"),
        (b"SSH-2.0\r\n", "ValueError"),
        (b"", "ValueError"),
        (CHUNKED + b"odd\r\n", "ValueError"),
    ],
)
def test_what_is_no_whole_answer(answer: bytes, error: str) -> None:
    done, _ = ask(answer)
    assert done.error is not None
    assert done.error.startswith(error)


def test_a_server_that_is_silent_or_not_there() -> None:
    done, _ = ask(CHUNKED, timeout=0.2, stays=True)
    assert done.error == "no answer within 0.2 s"
    nowhere = LeanClient(Target("http://127.0.0.1:1", "m"), 20.0)
    assert (asyncio.run(nowhere.chat([{"role": "user", "content": "u"}], 1)).error or "").startswith(
        "Connection"
    )
