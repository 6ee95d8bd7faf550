import os
from pathlib import Path

import pytest
import torch

from ramet.runtime.models.loading.fingerprint import cache_key
from ramet.runtime.models.loading.numerics import Numerics
from ramet.runtime.protocol import ModelLoadError

NUMERICS = Numerics("int8", torch.float32, torch.device("cpu"), automatic=True)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(bytes(range(256)) * 20_000)  # 5 MB: sampled, not read whole
    return path


def test_the_same_file_has_the_same_key(file: Path) -> None:
    assert cache_key([file], NUMERICS) == cache_key([file], NUMERICS)
    assert cache_key([file], NUMERICS).isalnum()


def test_numbers_and_dtype_count_but_neither_device_nor_who_chose(file: Path) -> None:
    key = cache_key([file], NUMERICS)
    assert key != cache_key([file], Numerics("none", torch.float32, torch.device("cpu"), automatic=True))
    assert key != cache_key([file], Numerics("int8", torch.bfloat16, torch.device("cpu"), automatic=True))
    assert key == cache_key([file], Numerics("int8", torch.float32, torch.device("cuda"), automatic=False))


def test_size_time_path_and_order_count(file: Path, tmp_path: Path) -> None:
    keys = {cache_key([file], NUMERICS)}
    stat = file.stat()
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    keys.add(cache_key([file], NUMERICS))
    other = tmp_path / "other.gguf"
    other.write_bytes(file.read_bytes())
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    keys |= {
        cache_key([other], NUMERICS),
        cache_key([file, other], NUMERICS),
        cache_key([other, file], NUMERICS),
    }
    with file.open("ab") as out:
        out.write(b"x")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    keys.add(cache_key([file], NUMERICS))
    assert len(keys) == 6


@pytest.mark.parametrize("where", [0, -1, "middle"])
def test_content_replaced_under_a_kept_time_stamp_counts(where: int | str, file: Path) -> None:
    key, stat, content = cache_key([file], NUMERICS), file.stat(), bytearray(file.read_bytes())
    at = (len(content) - (1 << 16)) // 3 + 5 if where == "middle" else int(where)
    content[at] ^= 0xFF
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert cache_key([file], NUMERICS) != key


def test_every_byte_of_a_small_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"x" * 70_000)
    key, stat = cache_key([path], NUMERICS), path.stat()
    path.write_bytes(b"x" * 40_000 + b"y" + b"x" * 29_999)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert cache_key([path], NUMERICS) != key


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ModelLoadError, match="cannot be read"):
            cache_key([path], NUMERICS)
