"""How many threads the CPU's operations get."""

import math
import os
from pathlib import Path

import torch

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def choose_threads(configured: int | None, environment: int | None) -> int:
    """The setting, else the environment's, else torch's own choice (one a physical core) as far as this process
    may use them: threads that have to share a core spin against each other, and everything becomes many times
    slower.
    """
    if configured is not None:
        return configured
    if environment is not None:
        return environment
    return max(1, min(torch.get_num_threads(), usable_cores()))


def usable_cores(cpu_max: Path = _CPU_MAX) -> int:
    """Cores that this process may run on: its affinity, and what its cgroup's quota leaves (``cpu.max``, cgroup
    v2).
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    if not cpu_max.is_file():
        return cores
    quota, _, period = cpu_max.read_text().strip().partition(" ")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return cores
    return max(1, min(cores, math.ceil(int(quota) / int(period))))
