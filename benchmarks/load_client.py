"""One streamed answer of an OpenAI-compatible server, with the caller's clock on every chunk."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

STREAM_END = b"[DONE]"
CONNECT_SECONDS = 30.0

Messages = Sequence[Mapping[str, str]]
"""Of a conversation, as OpenAI's API has them."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and what it calls its model."""

    url: str
    """With or without ``/v1`` at its end."""
    model: str
    api_key: str | None = None
    ignore_eos: bool = True
    """Send ``ignore_eos``, so that all answers are as long as asked. OpenAI's own servers refuse it."""

    @property
    def chat_url(self) -> str:
        return self._route("chat/completions")

    @property
    def completion_url(self) -> str:
        return self._route("completions")

    def _route(self, name: str) -> str:
        return f"{self.url.rstrip('/').removesuffix('/v1')}/v1/{name}"


@dataclass(slots=True)
class ServedCall:
    """One call as its client saw it. Times are seconds on the client's clock; 0.0: it did not come so far."""

    sent: float
    first_token: float = 0.0
    last_token: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Between chunks with text; a server may put several tokens into one."""
    text: str = ""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    error: str | None = None
    """Why it is no whole answer."""
    finish_reason: str | None = None
    """As the server says it: stop, length, ...; None: it did not say."""

    @property
    def seconds_per_token(self) -> float | None:
        """From the first to the last token; None for an answer of one."""
        if self.num_output_tokens < 2:
            return None
        return (self.last_token - self.first_token) / (self.num_output_tokens - 1)


class ServerClient(ABC):
    """Asks one server for answers. What goes wrong is in a call's ``error``."""

    def __init__(self, target: Target) -> None:
        self._target = target

    async def chat(self, messages: Messages, max_tokens: int, **fields: Any) -> ServedCall:
        """A greedy answer to a conversation. ``fields`` replace those of the body."""
        asked = {"messages": list(messages)}
        return await self._send(self._target.chat_url, request_body(self._target, asked, max_tokens, fields))

    async def complete(self, prompt: str, max_tokens: int) -> ServedCall:
        """How a text goes on, greedily; no chat template adds to its tokens."""
        asked = {"prompt": prompt}
        return await self._send(self._target.completion_url, request_body(self._target, asked, max_tokens, {}))

    @abstractmethod
    async def _send(self, url: str, body: dict[str, Any]) -> ServedCall: ...


class LoadClient(ServerClient):
    """Over as many connections as the calls need."""

    def __init__(self, target: Target, http: httpx.AsyncClient) -> None:
        super().__init__(target)
        self._http = http

    async def call(self, prompt: str, max_tokens: int) -> ServedCall:
        """A greedy answer to one user's message."""
        return await self.chat([{"role": "user", "content": prompt}], max_tokens)

    async def _send(self, url: str, body: dict[str, Any]) -> ServedCall:
        done = ServedCall(sent=time.perf_counter())
        try:
            async with self._http.stream("POST", url, json=body) as response:
                if response.status_code != 200:
                    said = (await response.aread()).decode(errors="replace")
                    done.error = f"status {response.status_code}: {said[:300]}"
                    return done
                await follow(event_data(response.aiter_bytes()), done)
        except httpx.HTTPError as error:
            done.error = f"{type(error).__name__}: {error}"
        return done


@asynccontextmanager
async def open_client(target: Target, timeout: float) -> AsyncIterator[LoadClient]:
    """``timeout``: seconds without a byte after which a call has failed."""
    headers = {"authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    async with httpx.AsyncClient(
        headers=headers,
        timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=False,
    ) as http:
        yield LoadClient(target, http)


async def stream_events(response: httpx.Response) -> AsyncIterator[bytes]:
    """The data of server-sent events, one line each, as they arrive."""
    async for data in event_data(response.aiter_bytes()):
        yield data


async def event_data(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of server-sent events, one line each; ``parts`` may be cut anywhere."""
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def request_body(
    target: Target, asked: Mapping[str, Any], max_tokens: int, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Of a greedy, streamed answer. ``asked``: the prompt or the messages; ``fields`` replace what is there."""
    body: dict[str, Any] = {
        "model": target.model,
        **asked,
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.ignore_eos:
        body["ignore_eos"] = True
    return body | dict(fields)


async def follow(events: AsyncIterator[bytes], done: ServedCall) -> None:
    """Reads the data of an answer's events into ``done``, until its end or an error in it."""
    is_whole, num_chunks, said = False, 0, []
    async for data in events:
        if data == STREAM_END:
            is_whole = True
            break
        chunk = _chunk(data)
        if chunk is None or "error" in chunk:
            done.error = f"error in the stream: {data[:300].decode(errors='replace')}"
            return
        # Some servers end a stream without [DONE]: one whose answer says how it ended is whole as well.
        reasons = [choice.get("finish_reason") for choice in chunk.get("choices") or ()]
        done.finish_reason = next(filter(None, reasons), done.finish_reason)
        is_whole = is_whole or done.finish_reason is not None
        _count(chunk.get("usage") or {}, done)
        if text := _said(chunk):
            now = time.perf_counter()
            if num_chunks:
                done.gaps.append(now - done.last_token)
            else:
                done.first_token = now
            done.last_token = now
            num_chunks += 1
            said.append(text)
    done.text = "".join(said)
    # A server that does not tell its usage sends about a token a chunk.
    done.num_output_tokens = done.num_output_tokens or num_chunks
    if not is_whole:
        done.error = "the stream ended with neither [DONE] nor a finish_reason"
    elif not num_chunks:
        done.error = "an answer without text"


def _chunk(data: bytes) -> dict[str, Any] | None:
    """None: it is none."""
    try:
        chunk = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return None
    return chunk if isinstance(chunk, dict) else None


def _count(usage: dict[str, Any], done: ServedCall) -> None:
    """Servers tell it once at the end, or so far with each chunk."""
    done.num_prompt_tokens = usage.get("prompt_tokens") or done.num_prompt_tokens
    done.num_output_tokens = usage.get("completion_tokens") or done.num_output_tokens
    details = usage.get("prompt_tokens_details") or {}
    done.num_cached_tokens = details.get("cached_tokens") or done.num_cached_tokens


def _said(chunk: dict[str, Any]) -> str:
    choices = chunk.get("choices")
    if not choices:
        return ""
    if text := choices[0].get("text"):
        return str(text)
    delta = choices[0].get("delta") or {}
    said: str = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
    return said
