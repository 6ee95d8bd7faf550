"""A server over the small engine that says what its prompt tells it to: in this process, and on a real port."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
from fastapi import FastAPI

from ramet.runtime.engine import EngineFace
from ramet.runtime.engine.config import EngineConfig
from ramet.runtime.engine.loop import EngineLoop
from ramet.runtime.protocol import EngineDeadError
from ramet.runtime.server import ServerConfig, create_app
from ramet.runtime.server.connections import DEFAULT_MAX_CONNECTIONS
from ramet.runtime.server.gateway import Gateway
from ramet.runtime.server.serve import DrainingServer, bound_socket, url_of, uvicorn_config
from ramet.runtime.tokenizer import FastTokenizer, TokenizerSpec
from tests.runtime.engine.builders import byte_spec
from tests.runtime.engine.speaking import build_speaking

PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if not loop.last %}</s>{% endif %}{% endfor %}"
)
"""Ends with the last message, so that what stands behind ``say:`` in it is the answer."""
HERMES_TEMPLATE = (
    "{# <tool_call> #}{% if tools %}tools: {{ tools | tojson }}</s>{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% if not loop.last %}</s>{% endif %}{% endfor %}"
)
NAMING = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/responses/compact",
    "/v1/messages",
    "/v1/messages/count_tokens",
)
"""Routes that want the model named."""
SECONDS = 60.0
"""No request of a test takes longer."""


def spec(template: str | None = PLAIN_TEMPLATE) -> TokenizerSpec:
    return msgspec.structs.replace(byte_spec(), chat_template=template)


def open_engine(tokenizer_spec: TokenizerSpec, **settings: Any) -> EngineFace:
    built = build_speaking(EngineConfig(context_length=2000, kv_tokens=8000, **settings))
    return EngineFace(EngineLoop(built.core, built.info), FastTokenizer(tokenizer_spec))


@dataclass
class Served:
    """An application that is called in this process, each request on an event loop of its own."""

    app: FastAPI
    engine: EngineFace
    headers: dict[str, str]

    @property
    def gateway(self) -> Gateway:
        gateway: Gateway = self.app.state.server.gateway
        return gateway

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, path, **options)

        return asyncio.run(asyncio.wait_for(send(), SECONDS))

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app), base_url="http://test", headers=self.headers
        )

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: object = None, **options: Any) -> httpx.Response:
        """To the routes of others with the model's name, where the body names none."""
        if isinstance(body, dict) and path in NAMING:
            body = {"model": self.engine.info.model, **body}
        if body is not None:
            options["json"] = body
        return self.request("POST", path, **options)

    def chat(self, text: str = "say:hello", **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
        return self.post("/v1/chat/completions", body)

    def complete(self, prompt: object = "say:hello", **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})


@contextmanager
def served(
    config: ServerConfig | None = None,
    *,
    template: str | None = PLAIN_TEMPLATE,
    headers: dict[str, str] | None = None,
    width: int = 128,
) -> Iterator[Served]:
    """Closes the engine at the end, after a look at its pages."""
    tokenizer_spec = spec(template)
    with open_engine(tokenizer_spec) as engine:
        app = create_app(engine, tokenizer_spec, config, width=width)
        yield Served(app, engine, headers or {})
        wait_until_idle(engine)
        assert app.state.server.gateway.live == 0


def wait_until_idle(engine: EngineFace) -> None:
    """Bounded; then pages and requests have to add up."""
    try:
        engine.check_alive()
    except EngineDeadError:
        return  # closed by the test: nothing is left in it
    end = time.monotonic() + SECONDS
    while (stats := engine.stats()).running_requests + stats.waiting_requests:
        assert time.monotonic() < end, "requests are left in the engine"
        time.sleep(0.002)
    engine.check_integrity()


@dataclass
class Live:
    """A server on a real port."""

    url: str
    engine: EngineFace
    server: DrainingServer
    thread: threading.Thread
    gateway: Gateway

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()


@contextmanager
def live(config: ServerConfig | None = None, *, template: str | None = PLAIN_TEMPLATE) -> Iterator[Live]:
    tokenizer_spec = spec(template)
    with (
        open_engine(tokenizer_spec) as engine,
        live_engine(engine, tokenizer_spec, config or ServerConfig(drain_timeout=1.0)) as server,
    ):
        yield server


@contextmanager
def live_engine(
    engine: EngineFace,
    tokenizer_spec: TokenizerSpec,
    config: ServerConfig,
    *,
    send_buffer: int | None = None,
    max_connections: int = DEFAULT_MAX_CONNECTIONS,
) -> Iterator[Live]:
    """Any engine on a real port; at the end nothing may be left in it.

    ``send_buffer``: bytes that the kernel keeps of what a client does not read.
    """
    listener = bound_socket("127.0.0.1", 0)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    app = create_app(engine, tokenizer_spec, config)
    gateway: Gateway = app.state.server.gateway
    server = DrainingServer(uvicorn_config(app, config, max_connections=max_connections), gateway)
    started = threading.Event()
    server.on_started = started.set
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert started.wait(SECONDS)
    running = Live(url_of(listener, "127.0.0.1"), engine, server, thread, gateway)
    try:
        yield running
    finally:
        running.stop()
    wait_until_idle(engine)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """What the events of a stream say; it has to end with [DONE]."""
    *data, last = event_data(response.text)
    assert last == "[DONE]"
    return [json.loads(one) for one in data]


def event_data(text: str) -> list[str]:
    assert text.endswith("\n\n")
    lines = text.strip().split("\n\n")
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [line.removeprefix("data: ") for line in lines]


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer in OpenAI's body."""
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"]
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error
