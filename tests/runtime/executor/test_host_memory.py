"""The allocator's settings."""

import platform
import subprocess
import sys

PROGRAM = """
import torch
from ramet.runtime.executor.host_memory import keep_freed_memory
print(keep_freed_memory())
blocks = [torch.ones(1 << 20) for _ in range(8)]
del blocks
print(float(torch.ones(1 << 22).sum()))
"""


def test_it_is_accepted_by_glibc_and_harmless_elsewhere() -> None:
    # In a process of its own: the settings are the process's.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    accepted, total = done.stdout.split()
    assert accepted == str(platform.libc_ver()[0] == "glibc")
    assert float(total) == 1 << 22
