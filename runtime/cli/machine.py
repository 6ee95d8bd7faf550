"""What this process runs on, as far as the operating system tells without further packages."""

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """None: the operating system does not tell."""

    platform: str
    cpu: str
    cores: int
    """That this process may use."""
    memory_bytes: int | None
    available_bytes: int | None


def describe_machine() -> Machine:
    """As it is now."""
    return Machine(
        platform=platform.platform(),
        cpu=_cpu_name(),
        cores=usable_cores(),
        memory_bytes=_memory_bytes(),
        available_bytes=_available_bytes(),
    )


def usable_cores() -> int:
    """CPUs that this process may be scheduled on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seconds_since_process_start() -> float | None:
    """Since the kernel started this process, to a hundredth of a second (proc_pid_stat(5)); None off Linux."""
    try:
        # Fields are counted from the end of the command's name, which may itself contain anything.
        fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, AttributeError, IndexError):
        return None


def resident_bytes() -> int | None:
    """Memory of this process that is in RAM now; None off Linux."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _available_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        (found,) = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        return int(found) * 1024
    except (OSError, ValueError):
        return None
