"""The one module that reads the environment.

Components receive values from the record below; none of them looks at ``os.environ`` itself.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ramet.runtime.protocol.errors import InvalidRequestError

DEFAULT_CACHE_BYTES = 8 << 30
OPENMP_SPIN_COUNT = "10000"
"""Rounds of OpenMP's busy wait, some tens of ns each. A step of SmolLM2 at batch 1 takes 17 to 18 ms with
5,000 to 300,000 (OpenMP's default), and 22 ms with 1,000."""
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
LOG_FORMATS = ("text", "json")

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 1 << (10 * power) for power, unit in enumerate("KMGT", start=1)}


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment variables say, checked."""

    cache_dir: Path
    """RAMET_CACHE_DIR, else $XDG_CACHE_HOME/ramet, else ~/.cache/ramet."""
    cache_bytes: int
    """RAMET_CACHE_BYTES: bound of the cache of prepared weights; 0 turns it off. Accepts 500M, 8GiB, ..."""
    offline: bool
    """RAMET_OFFLINE, HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE: models come from what is on disk only."""
    log_level: str
    """RAMET_LOG_LEVEL, one of LOG_LEVELS."""
    log_format: str
    """RAMET_LOG_FORMAT, one of LOG_FORMATS."""
    num_threads: int | None
    """RAMET_NUM_THREADS: CPU threads; None: the engine chooses."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """RAMET_API_KEY: what clients of a server have to send; several with commas between them."""
    native_kernels: bool = True
    """RAMET_NATIVE_KERNELS: compile and use the CPU kernels in C where there is a compiler. 0: torch's only."""


@cache
def environment() -> Environment:
    """The process's environment, read once, on the first call."""
    return read_environment(os.environ)


def bound_openmp_spinning() -> None:
    """Let OpenMP's idle threads spin for microseconds instead of milliseconds. To be called before torch is
    loaded; without effect after that, or where the user has set OpenMP's waiting policy.

    Threads that spin take the cores from whatever else runs: on two cores shared with other processes the
    engine's warm-up took 15 s with OpenMP's default and 5 s with this; alone it is as fast.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", OPENMP_SPIN_COUNT)


def variable(name: str) -> str | None:
    """A variable of other programs, such as OPENAI_API_KEY; None where it is unset or empty. Read at each call,
    and kept nowhere: it may be a secret."""
    return os.environ.get(name) or None


def child_environment(**added: str) -> dict[str, str]:
    """This process's variables for a child of it, with further ones."""
    return {**os.environ, **added}


def read_environment(variables: Mapping[str, str]) -> Environment:
    """Environment from any mapping. Raises InvalidRequestError that names the variable and what it accepts."""
    offline = ("RAMET_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return Environment(
        cache_dir=_cache_dir(variables),
        cache_bytes=_byte_count(variables, "RAMET_CACHE_BYTES", DEFAULT_CACHE_BYTES),
        offline=any(_flag(variables, name) for name in offline),
        log_level=_one_of(variables, "RAMET_LOG_LEVEL", LOG_LEVELS, "warning"),
        log_format=_one_of(variables, "RAMET_LOG_FORMAT", LOG_FORMATS, "text"),
        num_threads=_thread_count(variables),
        api_keys=tuple(key.strip() for key in variables.get("RAMET_API_KEY", "").split(",") if key.strip()),
        native_kernels=not variables.get("RAMET_NATIVE_KERNELS", "").strip()
        or _flag(variables, "RAMET_NATIVE_KERNELS"),
    )


def parse_byte_count(text: str) -> int:
    """Bytes in ``text``: a whole number with an optional unit K, M, G, T (powers of 1000) or KiB ... TiB.

    Raises ValueError where the text is anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", text.strip().upper())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a number of bytes")
    return int(float(match[1]) * _UNITS[match[2]]) if "." in match[1] else int(match[1]) * _UNITS[match[2]]


def _cache_dir(variables: Mapping[str, str]) -> Path:
    if own := variables.get("RAMET_CACHE_DIR"):
        return Path(own).expanduser()
    # The XDG base directory specification: a relative value is to be ignored.
    shared = variables.get("XDG_CACHE_HOME", "")
    base = Path(shared) if os.path.isabs(shared) else _home(variables) / ".cache"
    return base / "ramet"


def _home(variables: Mapping[str, str]) -> Path:
    if home := variables.get("HOME"):
        return Path(home)
    expanded = os.path.expanduser("~")
    # Without HOME and without an entry in the password database "~" stays as it is.
    return Path(expanded) if expanded != "~" else Path(os.sep)


def _flag(variables: Mapping[str, str], name: str) -> bool:
    value = variables.get(name, "").strip().lower()
    if value in ("", "0", "false", "no", "off"):
        return False
    if value in ("1", "true", "yes", "on"):
        return True
    raise InvalidRequestError(f"{name} is {variables[name]!r}; set it to 1 or 0", field=name)


def _byte_count(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, "")
    if not text.strip():
        return default
    try:
        return parse_byte_count(text)
    except ValueError:
        raise InvalidRequestError(
            f"{name} is {text!r}; set it to a number of bytes such as 8589934592, 8GiB or 500M "
            "(0 turns the cache off)",
            field=name,
        ) from None


def _one_of(variables: Mapping[str, str], name: str, choices: Sequence[str], default: str) -> str:
    value = variables.get(name, "").strip().lower() or default
    if value not in choices:
        raise InvalidRequestError(
            f"{name} is {variables[name]!r}; set it to one of {', '.join(choices)}", field=name
        )
    return value


def _thread_count(variables: Mapping[str, str]) -> int | None:
    text = variables.get("RAMET_NUM_THREADS", "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1024:
        raise InvalidRequestError(
            f"RAMET_NUM_THREADS is {text!r}; set it to a whole number from 1 to 1024", field="RAMET_NUM_THREADS"
        )
    return int(text)
