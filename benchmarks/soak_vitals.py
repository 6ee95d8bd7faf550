"""What a server and its engine hold, seen from outside, and whether it grew."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

IDLE_SECONDS = 60.0
"""Within which a server that is asked nothing has to come to rest."""
REPORT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """Of one moment without requests. Memory in bytes; pages of the engine's pool."""

    server_memory: int
    server_files: int
    server_threads: int
    server_tasks: int
    server_objects: int
    """Those that Python's garbage collector knows, after a collection."""
    engine_memory: int
    engine_files: int
    engine_threads: int
    total_pages: int
    free_pages: int
    cached_pages: int

    @property
    def lost_pages(self) -> int:
        return self.total_pages - self.free_pages - self.cached_pages

    def metrics(self) -> dict[str, float | None]:
        return {**{name: float(value) for name, value in asdict(self).items()}, "lost_pages": self.lost_pages}


SERVER_GROWTH: Mapping[str, int] = {
    "server_memory": 48 << 20,
    "server_files": 8,
    "server_threads": 8,
    "server_tasks": 4,
    "server_objects": 40_000,
}
"""What may be more at the end than at the first rest: pools of threads and connections that fill up, caches
with a bound, and the memory that fragments take. What leaks with every request is far more by then."""
ENGINE_GROWTH: Mapping[str, int] = {"engine_memory": 64 << 20, "engine_files": 8, "engine_threads": 8}


def growth(first: Vitals, last: Vitals, limits: Mapping[str, int]) -> list[str]:
    """What grew by more than its limit, in words."""
    return [
        f"{name} grew from {getattr(first, name):,} to {getattr(last, name):,}, by more than {limit:,}"
        for name, limit in limits.items()
        if getattr(last, name) - getattr(first, name) > limit
    ]


def unrest(stats: Mapping[str, Any]) -> list[str]:
    """What a server still does, by its /stats; nothing: it rests."""
    engine, server = stats["engine"], stats["server"]
    counts = {
        **{name: engine[name] for name in ("running_requests", "waiting_requests", "compiling_requests")},
        **{name: server[name] for name in ("live_answers", "live_programs", "sessions")},
        "pinned_tokens": engine["pinned_tokens"],
    }
    return [f"{name}: {count}" for name, count in counts.items() if count]


async def read_vitals(server_pid: int, report: Path, stats: Mapping[str, Any]) -> Vitals:
    """``report``: where the watched server writes; ``stats``: its /stats at rest.

    Raises:
        TimeoutError: it wrote nothing within REPORT_SECONDS.
    """
    report.unlink(missing_ok=True)
    os.kill(server_pid, signal.SIGUSR1)
    deadline = time.monotonic() + REPORT_SECONDS
    while not report.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the server's main thread did nothing for {REPORT_SECONDS:g} s")
        await asyncio.sleep(0.05)
    inside = json.loads(report.read_text(encoding="ascii"))
    engine_pid = engine_of(server_pid)
    engine = stats["engine"]
    return Vitals(
        server_memory=memory_of(server_pid),
        server_files=files_of(server_pid),
        server_threads=inside["threads"],
        server_tasks=inside["tasks"],
        server_objects=inside["objects"],
        engine_memory=memory_of(engine_pid),
        engine_files=files_of(engine_pid),
        engine_threads=len(os.listdir(f"/proc/{engine_pid}/task")),
        total_pages=engine["total_pages"],
        free_pages=engine["free_pages"],
        cached_pages=engine["cached_pages"],
    )


def engine_of(server_pid: int) -> int:
    """The server's child that holds most memory. Raises ProcessLookupError where it has none."""
    children = [
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent_of(pid) == server_pid
    ]
    if not children:
        raise ProcessLookupError(f"process {server_pid} has no child")
    return max(children, key=memory_of)


def parent_of(pid: int) -> int | None:
    """None: there is no such process any more (proc_pid_stat(5); the name may have spaces and brackets)."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def memory_of(pid: int) -> int:
    """Resident bytes; 0 where the process has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds_of(pid: int) -> float:
    """User and system time of a process, all threads. Raises FileNotFoundError where there is none."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def files_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
