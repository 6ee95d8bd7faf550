"""The Hugging Face hub, through huggingface_hub: the only module that imports it.

The import waits for the first hub id: it costs 0.2 s, which a start from a local model need not pay.
"""

import logging
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from ramet.runtime.models.loading.gguf_file import split_paths
from ramet.runtime.models.loading.hf_folder import CONFIG
from ramet.runtime.models.loading.source import GgufFile, HfFolder, HubRepo
from ramet.runtime.protocol.errors import ModelLoadError

logger = logging.getLogger(__name__)

_HUB_SECONDS = 20.0
_FOLDER_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.tiktoken")
_FOLDER_EXCLUDES = ("*/*", "consolidated*", "*.onnx.json")
"""Sub-folders hold other formats of the same weights (original/, onnx/), consolidated* the vendor's own."""


def download(source: HubRepo, *, offline: bool, cache_dir: Path | None = None) -> GgufFile | HfFolder:
    """The repository's needed files on disk, downloaded where they are not cached yet.

    offline: only what is cached. cache_dir: None for huggingface_hub's own place (HF_HOME, HF_HUB_CACHE).
    Raises ModelLoadError with the remedy: not found, gated, offline and not cached, several .gguf files.
    """
    files = None if offline else _list_files(source)
    patterns, excludes = _wanted(source, files)
    folder = _snapshot(source, patterns, excludes, offline=offline or files is None, cache_dir=cache_dir)
    return _local_source(source, folder)


def choose_gguf(source: HubRepo, names: Iterable[str]) -> str:
    """The one .gguf file, or the first part of the one split file, among a repository's file names.

    Raises ModelLoadError that lists the candidates where there are several, or none.
    """
    candidates = sorted(
        name
        for name in names
        if name.endswith(".gguf") and "mmproj" not in name and _first_of_split(name) in (None, name)
    )
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise ModelLoadError(f"hub repository {source} has neither {CONFIG} with safetensors nor a .gguf file")
    shown = ", ".join(candidates[:12]) + (", ..." if len(candidates) > 12 else "")
    raise ModelLoadError(
        f"hub repository {source} has {len(candidates)} .gguf files; choose one as "
        f"{source.repo_id}{'@' + source.revision if source.revision else ''}:{candidates[0]} ({shown})"
    )


def _wanted(source: HubRepo, files: list[str] | None) -> tuple[list[str], list[str]]:
    """(allow patterns, ignore patterns). files: what the repository has, None where that is unknown."""
    if source.file_name is not None:
        if files is not None and source.file_name not in files:
            gguf = ", ".join(sorted(name for name in files if name.endswith(".gguf"))[:12]) or "none"
            raise ModelLoadError(
                f"hub repository {source.repo_id} has no file {source.file_name} (its .gguf files: {gguf})"
            )
        return _split_patterns(source.file_name), []
    if files is None:
        return [*_FOLDER_PATTERNS, "*.gguf"], list(_FOLDER_EXCLUDES)
    if CONFIG in files and any(fnmatch(name, "*.safetensors") and "/" not in name for name in files):
        return list(_FOLDER_PATTERNS), list(_FOLDER_EXCLUDES)
    if any(name.endswith(".gguf") for name in files):
        return _split_patterns(choose_gguf(source, files)), []
    if any(fnmatch(name, "pytorch_model*.bin") for name in files):
        raise ModelLoadError(
            f"hub repository {source} has its weights in pytorch_model.bin only, a pickle, which can run "
            "any code when it is opened: convert it with transformers' model.save_pretrained(folder) and give "
            "that folder"
        )
    raise ModelLoadError(f"hub repository {source} has neither {CONFIG} with safetensors nor a .gguf file")


def _split_patterns(name: str) -> list[str]:
    first = _first_of_split(name)
    return [name] if first is None else [first.replace("-00001-of-", "-*-of-")]


def _first_of_split(name: str) -> str | None:
    """The first part's name where ``name`` is a part of a split GGUF, else None."""
    stem, dash, total = name.rpartition("-of-")
    if not dash or not fnmatch(total, "[0-9][0-9][0-9][0-9][0-9].gguf") or not stem[-5:].isdigit():
        return None
    return f"{stem[:-5]}00001-of-{total}"


