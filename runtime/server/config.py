"""ServerConfig: every setting of the HTTP side, in one frozen record."""

from collections.abc import Sequence

import msgspec

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.protocol.reasoning import FORMATS as REASONING_FORMATS
from ramet.runtime.server.tools.formats import FORMATS as TOOL_FORMATS

MAX_PORT = 65535


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen, validated on construction.

    Raises:
        InvalidRequestError: a value is out of range; the message names the field, the value and the range.
    """

    host: str = "127.0.0.1"
    """Address to bind; the default is reached from this machine only."""
    port: int = 8000
    """0: one that is free."""
    served_model_names: tuple[str, ...] = ()
    """What clients may call the model; the first one is what answers say. Empty: the engine's own name."""
    api_keys: tuple[str, ...] = ()
    """Who may ask. Empty: everyone who reaches the port."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call the server from a browser. Empty: none."""
    max_queued_requests: int = 256
    """Answers that wait for the engine at most, beyond those that it computes; more are refused with 429."""
    max_programs: int = 64
    """Whole programs that run at once at most; more are refused with 429. Their calls queue as all others.
    0: none are taken."""
    max_sessions: int = 256
    """Sessions that one key may have open; more are refused with 429."""
    max_body_bytes: int = 32 << 20
    max_json_depth: int = 64
    """Objects and lists inside of one another in a request."""
    request_timeout: float = 3600.0
    """Seconds that one request may take, queue included; a request may ask for less."""
    drain_timeout: float = 30.0
    """Seconds that running requests get to finish once the server is told to end."""
    read_timeout: float = 60.0
    """Seconds within which the head of a request has to come, and then its body."""
    write_timeout: float = 60.0
    """Seconds that a client may leave what it was sent unread; then it is taken to be gone."""
    keep_alive_timeout: int = 75
    """Seconds that an idle connection stays open."""
    response_store: str = ""
    """A SQLite file for the responses that clients ask to keep. Empty: none are kept."""
    otel: bool = False
    """Send traces to an OpenTelemetry collector; which, say the SDK's own variables (OTEL_EXPORTER_OTLP_*)."""
    reasoning_format: str = "auto"
    """How the model marks its reasoning: a name of ``protocol.reasoning.FORMATS``, none, or auto (from the
    chat template)."""
    tool_format: str = "auto"
    """How the model writes tool calls: hermes, llama3, mistral, json, or auto (from the chat template)."""

    def __repr__(self) -> str:
        """Without the keys: a record ends up in logs and tracebacks."""
        shown = ", ".join(
            f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "api_keys"
        )
        return f"ServerConfig({shown}, api_keys=<{len(self.api_keys)} hidden>)"

    def __post_init__(self) -> None:
        _check_int("port", self.port, 0, MAX_PORT)
        _check_int("max_queued_requests", self.max_queued_requests, 0, 1 << 20)
        _check_int("max_programs", self.max_programs, 0, 1 << 16)
        _check_int("max_sessions", self.max_sessions, 0, 1 << 16)
        _check_int("max_body_bytes", self.max_body_bytes, 1024, 1 << 32)
        _check_int("max_json_depth", self.max_json_depth, 8, 200)
        _check_int("keep_alive_timeout", self.keep_alive_timeout, 0, 86400)
        _check_seconds("request_timeout", self.request_timeout, 0.1)
        _check_seconds("read_timeout", self.read_timeout, 0.1)
        _check_seconds("write_timeout", self.write_timeout, 0.1)
        _check_seconds("drain_timeout", self.drain_timeout, 0.0)
        if not isinstance(self.otel, bool):
            raise InvalidRequestError(f"otel is {self.otel!r}; it must be true or false", field="otel")
        for name in ("host", "response_store"):
            if not isinstance(getattr(self, name), str):
                raise InvalidRequestError(f"{name} is {getattr(self, name)!r}; it must be a string", field=name)
        if not self.host:
            raise InvalidRequestError("host is empty; give an address such as 127.0.0.1", field="host")
        _check_name("tool_format", self.tool_format, ("auto", *TOOL_FORMATS))
        _check_name("reasoning_format", self.reasoning_format, ("auto", "none", *REASONING_FORMATS))
        for name in ("served_model_names", "api_keys", "cors_origins"):
            if any(not isinstance(entry, str) or not entry.strip() for entry in getattr(self, name)):
                raise InvalidRequestError(f"{name} has an empty entry; remove it", field=name)
        for key in self.api_keys:
            if not key.isascii() or not key.isprintable() or " " in key:
                # The key itself is not shown: messages end up in logs.
                raise InvalidRequestError(
                    "api_keys has a key with spaces or characters beyond ASCII, which no header can carry",
                    field="api_keys",
                )


def _check_name(field: str, value: object, names: Sequence[str]) -> None:
    if value not in names:
        raise InvalidRequestError(f"{field} is {value!r}; it must be one of {', '.join(names)}", field=field)


def _check_int(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequestError(
            f"{field} is {value!r}; it must be an integer from {low} to {high}", field=field
        )


def _check_seconds(field: str, value: object, low: float) -> None:
    # `not >=` so that a NaN is refused as well.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= 1e7:
        raise InvalidRequestError(
            f"{field} is {value!r}; it must be a number of seconds, at least {low:g}", field=field
        )
