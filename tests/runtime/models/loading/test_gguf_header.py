"""The header parser against the gguf package's own reader, and against damage."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.models.loading.gguf_header import GgufHeader, parse_header
from ramet.runtime.models.loading.gguf_quants import GgufFormatError, block_layout
from tests.runtime.models.loading.tiny_gguf import finish, tiny_llama, write_gguf


def parse(data: bytes) -> GgufHeader:
    return parse_header(memoryview(data), block_layout)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of metadata value, and tensors of one to three dimensions."""
    path = tmp_path_factory.mktemp("gguf") / "sample.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 255)
    writer.add_int8("a.i8", -128)
    writer.add_uint16("a.u16", 65535)
    writer.add_int16("a.i16", -32768)
    writer.add_uint32("a.u32", 2**32 - 1)
    writer.add_int32("a.i32", -(2**31))
    writer.add_uint64("a.u64", 2**64 - 1)
    writer.add_int64("a.i64", -(2**63))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", -1e300)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "ünïcode ✓")
    writer.add_array("a.strings", ["", "x", "yz", "✓"])
    writer.add_array("a.ints", [1, 2, -3])
    writer.add_array("a.floats", [0.25, -1.5])
    writer.add_array("a.bools", [True, False])
    writer.add_tensor("vector", np.arange(5, dtype=np.float32))
    writer.add_tensor("matrix", np.zeros((3, 64), np.float16))
    blocks = gguf.quants.quantize(np.ones((2, 4, 32), np.float32), Kind.Q8_0)
    writer.add_tensor("stack", blocks, raw_dtype=Kind.Q8_0)
    finish(writer)
    return path


def test_all_metadata_is_what_the_package_reads(sample: Path) -> None:
    ours = parse(sample.read_bytes()).metadata
    theirs = {
        key: field.contents()
        for key, field in gguf.GGUFReader(sample).fields.items()
        if not key.startswith("GGUF.")
    }
    assert ours == theirs
    assert ours["a.bool"] is True
    assert ours["a.u64"] == 2**64 - 1


def test_all_tensors_are_where_the_package_finds_them(sample: Path) -> None:
    ours = parse(sample.read_bytes()).tensors
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(sample).tensors}
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.shape == tuple(reversed(theirs[name].shape.tolist()))
        assert tensor.start == theirs[name].data_offset
        assert tensor.num_bytes == theirs[name].n_bytes
        assert tensor.layout.name == theirs[name].tensor_type.name


def test_a_custom_alignment_is_kept(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_custom_alignment(256)
    writer.add_tensor("x", np.arange(8, dtype=np.float32))
    writer.add_tensor("y", np.arange(8, dtype=np.float32))
    finish(writer)
    tensors = parse((tmp_path / "a.gguf").read_bytes()).tensors
    assert [tensor.start % 256 for tensor in tensors.values()] == [0, 0]
    assert tensors["y"].start - tensors["x"].start == 256


def test_nested_arrays_are_read() -> None:
    inner = struct.pack("<IQ2I", 4, 2, 7, 8)
    value = struct.pack("<IQ", 9, 2) + inner + struct.pack("<IQ", 4, 0)
    key = b"deep"
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 4) + key + struct.pack("<I", 9) + value
    assert parse(data).metadata == {"deep": [[7, 8], []]}


def header(version: int = 3, num_tensors: int = 0, num_fields: int = 0, body: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_fields) + body


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def tensor(name: bytes = b"t", dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"GG", "not a GGUF file"),
        (b"PK\x03\x04 a zip", "not a GGUF file"),
        (b"GGUF", "ends within its header"),
        (header(1), "version 1 is not supported"),
        (header(4), "version 4 is not supported"),
        (header(0), "version 0 is not supported"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(num_fields=1), "ends within its header"),
        (header(num_fields=2**63), "ends within its header"),
        (header(num_fields=1, body=struct.pack("<Q", 2**60)), "ends within its header"),
        (header(num_fields=1, body=string(b"\xff\xfe") + b"\0" * 12), "not UTF-8"),
        (header(num_fields=1, body=string(b"k") + struct.pack("<II", 13, 0)), "unknown type 13"),
        (header(num_fields=2, body=(string(b"k") + struct.pack("<IB", 0, 1)) * 2), "'k' appears twice"),
        (header(num_fields=1, body=string(b"k") + struct.pack("<IIQ", 9, 4, 2**61)), "ends within its header"),
        (header(num_fields=1, body=string(b"k") + struct.pack("<IIQ", 9, 8, 2**61)), "ends within its header"),
        (header(num_fields=1, body=string(b"k") + struct.pack("<IIQQ", 9, 8, 1, 99)), "ends within 'k'"),
        (header(num_fields=1, body=string(b"k") + struct.pack("<IIQ", 9, 8, 1) + string(b"\xff")), "not UTF-8"),
        (
            header(num_fields=1, body=string(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9),
            "nests",
        ),
        (header(num_tensors=2, body=tensor() * 2), "'t' appears twice"),
        (header(num_tensors=1, body=tensor(dims=())), "0 dimensions"),
        (header(num_tensors=1, body=tensor(dims=(1, 1, 1, 1, 1))), "5 dimensions"),
        (header(num_tensors=1, body=tensor(dims=(0,))), "empty dimension"),
        (header(num_tensors=1, body=tensor(kind=9999)), "type 9999 is unknown"),
        (header(num_tensors=1, body=tensor(dims=(33,), kind=8)), "do not divide"),
        (header(num_tensors=1, body=tensor()), "truncated"),
        (header(num_tensors=1, body=tensor(offset=2**64 - 1) + b"\0" * 999), "truncated"),
        (header(num_tensors=1, body=tensor(dims=(2**40, 2**40, 2**40)) + b"\0" * 999), "truncated"),
        (
            header(num_fields=1, body=string(b"general.alignment") + struct.pack("<II", 4, 0)),
            "general.alignment is 0",
        ),
        (
            header(num_fields=1, body=string(b"general.alignment") + struct.pack("<II", 4, 48)),
            "general.alignment is 48",
        ),
        (
            header(num_fields=1, body=string(b"general.alignment") + struct.pack("<I", 8) + string(b"x")),
            "general.alignment is 'x'",
        ),
    ],
)
def test_what_is_wrong_is_said(data: bytes, message: str) -> None:
    with pytest.raises(GgufFormatError, match=message):
        parse(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(tail: bytes) -> None:
    for data in (tail, b"GGUF" + tail, header(num_tensors=1, num_fields=1, body=tail)):
        try:
            parse(data)
        except GgufFormatError:
            continue


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, *tiny_llama())
    return path.read_bytes()


@settings(max_examples=200)
@given(st.data())
def test_a_cut_anywhere_is_noticed(model_bytes: bytes, data: st.DataObject) -> None:
    # The last tensor ends with the file but for the padding behind it.
    end = max(t.start + t.num_bytes for t in parse(model_bytes).tensors.values())
    cut = data.draw(st.integers(0, end - 1))
    with pytest.raises(GgufFormatError):
        parse(model_bytes[:cut])


@settings(max_examples=300)
@given(st.data())
def test_changed_bytes_are_refused_or_read(model_bytes: bytes, data: st.DataObject) -> None:
    damaged = bytearray(model_bytes)
    for _ in range(data.draw(st.integers(1, 3))):
        # Mostly in the header, where it matters here.
        damaged[data.draw(st.integers(4, 6000))] = data.draw(st.integers(0, 255))
    try:
        parsed = parse(bytes(damaged))
    except GgufFormatError:
        return
    for entry in parsed.tensors.values():
        assert entry.start + entry.num_bytes <= len(damaged)
