"""The header of a GGUF file: metadata and the table of tensors, read with every length checked.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. The
gguf package has a reader too; it makes a numpy view of every string, which takes seconds for a vocabulary,
and leaves a damaged file to numpy's errors. Dequantisation and block sizes come from that package
(``gguf_quants``).
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from ramet.runtime.models.loading.gguf_quants import BlockLayout, GgufFormatError

MetadataValue: TypeAlias = "bool | int | float | str | list[MetadataValue]"

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
_MAX_ARRAY_DEPTH = 4

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SCALAR_STRUCTS = {kind: struct.Struct("<" + code) for kind, code in _SCALARS.items()}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor's blocks lie."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first, as torch has it (the file stores the reverse)."""
    layout: BlockLayout
    start: int
    """Byte offset from the beginning of the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    metadata: dict[str, MetadataValue]
    tensors: dict[str, GgufTensor]


def parse_header(data: memoryview, block_layout: Callable[[int], BlockLayout]) -> GgufHeader:
    """Parse the file whose bytes are ``data``.

    block_layout maps a ggml type number to its layout and raises GgufFormatError for a number it does not know.
    Raises GgufFormatError for anything that is not a whole, little-endian GGUF file of version 2 or 3.
    """
    cursor = _Cursor(data)
    _check_preamble(cursor, data)
    num_tensors, num_fields = cursor.u64(), cursor.u64()
    metadata: dict[str, MetadataValue] = {}
    for _ in range(num_fields):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise GgufFormatError(f"metadata key {key!r} appears twice")
        metadata[key] = cursor.value(cursor.u32(), key)
    entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(num_tensors):
        name = cursor.string("a tensor name")
        if name in entries:
            raise GgufFormatError(f"tensor {name!r} appears twice")
        entries[name] = _tensor_entry(cursor, name)
    alignment = _alignment(metadata)
    data_start = -(-cursor.offset // alignment) * alignment
    return GgufHeader(
        metadata,
        {
            name: _place(name, entry, block_layout(entry[1]), data_start, len(data))
            for name, entry in entries.items()
        },
    )


def _check_preamble(cursor: "_Cursor", data: memoryview) -> None:
    if not len(data):
        raise GgufFormatError("the file is empty")
    if bytes(data[:4]) != MAGIC:
        raise GgufFormatError(f"it is not a GGUF file (it begins with {bytes(data[:4])!r}, not {MAGIC!r})")
    cursor.offset = 4
    version = cursor.u32()
    if version and not version & 0xFFFF:
        raise GgufFormatError("it is a big-endian GGUF file; convert it to little-endian (gguf-convert-endian)")
    if version not in (2, 3):
        raise GgufFormatError(f"GGUF version {version} is not supported (2 and 3 are); convert the model again")


def _tensor_entry(cursor: "_Cursor", name: str) -> tuple[tuple[int, ...], int, int]:
    """(shape, ggml type, offset within the data section)."""
    num_dims = cursor.u32()
    if not 1 <= num_dims <= MAX_DIMENSIONS:
        raise GgufFormatError(f"tensor {name!r} has {num_dims} dimensions (1 to {MAX_DIMENSIONS} are possible)")
    dims = tuple(cursor.u64() for _ in range(num_dims))
    return dims[::-1], cursor.u32(), cursor.u64()


def _alignment(metadata: dict[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
        raise GgufFormatError(f"general.alignment is {alignment!r}, not a power of two")
    if alignment & (alignment - 1):
        raise GgufFormatError(f"general.alignment is {alignment}, not a power of two")
    return alignment


def _place(
    name: str, entry: tuple[tuple[int, ...], int, int], layout: BlockLayout, data_start: int, file_size: int
) -> GgufTensor:
    shape, _, offset = entry
    if 0 in shape:
        raise GgufFormatError(f"tensor {name!r} has an empty dimension: {list(shape)}")
    if shape[-1] % layout.block_size:
        raise GgufFormatError(
            f"tensor {name!r}: rows of {shape[-1]} values do not divide into {layout.name} blocks "
            f"of {layout.block_size}"
        )
    num_bytes = prod(shape) // layout.block_size * layout.block_bytes
    start = data_start + offset
    if start + num_bytes > file_size:
        raise GgufFormatError(
            f"tensor {name!r} ends at byte {start + num_bytes} but the file has {file_size}: it is truncated; "
            "download it again"
        )
    return GgufTensor(name, shape, layout, start, num_bytes)


class _Cursor:
    """Reads little-endian values and moves on; never past the end of ``data``."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.offset = 0

    def u32(self) -> int:
        return int(self._unpack(_U32))

    def u64(self) -> int:
        return int(self._unpack(_U64))

    def string(self, what: str) -> str:
        length = self.u64()
        self._need(length)
        start = self.offset
        self.offset = start + length
        try:
            return str(self._data[start : self.offset], "utf-8")
        except UnicodeDecodeError:
            raise GgufFormatError(f"{what} at byte {start} is not UTF-8") from None

    def value(self, kind: int, key: str, depth: int = 0) -> MetadataValue:
        if kind == _STRING:
            return self.string(f"the value of {key!r}")
        if kind == _ARRAY:
            return self._array(key, depth)
        if kind not in _SCALAR_STRUCTS:
            raise GgufFormatError(f"metadata {key!r} has the unknown type {kind}")
        return self._unpack(_SCALAR_STRUCTS[kind])

    def _array(self, key: str, depth: int) -> MetadataValue:
        if depth >= _MAX_ARRAY_DEPTH:
            raise GgufFormatError(f"metadata {key!r} nests arrays more than {_MAX_ARRAY_DEPTH} deep")
        kind, length = self.u32(), self.u64()
        if kind in _SCALARS:
            size = _SCALAR_STRUCTS[kind].size
            self._need(length * size)
            values = struct.unpack_from(f"<{length}{_SCALARS[kind]}", self._data, self.offset)
            self.offset += length * size
            return list(values)
        if kind == _STRING:
            return self._strings(length, key)
        return [self.value(kind, key, depth + 1) for _ in range(length)]

    def _strings(self, count: int, key: str) -> MetadataValue:
        """A vocabulary has 10^5 of them: one tight loop instead of a call for each."""
        self._need(count * _U64.size)
        data, offset, end, unpack = self._data, self.offset, len(self._data), _U64.unpack_from
        strings: list[MetadataValue] = []
        try:
            for _ in range(count):
                start = offset + 8
                offset = start + unpack(data, offset)[0]
                if offset > end:
                    raise GgufFormatError(f"it ends within {key!r} (byte {end}): it is truncated or damaged")
                strings.append(str(data[start:offset], "utf-8"))
        except UnicodeDecodeError:
            raise GgufFormatError(f"an entry of {key!r} at byte {start} is not UTF-8") from None
        except struct.error:
            raise GgufFormatError(f"it ends within {key!r} (byte {end}): it is truncated or damaged") from None
        self.offset = offset
        return strings

    def _unpack(self, layout: struct.Struct) -> bool | int | float:
        self._need(layout.size)
        value: bool | int | float = layout.unpack_from(self._data, self.offset)[0]
        self.offset += layout.size
        return value

    def _need(self, num_bytes: int) -> None:
        if self.offset + num_bytes > len(self._data):
            raise GgufFormatError(
                f"it ends within its header (at byte {len(self._data)}, {num_bytes} more are announced): "
                "it is truncated or damaged; download it again"
            )
