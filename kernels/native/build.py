"""Compiling the C sources beside this file, once a machine and version.

The result is kept under a name that says all it was made from, so a new version, compiler or CPU makes a new
file. A checksum stands behind the code, where loaders do not look: a file that was damaged on disk would end
the process that runs it, and is compiled anew instead.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_SOURCES = Path(__file__).parent
_COMPILERS = ("gcc", "cc", "clang")
_FLAGS = ("-O3", "-std=c11", "-fPIC", "-pthread", "-ffp-contract=off", "-fno-math-errno")
"""-ffp-contract=off: no fused multiply-add where the source has a product and a sum; its bits are certain."""
_COMPILER_SECONDS = 120.0
_MAX_SAID = 500
"""Characters of what a compiler says that are passed on; it ends up in one line."""
_MAX_KEPT = 8
"""Compiled files of other versions that may lie in the folder; the oldest go."""


class NativeBuildError(Exception):
    """Why there is no compiled library here. The torch versions run instead."""


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of CPU that there are sources for."""

    name: str
    cpu_flags: frozenset[str]
    """As /proc/cpuinfo spells them; the CPU must have all."""
    compiler_flags: tuple[str, ...]
    sources: tuple[str, ...]


AVX512_VNNI = Target(
    name="avx512_vnni",
    cpu_flags=frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}),
    compiler_flags=("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma"),
    sources=(
        "linear_int8_avx512.c",
        "linear_int4_avx512.c",
        "elementwise_avx512.c",
        "attention_avx512.c",
        "parallel.c",
    ),
)
AVX512_BF16 = Target(
    name="avx512_bf16",
    cpu_flags=AVX512_VNNI.cpu_flags | {"avx512_bf16"},
    compiler_flags=(*AVX512_VNNI.compiler_flags, "-mavx512bf16"),
    sources=(*AVX512_VNNI.sources, "attention_bf16_avx512.c"),
)
TARGETS = (AVX512_BF16, AVX512_VNNI)
"""The best first."""
HEADERS = ("attention.h", "linear.h", "parallel.h", "vector_math.h")


def choose_target(cpu_flags: frozenset[str]) -> Target:
    """The best target that the CPU can run. Raises NativeBuildError."""
    for target in TARGETS:
        if target.cpu_flags <= cpu_flags:
            return target
    missing = ", ".join(sorted(TARGETS[-1].cpu_flags - cpu_flags))
    raise NativeBuildError(f"this CPU has no {missing}")


def read_cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The instruction sets that Linux reports; none elsewhere."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def find_compiler() -> Path:
    """Raises NativeBuildError where there is none."""
    for name in _COMPILERS:
        if (found := shutil.which(name)) is not None:
            return Path(found)
    raise NativeBuildError(f"there is no {' or '.join(_COMPILERS)} on the PATH")


def build(target: Target, folder: Path, compiler: Path) -> Path:
    """The compiled library under ``folder``, made there if it is not yet. Several processes may do so at once.

    Raises NativeBuildError.
    """
    texts = [(_SOURCES / name).read_bytes() for name in (*target.sources, *HEADERS)]
    made_from = [
        *_FLAGS,
        *target.compiler_flags,
        str(compiler),
        _run([str(compiler), "--version"]),
    ]
    key = hashlib.sha256(b"\0".join([*(part.encode() for part in made_from), *texts])).hexdigest()[:20]
    library = folder / f"{target.name}-{key}.so"
    if _is_whole(library):
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "library.so"
            _compile(target, compiler, Path(scratch), made)
            with made.open("r+b") as file:
                file.write(hashlib.sha256(file.read()).digest())
            os.replace(made, library)
        _remove_oldest(folder)
    except OSError as error:
        raise NativeBuildError(f"{folder} cannot be written to: {error}") from error
    return library


def _is_whole(library: Path) -> bool:
    """Whether it is there, and as it was written."""
    try:
        content = library.read_bytes()
    except OSError:
        return False
    code = content[: -hashlib.sha256().digest_size]
    return hashlib.sha256(code).digest() == content[len(code) :]


def _compile(target: Target, compiler: Path, scratch: Path, library: Path) -> None:
    objects = []
    for name in target.sources:
        objects.append(str(scratch / f"{Path(name).stem}.o"))
        _run(
            [str(compiler), *_FLAGS, *target.compiler_flags, "-c", str(_SOURCES / name), "-o", objects[-1]],
        )
    _run([str(compiler), "-shared", "-pthread", *objects, "-o", str(library)])


def _remove_oldest(folder: Path) -> None:
    libraries = sorted(folder.glob("*.so"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in libraries[_MAX_KEPT:]:
        old.unlink(missing_ok=True)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_COMPILER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeBuildError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[:_MAX_SAID]
        raise NativeBuildError(f"{command[0]} failed with exit code {done.returncode}: {said}")
    return done.stdout
