"""A long run in parts: what was answered is kept as it comes, and the next run goes on behind it.

One file a system, a JSON line a part, the first line says of what: parts of another run are not taken for this
one's.
"""

import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

Part = TypeVar("Part")


class OtherRunError(ValueError):
    """The journal is of a run with other requests or settings."""


@dataclass(frozen=True, slots=True)
class Journal(Generic[Part]):
    """Parts of one system's run. ``done``: those of earlier runs, in order."""

    path: Path
    done: list[Part]

    @classmethod
    def open(cls, path: Path, kind: type[Part], key: str) -> "Journal[Part]":
        """Raises OtherRunError: it is there already, and not of ``key``."""
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.encode({"key": key}) + b"\n")
        first, *lines = path.read_bytes().splitlines()
        if msgspec.json.decode(first) != {"key": key}:
            raise OtherRunError(
                f"{path} is of other requests or settings; move it away, or name another folder"
            )
        return cls(path, [msgspec.json.decode(line, type=kind) for line in lines])

    def append(self, part: Part) -> None:
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(part) + b"\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """How a run is divided. ``folder``: of its journals. ``ends``: no part begins later (time.monotonic)."""

    folder: Path
    ends: float | None = None
    size: int = 160
    """Requests of one part."""

    @classmethod
    def within(cls, folder: Path, seconds: float | None) -> "Parts":
        return cls(folder=folder, ends=None if seconds is None else time.monotonic() + seconds)

    @property
    def is_over(self) -> bool:
        return self.ends is not None and time.monotonic() >= self.ends

    def journal(self, name: str, kind: type[Part], settings: Sequence[object]) -> Journal[Part]:
        """Of the run called ``name``; ``settings``: all that its answers depend on."""
        key = hashlib.sha256(msgspec.json.encode([self.size, *settings])).hexdigest()
        slug = re.sub(r"\W+", "-", name).strip("-")
        return Journal.open(self.folder / f"{slug}.jsonl", kind, key)
