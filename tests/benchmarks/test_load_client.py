"""Streams of servers that keep to OpenAI's form, and of those that do not."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from benchmarks.load_client import LoadClient, ServedCall, Target, open_client

TARGET = Target("http://test/v1/", "m")


def chunk(text: str | None = None, **fields: object) -> str:
    choices = [{"delta": {"content": text}}] if text is not None else []
    return f"data: {json.dumps({'choices': choices, **fields})}\n\n"


USAGE = chunk(usage={"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}})
DONE = "data: [DONE]\n\n"


def ask(*parts: str, status: int = 200, target: Target = TARGET) -> tuple[ServedCall, httpx.Request]:
    seen: list[httpx.Request] = []

    class Body(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for part in parts:
                yield part.encode()

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(status, stream=Body())

    async def run() -> ServedCall:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            return await LoadClient(target, http).call("hello", 5)

    return asyncio.run(run()), seen[0]


def test_a_whole_answer() -> None:
    done, request = ask(chunk(""), chunk("one "), chunk("two"), USAGE, DONE)
    assert str(request.url) == "http://test/v1/chat/completions"
    assert json.loads(request.content)["ignore_eos"] is True
    assert done.error is None
    assert done.text == "one two"
    assert (done.num_prompt_tokens, done.num_output_tokens, done.num_cached_tokens) == (9, 5, 4)
    assert done.sent <= done.first_token <= done.last_token
    assert len(done.gaps) == 1


def test_lines_may_be_cut_anywhere() -> None:
    whole = chunk("one ") + chunk("two") + USAGE + DONE
    done, _ = ask(*whole)
    assert done.error is None
    assert done.text == "one two"


def test_a_server_without_usage_is_counted_by_chunks() -> None:
    done, request = ask(chunk("a"), chunk("b"), DONE, target=Target("http://test", "m", ignore_eos=False))
    assert done.num_output_tokens == 2
    assert "ignore_eos" not in json.loads(request.content)


def test_a_server_that_ends_without_a_word_but_said_why() -> None:
    ended = f"data: {json.dumps({'choices': [{'delta': {}, 'finish_reason': 'length'}], 'usage': None})}\n\n"
    usage = 'data: {"choices": [], "usage": {"prompt_tokens": 3, "prompt_tokens_details": null}}\n\n'
    done, _ = ask(chunk("a"), chunk("b"), ended, usage)
    assert (done.error, done.text, done.num_prompt_tokens, done.num_output_tokens) == (None, "ab", 3, 2)
    assert done.finish_reason == "length"


def test_usage_may_come_with_each_chunk_and_reasoning_under_either_name() -> None:
    reasoned = [
        f"data: {json.dumps({'choices': [{'delta': {name: 'x'}}], 'usage': {'completion_tokens': count}})}\n\n"
        for count, name in enumerate(("reasoning", "reasoning_content", "content"), 1)
    ]
    done, _ = ask(*reasoned, DONE)
    assert (done.error, done.text, done.num_output_tokens) == (None, "xxx", 3)


@pytest.mark.parametrize(
    ("parts", "status", "said"),
    [
        ((chunk("a"),), 200, "neither [DONE] nor a finish_reason"),
        ((chunk("a"), "data: <html>\n\n"), 200, "<html>"),
        ((chunk("a"), "data: [1]\n\n"), 200, "[1]"),
        ((DONE,), 200, "without text"),
        ((chunk("a"), 'data: {"error": {"message": "the engine died"}}\n\n'), 200, "the engine died"),
        (('{"error": "full"}',), 429, "status 429"),
    ],
)
def test_what_is_no_whole_answer(parts: tuple[str, ...], status: int, said: str) -> None:
    done, _ = ask(*parts, status=status)
    assert done.error is not None
    assert said in done.error


def test_nobody_there() -> None:
    async def run() -> ServedCall:
        async with open_client(Target("http://127.0.0.1:1", "m", "key"), 5.0) as client:
            return await client.call("hello", 5)

    assert "ConnectError" in (asyncio.run(run()).error or "")


def test_texts_go_on_and_conversations_are_sent_whole() -> None:
    seen: list[tuple[str, dict[str, object]]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, text=f"data: {json.dumps({'choices': [{'text': 'on'}]})}\n\n" + DONE)

    async def run() -> list[ServedCall]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            client = LoadClient(TARGET, http)
            messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
            return [
                await client.complete("it goes", 3),
                await client.chat(messages, 4, ignore_eos=False, seed=1),
            ]

    assert [done.text for done in asyncio.run(run())] == ["on", "on"]
    (path, body), (chat_path, chat) = seen
    assert (path, body["prompt"], body["max_tokens"]) == ("/v1/completions", "it goes", 3)
    assert chat_path == "/v1/chat/completions"
    assert (chat["ignore_eos"], chat["seed"], len(str(chat["messages"])) > 20) == (False, 1, True)
