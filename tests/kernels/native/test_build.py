"""Compiling: what stops it is said, and it is done once."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.kernels.native import build as building
from ramet.kernels.native.build import (
    AVX512_BF16,
    AVX512_VNNI,
    NativeBuildError,
    Target,
    build,
    choose_target,
    find_compiler,
    read_cpu_flags,
)


def script(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_flags_are_read_from_cpuinfo(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512f\nbugs\t\t: none\n")
    assert read_cpu_flags(file) == {"fpu", "avx2", "avx512f"}
    file.write_text("Features\t: asimd\n")
    assert read_cpu_flags(file) == frozenset()
    assert read_cpu_flags(tmp_path / "missing") == frozenset()


def test_a_target_needs_all_of_its_flags() -> None:
    assert choose_target(AVX512_VNNI.cpu_flags | {"fpu"}) is AVX512_VNNI
    assert choose_target(AVX512_VNNI.cpu_flags | {"avx512_bf16"}) is AVX512_BF16
    with pytest.raises(NativeBuildError, match=r"has no avx512_vnni$"):
        choose_target(AVX512_VNNI.cpu_flags - {"avx512_vnni"})


def test_the_compiler_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeBuildError, match="no gcc or cc or clang on the PATH"):
        find_compiler()
    found = script(tmp_path / "cc", "echo cc 12.2.0")
    assert find_compiler() == found


def compiler_that_counts(tmp_path: Path) -> Path:
    """Writes its -o file, and a line a call."""
    return script(
        tmp_path / "gcc",
        f"echo call >> {tmp_path}/calls\n"
        'while [ $# -gt 0 ]; do if [ "$1" = -o ]; then echo made > "$2"; fi; shift; done\n',
    )


def test_it_is_compiled_once(tmp_path: Path) -> None:
    compiler = compiler_that_counts(tmp_path)
    first = build(AVX512_VNNI, tmp_path / "out", compiler)
    calls = (tmp_path / "calls").read_text().count("call")
    assert first.read_bytes().startswith(b"made\n")
    assert build(AVX512_VNNI, tmp_path / "out", compiler) == first
    # Only asked for its version again.
    assert (tmp_path / "calls").read_text().count("call") == calls + 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == [first.name]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:-32],
        lambda content: b"M" + content[1:],
        lambda content: content + b"\0",
    ],
)
def test_a_damaged_file_is_not_loaded_but_made_anew(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    compiler = compiler_that_counts(tmp_path)
    library = build(AVX512_VNNI, tmp_path / "out", compiler)
    whole = library.read_bytes()
    library.write_bytes(damage(whole))
    assert build(AVX512_VNNI, tmp_path / "out", compiler) == library
    assert library.read_bytes() == whole


def test_a_folder_in_the_files_place_is_named(tmp_path: Path) -> None:
    compiler = compiler_that_counts(tmp_path)
    library = build(AVX512_VNNI, tmp_path / "out", compiler)
    library.unlink()
    library.mkdir()
    with pytest.raises(NativeBuildError, match="cannot be written to"):
        build(AVX512_VNNI, tmp_path / "out", compiler)


def test_another_compiler_makes_another_file(tmp_path: Path) -> None:
    compiler = compiler_that_counts(tmp_path)
    first = build(AVX512_VNNI, tmp_path / "out", compiler)
    compiler.write_text(compiler.read_text() + "echo version 2\n")
    assert build(AVX512_VNNI, tmp_path / "out", compiler) != first


def test_few_files_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for age in range(20):
        old = out / f"old-{age}.so"
        old.touch()
        os.utime(old, (1000 - age, 1000 - age))
    made = build(AVX512_VNNI, out, compiler_that_counts(tmp_path))
    kept = {path.name for path in out.iterdir()}
    assert kept == {made.name, *(f"old-{age}.so" for age in range(7))}


def test_what_the_compiler_says_is_told(tmp_path: Path) -> None:
    compiler = script(
        tmp_path / "gcc", '[ "$1" = --version ] && exit 0\nprintf "error: no such\n  header" >&2; exit 1\n'
    )
    with pytest.raises(NativeBuildError, match="gcc failed with exit code 1: error: no such header"):
        build(AVX512_VNNI, tmp_path / "out", compiler)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NativeBuildError, match="cannot be written to"):
        build(AVX512_VNNI, tmp_path / "file" / "out", compiler_that_counts(tmp_path))


def test_a_compiler_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(NativeBuildError, match="cannot be run"):
        build(AVX512_VNNI, tmp_path, tmp_path / "gcc")


def test_all_sources_are_there() -> None:
    for target in building.TARGETS:
        assert isinstance(target, Target)
        for name in (*target.sources, *building.HEADERS):
            assert (Path(building.__file__).parent / name).is_file()
