"""A model in one GGUF file, or in a set of split ones."""

import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.loading.gguf_header import GgufHeader, GgufTensor, MetadataValue, parse_header
from ramet.runtime.models.loading.gguf_names import apply_conversion, tensor_recipes
from ramet.runtime.models.loading.gguf_quants import GgufFormatError, block_layout, dequantise
from ramet.runtime.protocol.errors import ModelLoadError, UnsupportedModelError

_SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<total>\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class _Part:
    path: Path
    data: memoryview
    """The whole file, mapped privately: writes to it never reach the file."""
    header: GgufHeader


@dataclass(frozen=True, slots=True)
class GgufModel:
    """An open GGUF model: metadata parsed, tensors decoded when they are asked for."""

    paths: tuple[Path, ...]
    metadata: Mapping[str, MetadataValue]
    _tensors: Mapping[str, tuple[_Part, GgufTensor]]

    @property
    def architecture(self) -> str:
        value = self.metadata.get("general.architecture")
        if not isinstance(value, str):
            raise ModelLoadError(f"{self.paths[0]}: metadata 'general.architecture' is missing or not a text")
        return value

    @property
    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for _, tensor in self._tensors.values())

    def read(self, name: str) -> Tensor:
        """Decode a tensor; the result may share memory with the mapped file.

        Raises ModelLoadError where the values are not finite, which only damage explains.
        """
        part, tensor = self._tensors[name]
        values = dequantise(
            part.data[tensor.start : tensor.start + tensor.num_bytes], tensor.layout, tensor.shape
        )
        if not _is_finite(values):
            raise ModelLoadError(f"{part.path}: tensor {name!r} contains NaN or infinity: the file is damaged")
        return values


class GgufTensors(Mapping[str, Tensor]):
    """The model's tensors under their Hugging Face names and conventions, each decoded anew on every access."""

    def __init__(self, model: GgufModel, config: ModelConfig) -> None:
        """Raises UnsupportedModelError where the file has a tensor that the architecture has no place for."""
        self._model = model
        self._config = config
        self._recipes = tensor_recipes(model.architecture, model.tensor_names)

    def __getitem__(self, name: str) -> Tensor:
        recipe = self._recipes[name]
        return apply_conversion(self._model.read(recipe.gguf_name), recipe.conversion, self._config)

    def __contains__(self, name: object) -> bool:
        return name in self._recipes  # Mapping's own would decode the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._recipes)

    def __len__(self) -> int:
        return len(self._recipes)


def _is_finite(values: Tensor) -> bool:
    """By one sum instead of a mask as large as the tensor; a sum can overflow though all values are finite.

    numpy's sum where there is one: torch's runs on several threads, whose waiting for each other takes three
    times as long as the decoding when the machine is busy.
    """
    with np.errstate(all="ignore"):
        total = values.numpy().sum() if values.dtype == torch.float32 else values.sum(dtype=torch.float32)
    return bool(np.isfinite(float(total))) or bool(torch.isfinite(values).all())


def split_paths(path: Path) -> tuple[Path, ...]:
    """All files of a split model (``name-00001-of-00003.gguf``), or just ``path`` where it is not one of a set.

    Raises ModelLoadError that names a part that is missing.
    """
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return (path,)
    total = int(match["total"])
    parts = tuple(path.with_name(f"{match['stem']}-{n:05d}-of-{total:05d}.gguf") for n in range(1, total + 1))
    for part in parts:
        if not part.exists():
            raise ModelLoadError(f"{part} is missing: the model is split into {total} files and needs them all")
    return parts or (path,)


def open_gguf(paths: tuple[Path, ...]) -> GgufModel:
    """Open and check the file, or all files of a split model in their order.

    Raises ModelLoadError with the path and what is wrong: not there, not readable, not GGUF, truncated,
    damaged.
    """
    parts = [_open_part(path) for path in paths]
    tensors: dict[str, tuple[_Part, GgufTensor]] = {}
    for part in parts:
        for name, tensor in part.header.tensors.items():
            if name in tensors:
                raise ModelLoadError(f"{part.path}: tensor {name!r} is in {tensors[name][0].path} too")
            tensors[name] = (part, tensor)
    metadata = parts[0].header.metadata
    _check_kind(paths[0], metadata)
    _check_split(paths, metadata, len(tensors))
    if not tensors:
        raise ModelLoadError(f"{paths[0]}: the file has no tensors (a vocabulary only?)")
    return GgufModel(paths, metadata, tensors)


def _open_part(path: Path) -> _Part:
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise ModelLoadError(f"{path}: the file is empty; download it again")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except IsADirectoryError:
        raise ModelLoadError(f"{path} is a folder, not a GGUF file") from None
    except FileNotFoundError:
        raise ModelLoadError(f"{path} does not exist") from None
    except PermissionError:
        raise ModelLoadError(f"{path} cannot be read: permission denied") from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
    if hasattr(mmap, "MADV_WILLNEED"):
        mapped.madvise(mmap.MADV_WILLNEED)
    data = memoryview(mapped)
    try:
        return _Part(path, data, parse_header(data, block_layout))
    except GgufFormatError as error:
        raise ModelLoadError(f"{path}: {error}") from None


def _check_kind(path: Path, metadata: Mapping[str, MetadataValue]) -> None:
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModelError(f"{path}: the file holds a {kind!r}, not a model")


def _check_split(paths: tuple[Path, ...], metadata: Mapping[str, MetadataValue], num_tensors: int) -> None:
    count = metadata.get("split.count", 0)
    if isinstance(count, int) and count > 1 and count != len(paths):
        raise ModelLoadError(
            f"{paths[0]}: the model is split into {count} files, {len(paths)} given; keep the names "
            "that end in -00001-of-0000N.gguf and give the first one"
        )
    total = metadata.get("split.tensors.count", num_tensors)
    if len(paths) > 1 and total != num_tensors:
        raise ModelLoadError(f"{paths[0]}: {total} tensors announced for all files, {num_tensors} found")
