"""What travels between EngineProcess and its engine: tagged records in MessagePack, one a ZeroMQ message."""

import builtins
from typing import Any, Literal

import msgspec

from ramet.runtime import protocol
from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.protocol import EngineDeadError, GenerateInput, TextOutput
from ramet.runtime.tokenizer import TokenizerSpec

CallName = Literal["stats", "flush_cache", "check_integrity", "heartbeat", "cache_outline", "release_session"]


class ErrorRecord(msgspec.Struct, frozen=True):
    """An exception as data."""

    kind: str
    message: str
    field: str | None = None


class Submit(msgspec.Struct, frozen=True, tag=True):
    inputs: list[GenerateInput]


class Abort(msgspec.Struct, frozen=True, tag=True):
    request_ids: list[str]


class Call(msgspec.Struct, frozen=True, tag=True):
    call_id: int
    name: CallName
    argument: str = ""
    """Of a cache_outline: what salts begin with. Of a release_session: the session."""


class Close(msgspec.Struct, frozen=True, tag=True):
    pass


ToEngine = Submit | Abort | Call | Close


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine can answer; sent once, first."""

    info: EngineInfo
    tokenizer: TokenizerSpec


class StartFailed(msgspec.Struct, frozen=True, tag=True):
    """Instead of Ready; the process ends."""

    error: ErrorRecord


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """All that one step has to say."""

    outputs: list[TextOutput]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The submission that this request belongs to was refused as a whole."""

    request_id: str
    error: ErrorRecord


class Result(msgspec.Struct, frozen=True, tag=True):
    call_id: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    """MessagePack of what the call returned; nil where it failed."""
    error: ErrorRecord | None = None


class Died(msgspec.Struct, frozen=True, tag=True):
    """The engine failed for good; the process ends."""

    error: ErrorRecord


FromEngine = Ready | StartFailed | Outputs | Refused | Result | Died

_PROTOCOL_ERRORS: dict[str, type[protocol.RametError]] = {
    name: value
    for name in protocol.__all__
    if isinstance(value := getattr(protocol, name), type) and issubclass(value, protocol.RametError)
}


def describe_error(error: BaseException) -> ErrorRecord:
    return ErrorRecord(type(error).__name__, str(error), getattr(error, "field", None))


def revive_error(record: ErrorRecord) -> Exception:
    """An exception of the same type and message, if it is ramet's or Python's own; else an EngineDeadError
    naming it.
    """
    known = _PROTOCOL_ERRORS.get(record.kind)
    if known is not None:
        if issubclass(known, protocol.InvalidRequestError):
            return known(record.message, field=record.field)
        return known(record.message)
    builtin: Any = getattr(builtins, record.kind, None)
    if (
        isinstance(builtin, type)
        and issubclass(builtin, Exception)
        and not issubclass(builtin, UnicodeError | ExceptionGroup)
    ):
        revived: Exception = builtin(record.message)
        return revived
    return EngineDeadError(f"{record.kind}: {record.message}")


def revive_ramet_error(record: ErrorRecord) -> protocol.RametError:
    """As revive_error; what is not ramet's own becomes an EngineDeadError."""
    error = revive_error(record)
    if isinstance(error, protocol.RametError):
        return error
    return EngineDeadError(f"{record.kind}: {record.message}")
