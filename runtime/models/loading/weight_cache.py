"""A cache on disk of weights as they are computed with: decoded, fused and quantised.

One file an entry: a preamble, a header (msgpack: the caller's description, a table of tensors, a checksum
a piece), then the tensors, each aligned. Entries appear by rename, so a reader sees a whole file or none,
and any number of processes may share the folder. Every byte is checked when it is read; what does not
agree is thrown away.
"""

import logging
import mmap
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

import msgspec
import torch
from torch import Tensor

logger = logging.getLogger(__name__)

_MAGIC = b"ramet-w1"
_PREAMBLE = struct.Struct("<8sQI")  # magic, header's length, header's CRC-32
_ALIGNMENT = 64
_PIECE = 4 << 20
"""Bytes under one checksum: small enough that the pieces of a small model keep several threads busy."""
_SUFFIX = ".weights"
_TEMPORARY = ".writing-"
_STALE_SECONDS = 3600
"""A temporary file older than this belongs to a process that died."""
_CHECKING_THREADS = 4
"""CRC-32 runs at 4 GB/s a thread here; memory is the limit beyond a few."""

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int32,
    )
}


class _TensorEntry(msgspec.Struct, frozen=True, array_like=True):
    """Where a tensor lies in an entry's file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """From the start of the data section, a multiple of _ALIGNMENT."""
    num_bytes: int
    checksums: list[int]
    """CRC-32 of each _PIECE bytes, the last piece shorter."""


class _Header(msgspec.Struct, frozen=True, array_like=True):
    description: bytes
    tensors: list[_TensorEntry]
    data_bytes: int


@dataclass(frozen=True, slots=True)
class CachedWeights:
    """An entry that was read and found whole."""

    description: bytes
    """What ``store`` was given."""
    tensors: dict[str, Tensor]
    """Views of a private mapping of the file: writing to them never reaches the disk. The mapping stays
    valid when the entry is evicted or replaced meanwhile."""


class WeightCache:
    """Entries of a folder, bounded together by ``max_bytes``; the least recently used go first.

    Nothing here fails a load: what cannot be read is a miss, what cannot be written is logged and left.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """The folder need not exist; it is made by the first ``store``."""
        self._folder = folder
        self.max_bytes = max_bytes

    def load(self, key: str) -> CachedWeights | None:
        """The entry of ``key``, each byte checked; None where there is none. A damaged entry is removed."""
        path = self._path(key)
        try:
            entry = _read_entry(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("cache entry %s cannot be read (%s); going on without it", path, error)
            return None
        except _DamagedEntry as error:
            logger.warning("cache entry %s is damaged (%s); it is removed and built anew", path, error)
            _remove(path)
            return None
        try:
            os.utime(path)  # marks the use, for eviction
        except OSError as error:
            logger.debug("cannot mark the use of %s: %s", path, error)
        return entry

    def store(self, key: str, description: bytes, tensors: Mapping[str, Tensor]) -> bool:
        """Write an entry, evicting others to stay within the bound. Returns whether it was kept; never
        raises OSError.

        tensors: on the CPU, of a dtype in float32, float16, bfloat16, int8, uint8, int16, int32.
        """
        size = len(description) + sum(tensor.nbytes for tensor in tensors.values())
        # The table of tensors is small beside them, and known only once every byte has been summed.
        plan = _plan(description, tensors) if size <= self.max_bytes else None
        if plan is None or plan.total_bytes > self.max_bytes:
            logger.info(
                "weights of %d bytes exceed the cache's bound of %d and are not kept", size, self.max_bytes
            )
            return False
        temporary: Path | None = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._evict(plan.total_bytes, keep=self._path(key))
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=_TEMPORARY, delete=False) as file:
                temporary = Path(file.name)
                _write_entry(file, plan, tensors)
            os.replace(temporary, self._path(key))
            temporary = None
        except OSError as error:
            logger.warning(
                "the prepared weights (%d bytes) are not cached in %s: %s; the next start will be as slow "
                "as this one. Free some space, or set RAMET_CACHE_DIR to another folder",
                size,
                self._folder,
                error.strerror or error,
            )
            return False
        finally:
            if temporary is not None:
                _remove(temporary)
        return True

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_SUFFIX}"

    def _evict(self, incoming: int, keep: Path) -> None:
        """Remove the longest unused entries until ``incoming`` more bytes fit. ``keep`` is about to be
        replaced."""
        now = time.time()
        entries: list[tuple[float, int, Path]] = []
        for path in self._folder.iterdir():
            try:
                stat = path.stat()
            except OSError:  # another process removed it
                continue
            if path.name.startswith(_TEMPORARY) and now - stat.st_mtime > _STALE_SECONDS:
                _remove(path)
            elif path.suffix == _SUFFIX or path.name.startswith(_TEMPORARY):
                entries.append((stat.st_mtime, stat.st_size, path))
        used = incoming + sum(size for _, size, path in entries if path != keep)
        for _, size, path in sorted(entries):
            if used <= self.max_bytes:
                return
            if path != keep and path.suffix == _SUFFIX:
                logger.info("cache entry %s (%d bytes) makes room for another", path, size)
                _remove(path)
                used -= size


