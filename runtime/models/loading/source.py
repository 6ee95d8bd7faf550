"""What ``Engine(model=...)`` may be, and which of these a given value is. Touches the disk, never the
network."""

import re
from dataclasses import dataclass
from pathlib import Path

from ramet.runtime.models.loading.embedded import EMBEDDED, EmbeddedModel
from ramet.runtime.models.loading.gguf_file import split_paths
from ramet.runtime.models.loading.hf_folder import CONFIG
from ramet.runtime.protocol.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A .gguf file on disk, or all parts of a split one in order."""

    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return str(self.paths[0])


@dataclass(frozen=True, slots=True)
class HfFolder:
    """A folder with config.json and safetensors."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class HubRepo:
    """A repository on the Hugging Face hub, written ``org/name``, ``org/name@revision`` or
    ``org/name:file.gguf``."""

    repo_id: str
    revision: str | None = None
    file_name: str | None = None
    """The .gguf file to take; None: the safetensors, or the only .gguf file."""

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.repo_id}{revision}" + (f":{self.file_name}" if self.file_name else "")


ModelSource = EmbeddedModel | GgufFile | HfFolder | HubRepo

_HUB_NAME = r"[A-Za-z0-9](?:[\w.-]*\w)?"
_HUB_ID = re.compile(
    rf"(?P<repo>{_HUB_NAME}/{_HUB_NAME})(?:@(?P<revision>[\w./-]+))?(?::(?P<file>[^:]+\.gguf))?", re.A
)
_FILE_ENDINGS = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".json", ".onnx")
_FORMS = (
    f"one of {', '.join(sorted(EMBEDDED))}, a .gguf file, a folder with {CONFIG}, "
    "or a hub id (org/name, org/name@revision, org/name:file.gguf)"
)


def resolve(model: str | Path) -> ModelSource:
    """Which source ``model`` names: what exists on disk first, then the embedded names, then a hub id.

    Raises ModelLoadError where it is none of them, or looks like a path and does not exist.
    """
    text = str(model)
    if not text.strip() or "\0" in text:
        raise ModelLoadError(f"model={text!r} names no model; give {_FORMS}")
    if text in EMBEDDED and isinstance(model, str):
        return EMBEDDED[text]
    path = Path(text).expanduser()
    try:
        if path.is_dir():
            return _folder(path)
        if path.exists():
            return _file(path)
    except OSError as error:
        raise ModelLoadError(f"model={text!r} cannot be looked up: {error.strerror or error}") from None
    if (match := _HUB_ID.fullmatch(text)) and isinstance(model, str) and not _is_path_like(text, match):
        return HubRepo(match["repo"], match["revision"], match["file"])
    if isinstance(model, Path) or _is_path_like(text, None):
        raise ModelLoadError(f"model={text!r}: there is no such file or folder (looked at {path.absolute()})")
    raise ModelLoadError(f"model={text!r} is unknown; give {_FORMS}")


def _is_path_like(text: str, hub_id: re.Match[str] | None) -> bool:
    if text.startswith(("/", "./", "../", "~")) or text.endswith("/") or "\\" in text:
        return True
    if hub_id is not None:
        return hub_id["file"] is None and hub_id["repo"].lower().endswith(_FILE_ENDINGS)
    return "/" in text or text.lower().endswith(_FILE_ENDINGS)


def _folder(path: Path) -> ModelSource:
    if (path / CONFIG).exists():
        return HfFolder(path)
    candidates = {split_paths(file)[0] for file in path.glob("*.gguf")}
    if len(candidates) == 1:
        return GgufFile(split_paths(candidates.pop()))
    if candidates:
        names = ", ".join(sorted(file.name for file in candidates))
        raise ModelLoadError(f"{path} has several GGUF files, give one of them: {names}")
    raise ModelLoadError(f"{path} is a folder without {CONFIG} or a .gguf file: not a model")


def _file(path: Path) -> ModelSource:
    if path.suffix.lower() == ".gguf":
        return GgufFile(split_paths(path))
    if path.suffix in (".safetensors", ".json", ".bin"):
        raise ModelLoadError(f"{path} is one file of a model; give its folder ({path.parent})")
    if not path.is_file():
        raise ModelLoadError(f"{path} is a device, pipe or socket, not a file; give {_FORMS}")
    with path.open("rb") as file:
        if (
            file.read(4) == b"GGUF"
        ):  # content-addressed stores (ollama, the hub's blobs) name files by their hash
            return GgufFile((path,))
    raise ModelLoadError(f"{path} is not a model; give {_FORMS}")
