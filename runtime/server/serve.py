"""Runs a server until it is told to end: the socket, the engine's process, uvicorn, and the way out."""

import asyncio
import contextlib
import errno
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from ramet.runtime.engine import EngineProcess
from ramet.runtime.engine.process import DEFAULT_BUILDER
from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.app import create_app
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.connections import DEFAULT_MAX_CONNECTIONS, ConnectionLimits, bounded
from ramet.runtime.server.gateway import Gateway
from ramet.runtime.server.open_files import connection_limit
from ramet.runtime.server.response_store import ResponseStore
from ramet.runtime.server.settings import ServeSettings, described_settings

logger = logging.getLogger(__name__)

WAITING_CONNECTIONS = 2048
ACCEPTED_AT_ONCE = 16
"""Connections of one turn of the event loop. They are counted some turns later, and what they take the place of
is closed a turn after that: until then all of them are open files."""
CLIENTS_FAULTS = ("Invalid HTTP request", "Unsupported upgrade request", "No supported WebSocket library")
"""What uvicorn warns of, a line or two each time: whoever reaches the port could fill the log."""
LAST_WORDS_SECONDS = 5
"""After the drain, for streams to tell their clients that they were cut."""

Announce = Callable[[EngineProcess, str], None]
"""Called with the engine and the server's URL once requests are taken."""


def serve(settings: ServeSettings, announce: Announce, *, builder: str = DEFAULT_BUILDER) -> None:
    """Returns when SIGTERM or SIGINT came and what ran has ended.

    The port is bound before the model is loaded, so that one that is taken is known at once, and listened to
    after, so that nobody is let in before there is someone to answer.

    Raises:
        InvalidRequestError: the address cannot be bound, the store cannot be opened, or a setting does not suit
            the model.
        ModelLoadError, EngineDeadError: the engine could not be started.
    """
    config = settings.server
    logger.info("settings: %s", described_settings(settings))
    if config.response_store:
        # What is wrong with it is known before the model is loaded.
        ResponseStore(config.response_store).close()
    with (
        contextlib.closing(bound_socket(config.host, config.port)) as listener,
        EngineProcess(
            settings.engine.model,
            start_timeout=settings.start_timeout,
            supervised=True,
            hang_timeout=settings.hang_timeout or None,
            builder=builder,
            **_others(settings),
        ) as engine,
    ):
        app = create_app(engine, engine.tokenizer_spec, config, width=settings.engine.max_running_requests)
        server = DrainingServer(
            uvicorn_config(app, config, max_connections=connection_limit()), app.state.server.gateway
        )
        server.on_started = lambda: announce(engine, url_of(listener, config.host))
        with _signals_end_the_server_only(), _quiet(logging.getLogger("uvicorn.error")):
            server.run(sockets=[listener])


class UnaskedWarnings(logging.Filter):
    """Of uvicorn: what clients cause, and requests that a second Ctrl-C has ended, which is what it is for."""

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        cause = record.exc_info[1] if record.exc_info else None
        # The lifespan's end is told as a text.
        is_cancelled = isinstance(cause, asyncio.CancelledError) or said.rstrip().endswith("CancelledError")
        return not (is_cancelled or said.startswith(CLIENTS_FAULTS))


class DrainingServer(uvicorn.Server):
    """Tells the gateway when it begins to shut down."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway
        self.on_started: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            # Those that nobody has accepted yet wait in the kernel.
            one.listen(WAITING_CONNECTIONS)
        self.on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.start_draining()
        await super().shutdown(sockets)


def bound_socket(host: str, port: int) -> socket.socket:
    """Bound, and not listening yet.

    Raises:
        InvalidRequestError: the address is no address of this machine, or the port is in use.
    """
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise InvalidRequestError(f"host {host[:80]!r} is no address: {error}", field="host") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Others may have bound it with the same option, and listen.
        listener.set_inheritable(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise InvalidRequestError(
                f"port {port} of {host} is in use; choose another one with --port, or 0 for a free one",
                field="port",
            ) from None
        raise InvalidRequestError(
            f"port {port} of {host} cannot be bound: {error.strerror}", field="port"
        ) from None
    return listener


def url_of(listener: socket.socket, host: str) -> str:
    """Where a client on this machine reaches the server."""
    port = listener.getsockname()[1]
    if host in ("0.0.0.0", "::", ""):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _others(settings: ServeSettings) -> dict[str, object]:
    return {
        name: getattr(settings.engine, name) for name in settings.engine.__struct_fields__ if name != "model"
    }


def uvicorn_config(
    app: object, config: ServerConfig, *, max_connections: int = DEFAULT_MAX_CONNECTIONS
) -> uvicorn.Config:
    connection = bounded(ConnectionLimits(config.read_timeout, config.write_timeout, max_connections))
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=connection,  # type: ignore[arg-type]
        ws="none",
        backlog=ACCEPTED_AT_ONCE,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=config.keep_alive_timeout,
        timeout_graceful_shutdown=math.ceil(config.drain_timeout) + LAST_WORDS_SECONDS,
    )


@contextlib.contextmanager
def _quiet(uvicorn_logger: logging.Logger) -> Iterator[None]:
    unasked = UnaskedWarnings()
    uvicorn_logger.addFilter(unasked)
    try:
        yield
    finally:
        uvicorn_logger.removeFilter(unasked)


@contextlib.contextmanager
def _signals_end_the_server_only() -> Iterator[None]:
    """uvicorn raises the signals that ended it once more when it is done; by then they have been followed."""
    ended_by = (signal.SIGINT, signal.SIGTERM)
    before = {one: signal.signal(one, lambda *_: None) for one in ended_by}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