class _DamagedEntry(Exception):
    """The file is not a whole entry of this format."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A file as it is going to be."""

    prefix: bytes
    """Preamble and header."""
    entries: list[_TensorEntry]
    data_start: int
    total_bytes: int


def _plan(description: bytes, tensors: Mapping[str, Tensor]) -> _Plan:
    entries: list[_TensorEntry] = []
    end = 0
    with ThreadPoolExecutor(_CHECKING_THREADS) as pool:
        for name, tensor in tensors.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            assert dtype in _DTYPES, f"{name} has the dtype {dtype}, which the cache has no name for"
            checksums = list(pool.map(zlib.crc32, _pieces(_bytes_of(tensor))))
            entries.append(_TensorEntry(name, dtype, tuple(tensor.shape), end, tensor.nbytes, checksums))
            end = _aligned(end + tensor.nbytes)
    body = msgspec.msgpack.encode(_Header(description, entries, end))
    prefix = _PREAMBLE.pack(_MAGIC, len(body), zlib.crc32(body)) + body
    return _Plan(prefix, entries, _aligned(len(prefix)), _aligned(len(prefix)) + end)


def _write_entry(file: IO[bytes], plan: _Plan, tensors: Mapping[str, Tensor]) -> None:
    file.write(plan.prefix)
    for entry in plan.entries:
        file.seek(plan.data_start + entry.offset)
        file.write(_bytes_of(tensors[entry.name]))
    file.truncate(plan.total_bytes)


def _read_entry(path: Path) -> CachedWeights:
    with path.open("rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except ValueError:
            raise _DamagedEntry("the file is empty") from None
    if hasattr(mmap, "MADV_WILLNEED"):
        mapped.madvise(mmap.MADV_WILLNEED)
    data = memoryview(mapped)
    header, data_start = _read_header(data)
    if len(data) != data_start + header.data_bytes:
        raise _DamagedEntry(f"it has {len(data)} bytes instead of {data_start + header.data_bytes}")
    raw = {entry.name: _raw_tensor(data, data_start, entry) for entry in header.tensors}
    pieces = [
        (entry.name, piece, checksum)
        for entry in header.tensors
        for piece, checksum in zip(_pieces(raw[entry.name]), entry.checksums, strict=True)
    ]
    with ThreadPoolExecutor(_CHECKING_THREADS) as pool:
        found = pool.map(zlib.crc32, (piece for _, piece, _ in pieces))
        for (name, _, expected), actual in zip(pieces, found, strict=True):
            if actual != expected:
                raise _DamagedEntry(f"checksum of tensor {name}")
    tensors = {entry.name: _as_tensor(raw[entry.name], entry) for entry in header.tensors}
    return CachedWeights(header.description, tensors)


def _read_header(data: memoryview) -> tuple[_Header, int]:
    """(header, where the data section starts)."""
    if len(data) < _PREAMBLE.size:
        raise _DamagedEntry("it ends within its preamble")
    magic, length, checksum = _PREAMBLE.unpack_from(data)
    body = data[_PREAMBLE.size : _PREAMBLE.size + length]
    if magic != _MAGIC or len(body) != length or zlib.crc32(body) != checksum:
        raise _DamagedEntry("checksum of the header")
    try:
        return msgspec.msgpack.decode(body, type=_Header), _aligned(_PREAMBLE.size + length)
    except msgspec.MsgspecError as error:
        raise _DamagedEntry(f"header: {error}") from None


def _raw_tensor(data: memoryview, data_start: int, entry: _TensorEntry) -> memoryview:
    start = data_start + entry.offset
    raw = data[start : start + entry.num_bytes]
    dtype = _DTYPES.get(entry.dtype)
    if (
        dtype is None
        or min(entry.offset, *entry.shape, 0) < 0
        or prod(entry.shape) * dtype.itemsize != entry.num_bytes
        or len(raw) != entry.num_bytes
        or len(entry.checksums) != len(_pieces(raw))
    ):
        raise _DamagedEntry(f"table entry of tensor {entry.name}")
    return raw


def _as_tensor(raw: memoryview, entry: _TensorEntry) -> Tensor:
    dtype = _DTYPES[entry.dtype]
    if not entry.num_bytes:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=dtype).reshape(entry.shape)


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _pieces(data: memoryview) -> list[memoryview]:
    return [data[start : start + _PIECE] for start in range(0, len(data), _PIECE)]


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s cannot be removed: %s", path, error.strerror or error)
