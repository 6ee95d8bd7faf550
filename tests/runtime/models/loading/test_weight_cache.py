import errno
import logging
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ramet.runtime.models.loading import weight_cache
from ramet.runtime.models.loading.weight_cache import WeightCache

MIB = 1 << 20


def some_tensors(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "int8": torch.randint(-128, 127, (7, 9), dtype=torch.int8, generator=generator),
        "scale": torch.randn(7, generator=generator),
        "half": torch.randn(3, 2, 5, generator=generator).to(torch.bfloat16),
        "transposed": torch.randn(4, 6, generator=generator).t(),
        "router": torch.randint(-9, 9, (3, 3), generator=generator).to(torch.int16),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
    }


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


@pytest.fixture
def cache(tmp_path: Path) -> WeightCache:
    return WeightCache(tmp_path / "weights", 64 * MIB)


def entry_file(cache: WeightCache, key: str) -> Path:
    return cache._path(key)


def test_what_was_stored_is_loaded(cache: WeightCache) -> None:
    tensors = some_tensors()
    assert cache.store("k", b"description", tensors)
    entry = cache.load("k")
    assert entry is not None
    assert entry.description == b"description"
    assert same(entry.tensors, tensors)
    assert all(tensor.is_contiguous() for tensor in entry.tensors.values())


def test_an_unknown_key_is_a_miss(cache: WeightCache) -> None:
    assert cache.load("k") is None
    cache.store("k", b"", some_tensors())
    assert cache.load("other") is None


def test_tensors_larger_than_a_checksummed_piece(cache: WeightCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_cache, "_PIECE", 1000)
    tensors = {"a": torch.arange(5000), "b": torch.arange(250, dtype=torch.float32)}
    tensors = {name: tensor.to(torch.int32) for name, tensor in tensors.items()}
    cache.store("k", b"", tensors)
    entry = cache.load("k")
    assert entry is not None
    assert same(entry.tensors, tensors)


def test_tensors_are_aligned_and_private(cache: WeightCache) -> None:
    cache.store("k", b"", some_tensors())
    first, second = cache.load("k"), cache.load("k")
    assert first is not None
    assert second is not None
    assert all(t.data_ptr() % 64 == 0 for t in first.tensors.values() if t.numel())
    first.tensors["scale"].zero_()
    assert torch.equal(second.tensors["scale"], some_tensors()["scale"])
    third = cache.load("k")
    assert third is not None
    assert torch.equal(third.tensors["scale"], some_tensors()["scale"])


def test_an_entry_in_use_survives_its_removal(cache: WeightCache) -> None:
    cache.store("k", b"", some_tensors())
    entry = cache.load("k")
    entry_file(cache, "k").unlink()
    cache.store("k", b"", some_tensors(seed=1))
    assert entry is not None
    assert same(entry.tensors, some_tensors())


def test_an_entry_is_replaced(cache: WeightCache) -> None:
    cache.store("k", b"1", some_tensors())
    cache.store("k", b"2", some_tensors(seed=1))
    entry = cache.load("k")
    assert entry is not None
    assert entry.description == b"2"
    assert same(entry.tensors, some_tensors(seed=1))


def payload(size: int) -> dict[str, Tensor]:
    return {"x": torch.zeros(size, dtype=torch.uint8)}


def test_the_least_recently_used_entries_make_room(tmp_path: Path) -> None:
    cache = WeightCache(tmp_path, 3 * MIB + 4096)
    for number, key in enumerate("abc"):
        cache.store(key, b"", payload(MIB))
        os.utime(entry_file(cache, key), (number + 1000, number + 1000))
    assert cache.load("a") is not None  # now b is the oldest
    assert cache.store("d", b"", payload(MIB))
    assert cache.load("b") is None
    assert all(cache.load(key) is not None for key in "acd")


def test_the_bound_holds_after_every_store(tmp_path: Path) -> None:
    cache = WeightCache(tmp_path, 2 * MIB)
    for number in range(12):
        cache.store(str(number), b"x" * number * 100, payload(100_000 * (number % 5 + 1)))
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2 * MIB


def test_replacing_an_entry_does_not_evict_others(tmp_path: Path) -> None:
    cache = WeightCache(tmp_path, 2 * MIB + 4096)
    cache.store("a", b"", payload(MIB))
    cache.store("b", b"", payload(MIB))
    cache.store("b", b"", payload(MIB))
    assert cache.load("a") is not None