def _local_source(source: HubRepo, folder: Path) -> GgufFile | HfFolder:
    if source.file_name is not None:
        path = folder / source.file_name
        if not path.exists():
            raise ModelLoadError(
                f"hub repository {source}: the cached snapshot {folder} lacks {source.file_name}"
            )
        return GgufFile(split_paths(path))
    if (folder / CONFIG).exists() and any(folder.glob("*.safetensors")):
        return HfFolder(folder)
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*.gguf")]
    if not names:
        raise ModelLoadError(
            f"hub repository {source}: the cached snapshot {folder} has neither {CONFIG} with "
            "safetensors nor a .gguf file; go online once to download the rest"
        )
    return GgufFile(split_paths(folder / choose_gguf(source, names)))


def _list_files(source: HubRepo) -> list[str] | None:
    """File names in the repository; None where the hub cannot be reached (a cached snapshot may still do)."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        # Not list_repo_files: it tries an unreachable hub for a minute, where a cached copy may do at once.
        info = HfApi().model_info(source.repo_id, revision=source.revision, timeout=_HUB_SECONDS)
        return [sibling.rfilename for sibling in info.siblings or ()]
    except OfflineModeIsEnabled:
        return None
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if isinstance(error, RepositoryNotFoundError) or status in (401, 403, 404):
            raise _refusal(source, error) from error
        logger.warning("the hub answered %s for %s; looking for a cached copy", status, source)
        return None
    except ValueError as error:
        raise ModelLoadError(f"hub id {source} is not valid: {error}") from error
    except _transport_errors() as error:
        logger.warning("the hub cannot be reached (%s); looking for a cached copy of %s", error, source)
        return None


def _snapshot(
    source: HubRepo, patterns: list[str], excludes: list[str], *, offline: bool, cache_dir: Path | None
) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                source.repo_id,
                revision=source.revision,
                allow_patterns=patterns,
                ignore_patterns=excludes,
                local_files_only=offline,
                cache_dir=cache_dir,
            )
        )
    except LocalEntryNotFoundError as error:
        # Some of the patterns' files were never downloaded, which may be those that are not needed (the other
        # formats of a repository): what is there decides.
        if partial := getattr(error, "snapshot_path", None):
            return Path(partial)
        raise ModelLoadError(
            f"hub repository {source} is not (wholly) in the local cache and the hub cannot be used: it is "
            "offline (RAMET_OFFLINE, HF_HUB_OFFLINE) or unreachable. Go online once, or give a local folder or "
            f".gguf file. There is no local folder {source.repo_id!r} either"
        ) from error
    except HfHubHTTPError as error:
        raise _refusal(source, error) from error
    except _transport_errors() as error:
        raise ModelLoadError(f"hub repository {source} could not be downloaded: {error}") from error


def _transport_errors() -> tuple[type[Exception], ...]:
    """ValueError, OSError and the base error of the HTTP client, of which huggingface_hub has used several."""
    from huggingface_hub.errors import HfHubHTTPError

    bases = HfHubHTTPError.__mro__[1:]
    return (ValueError, *(kind for kind in bases if issubclass(kind, Exception) and kind is not Exception))


def _refusal(source: HubRepo, error: Exception) -> ModelLoadError:
    """What a hub's answer means for the user."""
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return ModelLoadError(
            f"hub repository {source.repo_id} is gated: accept its terms on "
            f"https://huggingface.co/{source.repo_id}, then log in (hf auth login) or set HF_TOKEN"
        )
    if isinstance(error, RevisionNotFoundError):
        return ModelLoadError(f"hub repository {source.repo_id} has no revision {source.revision!r}")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403, 404):
        return ModelLoadError(
            f"there is no hub repository {source.repo_id} that you may read, and no local folder of that name: "
            "check the spelling; for a private one log in (hf auth login) or set HF_TOKEN"
        )
    return ModelLoadError(f"hub repository {source} could not be downloaded (HTTP status {status}): {error}")
