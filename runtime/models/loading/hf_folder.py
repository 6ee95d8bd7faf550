"""A Hugging Face folder: config.json and safetensors, in one file or in shards with an index."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ramet.runtime.protocol.errors import ModelLoadError, UnsupportedModelError
from ramet.runtime.protocol.nesting import MAX_NESTING, json_is_nested_within

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SIDE_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "additional_chat_templates/*.jinja")
_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "consolidated*.pth")


@dataclass(frozen=True, slots=True)
class HfModel:
    """An open folder."""

    path: Path
    config: Mapping[str, Any]
    """config.json."""
    tensors: "SafetensorsTensors"


class SafetensorsTensors(Mapping[str, Tensor]):
    """The checkpoint's tensors by name, mapped from the files when they are asked for."""

    def __init__(self, shards: Mapping[str, "_Shard"]) -> None:
        """shards: tensor name -> the open file it is in."""
        self._shards = shards

    def __getitem__(self, name: str) -> Tensor:
        shard = self._shards[name]
        try:
            tensor: Tensor = shard.handle.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{shard.path}: tensor {name!r} cannot be read: {error}") from error
        return tensor

    def num_values(self) -> int:
        """How many values all tensors have together; reads headers only."""
        return sum(prod(shard.handle.get_slice(name).get_shape()) for name, shard in self._shards.items())

    def __contains__(self, name: object) -> bool:
        return name in self._shards  # Mapping's own would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)


@dataclass(frozen=True, slots=True)
class _Shard:
    path: Path
    handle: Any  # safetensors' own open file, which has no types


def open_hf_folder(path: Path) -> HfModel:
    """Open and check the folder.

    Raises ModelLoadError that names the file and what is wrong with it, and UnsupportedModelError for a
    checkpoint that is quantised in a way that is not implemented.
    """
    return HfModel(path, read_config(path), SafetensorsTensors(_shards(path)))


def read_config(path: Path) -> dict[str, Any]:
    """The folder's config.json, on the conditions of ``open_hf_folder``."""
    config = _read_json(path / CONFIG)
    _refuse_quantised(path, config)
    return config


def model_files(path: Path) -> tuple[Path, ...]:
    """Every file of the folder that decides what the model is: weights, configs, tokenizer, templates."""
    others = sorted(file for ending in _SIDE_FILES for file in path.glob(ending) if file.is_file())
    return (*weight_files(path), *others)


def weight_files(path: Path) -> tuple[Path, ...]:
    """The safetensors files that the folder's weights are in, in a fixed order.

    Raises ModelLoadError where there are none, or the index names one that is missing.
    """
    if (path / INDEX).exists():
        return tuple(path / shard for shard in sorted(set(_weight_map(path / INDEX).values())))
    if (path / SINGLE).exists():
        return (path / SINGLE,)
    others = sorted(path.glob("*.safetensors"))
    if len(others) == 1:
        return (others[0],)
    if others:
        raise ModelLoadError(
            f"{path} has {len(others)} safetensors files but no {INDEX} that says what is where"
        )
    pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
    if pickles:
        raise ModelLoadError(
            f"{path} has its weights in {pickles[0]} only, a pickle, which can run any code when "
            "it is opened: convert it with transformers' model.save_pretrained(folder), "
            "which writes model.safetensors"
        )
    raise ModelLoadError(f"{path} has no weights: {SINGLE} or {INDEX} is missing")


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; raises ModelLoadError with the path where it is not one."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise ModelLoadError(f"{path} does not exist") from None
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror or error}") from error
    if not json_is_nested_within(text):
        raise ModelLoadError(f"{path} is not valid JSON: it nests more than {MAX_NESTING} levels deep")
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path} holds a {type(content).__name__}, not a JSON object")
    return content


def _shards(path: Path) -> dict[str, _Shard]:
    files = {file: _open_shard(file) for file in weight_files(path)}
    found = {name: shard for shard in files.values() for name in shard.handle.keys()}  # noqa: SIM118, it is no dict
    if (path / INDEX).exists():
        for name, file_name in _weight_map(path / INDEX).items():
            if name not in found or found[name].path.name != file_name:
                raise ModelLoadError(
                    f"{path / INDEX} says that tensor {name!r} is in {file_name}, but it is not"
                )
    return found


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index} has no 'weight_map'")
    for name, file_name in weight_map.items():
        # A plain name only: an index must not reach outside its folder.
        plain = isinstance(file_name, str) and Path(file_name).name == file_name
        if not plain or not file_name.endswith(".safetensors"):
            raise ModelLoadError(
                f"{index}: the file of tensor {name!r} is {file_name!r}, not a .safetensors file name"
            )
    return weight_map


def _open_shard(path: Path) -> _Shard:
    try:
        return _Shard(path, safe_open(path, framework="pt"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path} is missing: the index names it; download the model again") from None
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(
            f"{path} is not a whole safetensors file ({error}): it is truncated or damaged; download it again"
        ) from None


def _refuse_quantised(path: Path, config: Mapping[str, Any]) -> None:
    text_config = config.get("text_config")
    nested = text_config.get("quantization_config") if isinstance(text_config, dict) else None
    quantization = config.get("quantization_config") or config.get("compression_config") or nested
    if not quantization:
        return
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    raise UnsupportedModelError(
        f"{path} is quantised with {method or 'an unnamed method'!r} (config.json, quantization_config), "
        "which is not implemented: use the original checkpoint (quantization='int8' quantises it while it "
        "loads) or a GGUF file"
    )