def test_what_exceeds_the_bound_alone_is_not_kept_and_evicts_nothing(tmp_path: Path) -> None:
    cache = WeightCache(tmp_path, 2 * MIB)
    cache.store("a", b"", payload(MIB))
    assert not cache.store("b", b"", payload(3 * MIB))
    assert not cache.store("c", b"x" * 3 * MIB, payload(1))
    assert cache.load("a") is not None
    assert [file.name for file in tmp_path.iterdir()] == ["a.weights"]


def test_leavings_of_a_process_that_died_are_removed(tmp_path: Path) -> None:
    cache = WeightCache(tmp_path, 64 * MIB)
    stale, fresh = tmp_path / ".writing-old", tmp_path / ".writing-new"
    for file in (stale, fresh):
        file.write_bytes(b"x")
    os.utime(stale, (1000, 1000))
    cache.store("k", b"", payload(1))
    assert not stale.exists()
    assert fresh.exists()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    os.utime(tmp_path / "notes.txt", (1, 1))
    (tmp_path / "folder").mkdir()
    WeightCache(tmp_path, 4096).store("k", b"", payload(1000))
    assert (tmp_path / "notes.txt").exists()
    assert (tmp_path / "folder").exists()


@settings(max_examples=150)
@given(st.data())
def test_any_changed_byte_is_noticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    cache = WeightCache(tmp_path_factory.mktemp("cache"), 64 * MIB)
    cache.store("k", b"description", some_tensors())
    path = entry_file(cache, "k")
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    entry = cache.load("k")
    if entry is None:
        assert not path.exists()
    else:  # padding between tensors is not part of anything
        assert same(entry.tensors, some_tensors())
        assert entry.description == b"description"


@settings(max_examples=60)
@given(st.data())
def test_any_cut_or_growth_is_noticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    cache = WeightCache(tmp_path_factory.mktemp("cache"), 64 * MIB)
    cache.store("k", b"description", some_tensors())
    path = entry_file(cache, "k")
    content = path.read_bytes()
    size = data.draw(st.integers(0, len(content) + 100).filter(lambda n: n != len(content)))
    path.write_bytes((content + bytes(100))[:size])
    assert cache.load("k") is None
    assert not path.exists()


def test_damage_is_logged_and_the_entry_can_be_built_anew(
    cache: WeightCache, caplog: pytest.LogCaptureFixture
) -> None:
    cache.store("k", b"", some_tensors())
    path = entry_file(cache, "k")
    path.write_bytes(path.read_bytes()[:-64])
    with caplog.at_level(logging.WARNING):
        assert cache.load("k") is None
    assert "damaged" in caplog.text
    assert str(path) in caplog.text
    assert cache.store("k", b"", some_tensors())
    assert cache.load("k") is not None


def test_a_folder_that_cannot_be_used_is_logged_and_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = WeightCache(tmp_path / "file" / "weights", 64 * MIB)
    with caplog.at_level(logging.WARNING):
        assert not cache.store("k", b"", some_tensors())
        assert cache.load("k") is None
    assert "RAMET_CACHE_DIR" in caplog.text


def test_a_full_disk_is_logged_and_leaves_nothing_behind(
    cache: WeightCache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(weight_cache, "_write_entry", full)
    with caplog.at_level(logging.WARNING):
        assert not cache.store("k", b"", some_tensors())
    assert "No space left on device" in caplog.text
    assert list(entry_file(cache, "k").parent.iterdir()) == []


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Files may not grow beyond 64 KiB in this process, as on a disk that is full."""
    import resource
    import signal

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_disk")
def test_a_write_that_fails_half_way_leaves_nothing_behind(cache: WeightCache) -> None:
    assert not cache.store("k", b"", payload(MIB))
    assert list(entry_file(cache, "k").parent.iterdir()) == []
    assert cache.load("k") is None


def _hammer(folder: Path, seed: int, rounds: int) -> None:
    torch.set_num_threads(1)
    cache = WeightCache(folder, 3 * MIB)
    for number in range(rounds):
        key = str((seed + number) % 4)
        entry = cache.load(key)
        if entry is None:
            cache.store(key, key.encode(), {"x": torch.full((MIB,), int(key), dtype=torch.uint8)})
        elif entry.description != key.encode() or not (entry.tensors["x"] == int(key)).all():
            raise AssertionError(f"entry {key} is of {entry.description!r}")


def test_many_processes_share_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_hammer, args=(tmp_path, seed, 25)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert not list(tmp_path.glob(".writing-*"))
