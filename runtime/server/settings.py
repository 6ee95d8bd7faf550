"""The settings of ``ramet serve``: the command line, then a TOML file, then the defaults."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ramet.runtime.engine import EngineConfig
from ramet.runtime.engine.config import name_hint
from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.config import ServerConfig

DEFAULT_START_TIMEOUT = 600.0
DEFAULT_HANG_TIMEOUT = 120.0
MAX_BRACKETS = 1000
"""Of a file of settings: a parser of nested lists goes as deep as they are."""

_OWN = ("start_timeout", "hang_timeout", "api_key_file")
_AS_OPTIONS = {
    "api_key": "api_keys",
    "cors_origin": "cors_origins",
    "served_model_name": "served_model_names",
    "prefix_cache": "enable_prefix_cache",
}
"""What the command line calls them: a file may say either."""
_LISTS = ("api_keys", "cors_origins", "served_model_names")
_ELSEWHERE = {
    "max_queue_size": "max_queued_requests",
    "cors_allow_origins": "cors_origins",
    "timeout": "request_timeout",
}


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What to serve, and how."""

    engine: EngineConfig
    server: ServerConfig
    start_timeout: float
    """Seconds within which the model has to be loaded."""
    hang_timeout: float = DEFAULT_HANG_TIMEOUT
    """Seconds without a sign of life after which the engine is started again; 0: never."""


def serve_settings(
    given: Mapping[str, Any], file: Path | None, environment_keys: Sequence[str] = ()
) -> ServeSettings:
    """``given``: the command line's; None is not given. API keys of all sources count.

    Raises:
        InvalidRequestError: the file is no TOML, or a setting is unknown or out of range.
    """
    named = {name: value for name, value in given.items() if value is not None}
    settings = {**(_read_toml(file) if file is not None else {}), **named}
    keys = [*_as_list(settings.get("api_keys", []), "api_keys"), *environment_keys]
    if (key_file := settings.get("api_key_file")) is not None:
        keys += _read_keys(key_file)
    engine_names = EngineConfig.__struct_fields__
    server_names = ServerConfig.__struct_fields__
    known = (*engine_names, *server_names, *_OWN)
    for name in settings:
        if name not in known:
            raise InvalidRequestError(
                f"there is no setting {name!r}; {name_hint(name, known, _ELSEWHERE)}", field=name
            )
    engine = {name: value for name, value in settings.items() if name in engine_names and name != "model"}
    server = {name: value for name, value in settings.items() if name in server_names}
    for name in ("served_model_names", "cors_origins"):
        if name in server:
            server[name] = tuple(_as_list(server[name], name))
    if isinstance(server.get("response_store"), Path):
        server["response_store"] = str(server["response_store"])
    server["api_keys"] = tuple(dict.fromkeys(keys))
    return ServeSettings(
        EngineConfig.of(settings.get("model", "smollm2"), engine),
        ServerConfig(**server),
        _seconds("start_timeout", settings.get("start_timeout", DEFAULT_START_TIMEOUT)),
        _seconds("hang_timeout", settings.get("hang_timeout", DEFAULT_HANG_TIMEOUT), may_be_off=True),
    )


def described_settings(settings: ServeSettings) -> dict[str, Any]:
    """All of them as one flat mapping, less the keys: for the log."""
    return {
        **msgspec.structs.asdict(settings.engine),
        **{
            name: value for name, value in msgspec.structs.asdict(settings.server).items() if name != "api_keys"
        },
        "start_timeout": settings.start_timeout,
        "hang_timeout": settings.hang_timeout,
    }


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        text = file.read_bytes().decode("utf-8")
        if text.count("[") > MAX_BRACKETS:
            raise InvalidRequestError(
                f"{file} has {text.count('[')} brackets, which no settings need; give a file of settings",
                field="config",
            )
        content = tomllib.loads(text)
    except OSError as error:
        raise InvalidRequestError(f"{file} cannot be read: {error.strerror}", field="config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{file} is not TOML: {error}", field="config") from None
    settings: dict[str, Any] = {}
    for written, value in content.items():
        name = written.replace("-", "_")
        if isinstance(value, dict):
            raise InvalidRequestError(
                f"{file} has a table [{written}]; settings stand at its top, outside of tables", field=name
            )
        name = _AS_OPTIONS.get(name, name)
        if name in _LISTS and name != written.replace("-", "_") and isinstance(value, str):
            # Under the option's name it may be one, as there.
            value = [value]
        if name in settings:
            raise InvalidRequestError(f"{file} has {name} twice, under two names; remove one", field=name)
        settings[name] = value
    return settings


def _read_keys(file: object) -> list[str]:
    """One key a line; empty lines and those that begin with # are none."""
    if not isinstance(file, str | Path):
        raise InvalidRequestError(f"api_key_file is {file!r}; it must be a path", field="api_key_file")
    path = Path(file)
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}", field="api_key_file") from None
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path} is no text: {error}", field="api_key_file") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        # An empty file would open the server to everyone, which nobody means.
        raise InvalidRequestError(f"{path} has no key; write one a line", field="api_key_file")
    return keys


def _as_list(value: object, field: str) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise InvalidRequestError(f"{field} must be a list of strings", field=field)
    return list(value)


def _seconds(name: str, value: object, *, may_be_off: bool = False) -> float:
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not (1 <= number <= 1e6 or (may_be_off and number == 0)):
        hint = ", or 0 for never" if may_be_off else ""
        raise InvalidRequestError(
            f"{name} is {value!r}; it must be a number of seconds, at least 1{hint}", field=name
        )
    return number
