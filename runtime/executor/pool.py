"""How large the KV pool is: from what the caller asked for, or from the memory that is free."""

import os
from pathlib import Path

import torch

from ramet.runtime.models.config import ModelConfig
from ramet.runtime.protocol import InvalidRequestError, ModelLoadError

# Share of the memory that may be used without being asked: on an accelerator all but what activations need, on
# a CPU, whose memory others use too, a quarter of what is available.
DEVICE_MEMORY_FRACTION = 0.9
HOST_MEMORY_FRACTION = 0.25
# On a CPU more tokens than this are rarely alive at once.
HOST_DEFAULT_TOKENS = 65_536

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def kv_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes that one token's keys and values take in all layers."""
    head = config.head_dim * dtype.itemsize
    # Keys and values of int8 have an fp32 scale each.
    return 2 * config.num_layers * config.num_kv_heads * (head + (4 if dtype is torch.int8 else 0))


def kv_pool_size(
    config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    page_size: int,
    kv_tokens: int | None = None,
    memory_fraction: float | None = None,
) -> int:
    """Number of pages of ``page_size`` tokens. Call it once the weights are on the device.

    kv_tokens: that many tokens, rounded up to whole pages. Else memory_fraction: on a CPU of the available
    memory; on a CUDA device of all its memory, less what is in use. Neither: a default fraction, and on a CPU
    enough for the longest context or HOST_DEFAULT_TOKENS, whichever is more, at most.

    Raises:
        InvalidRequestError: kv_tokens is not positive or does not fit; memory_fraction is not in (0, 1].
        ModelLoadError: not one page fits into the memory that is left.
    """
    if memory_fraction is not None and not 0.0 < memory_fraction <= 1.0:
        raise InvalidRequestError(
            f"memory_fraction is {memory_fraction}; it must be above 0 and at most 1", field="memory_fraction"
        )
    bytes_per_token = kv_bytes_per_token(config, dtype)
    if kv_tokens is not None:
        return _explicit_pages(kv_tokens, bytes_per_token, page_size, device)
    usable = _usable_bytes(device, memory_fraction)
    pages = usable // (bytes_per_token * page_size)
    if pages < 1:
        raise ModelLoadError(
            f"no KV page fits: a page of {page_size} tokens takes {_mib(bytes_per_token * page_size)}, and "
            f"{_mib(max(0, usable))} of {device}'s memory may be used for KV; free memory or lower page_size"
        )
    if device.type == "cpu" and memory_fraction is None:
        pages = min(pages, -(-max(HOST_DEFAULT_TOKENS, config.max_positions) // page_size))
    return pages


def _explicit_pages(kv_tokens: int, bytes_per_token: int, page_size: int, device: torch.device) -> int:
    if kv_tokens < 1:
        raise InvalidRequestError(f"kv_tokens is {kv_tokens}; it must be at least 1", field="kv_tokens")
    pages = -(-kv_tokens // page_size)
    wanted = pages * page_size * bytes_per_token
    free = _free_bytes(device)
    if wanted > free:
        raise InvalidRequestError(
            f"kv_tokens is {kv_tokens}, which takes {_mib(wanted)} ({bytes_per_token} bytes a token); "
            f"{device} has {_mib(free)} free, enough for {free // bytes_per_token} tokens; lower kv_tokens",
            field="kv_tokens",
        )
    return pages


def _usable_bytes(device: torch.device, memory_fraction: float | None) -> int:
    free = _free_bytes(device)
    if device.type != "cuda":
        return int(free * (HOST_MEMORY_FRACTION if memory_fraction is None else memory_fraction))
    total = torch.cuda.mem_get_info(device)[1]
    return free - int(total * (1.0 - (DEVICE_MEMORY_FRACTION if memory_fraction is None else memory_fraction)))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available_host_bytes()


def available_host_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Memory that this process can still get: what the machine has available, and its cgroup's limit leaves."""
    available = _meminfo_available(meminfo)
    if available is None:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    return available if limit is None or used is None else max(0, min(available, limit - used))


def _meminfo_available(meminfo: Path) -> int | None:
    """Linux's own estimate, bytes."""
    if not meminfo.exists():
        return None
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no file, or no limit ("max")."""
    if not path.exists():
        return None
    text = path.read_text().strip()
    return int(text) if text.isdigit() else None


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
