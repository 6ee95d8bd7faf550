"""Records over a pipe, cut anywhere."""

import os
from collections.abc import Iterator

import msgspec
import pytest

from ramet.runtime.grammar.service.frames import FrameReader, FromProbe, Passed, Refused, framed


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)


def test_records_come_whole_however_they_were_cut(pipe: tuple[int, int]) -> None:
    read, write = pipe
    reader = FrameReader(read)
    records: list[FromProbe] = [Refused("E", "m" * 300, "f"), Passed(), Refused("E", "")]
    data = b"".join(framed(record) for record in records)
    found = []
    for at in range(0, len(data), 7):
        os.write(write, data[at : at + 7])
        try:
            body = reader.read(0.0)
        except TimeoutError:
            continue
        assert body is not None
        found.append(msgspec.msgpack.decode(body, type=FromProbe))
    while len(found) < len(records):
        body = reader.read(1.0)
        assert body is not None
        found.append(msgspec.msgpack.decode(body, type=FromProbe))
    assert found == records
    os.close(write)
    assert reader.read() is None


def test_an_end_within_a_record_is_an_end(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.write(write, framed(Refused("E", "cut"))[:-1])
    os.close(write)
    assert FrameReader(read).read(1.0) is None
