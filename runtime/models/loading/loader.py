"""From what the user named to a model that computes."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, assert_never

import msgspec
import torch
from torch import Tensor

from ramet.runtime.env import Environment, environment
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.gguf_config import config_from_gguf
from ramet.runtime.models.hf_config import config_from_hf
from ramet.runtime.models.loading.embedded import EmbeddedModel, locate
from ramet.runtime.models.loading.fingerprint import cache_key
from ramet.runtime.models.loading.gguf_file import GgufTensors, open_gguf
from ramet.runtime.models.loading.hf_folder import model_files, open_hf_folder, read_config
from ramet.runtime.models.loading.hub import download
from ramet.runtime.models.loading.numerics import Numerics, Quantization, choose_numerics
from ramet.runtime.models.loading.phases import PhaseClock, Progress, TimedTensors
from ramet.runtime.models.loading.source import GgufFile, HfFolder, HubRepo, ModelSource, resolve
from ramet.runtime.models.loading.weight_cache import WeightCache
from ramet.runtime.models.model import Model
from ramet.runtime.models.prepare import prepare_weights
from ramet.runtime.models.registry import build_model, support_of
from ramet.runtime.models.transformers_model import load_transformers_model
from ramet.runtime.protocol.errors import InvalidRequestError, ModelLoadError
from ramet.runtime.tokenizer import TokenizerSpec, spec_from_folder, spec_from_gguf

logger = logging.getLogger(__name__)

_SMALL_MODEL_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for the executor, and what there is to say about it."""

    model: Model
    config: ModelConfig
    tokenizer_spec: TokenizerSpec
    source: str
    """What was loaded, in words: an embedded name, a path or a hub id."""
    quantization: Quantization
    dtype: torch.dtype
    """Of the activations."""
    device: torch.device
    weight_bytes: int
    from_cache: bool
    """The prepared weights came from the cache on disk."""
    timings: Mapping[str, float]
    """Seconds a phase: resolve, then either cache_read or read, dequantise, prepare and cache_write; then
    build."""


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A model as its files have it."""

    config: ModelConfig
    tokenizer_spec: TokenizerSpec
    tensors: Mapping[str, Tensor]


class _Description(msgspec.Struct, frozen=True):
    """What the weight cache keeps beside the tensors."""

    config: ModelConfig
    tokenizer_spec: TokenizerSpec


@dataclass(frozen=True, slots=True)
class _Prepared:
    description: _Description
    weights: dict[str, Tensor]
    from_cache: bool


def load_model(
    model: str | Path = "smollm2",
    *,
    quantization: str = "auto",
    dtype: str = "auto",
    device: str | torch.device = "auto",
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    env: Environment | None = None,
) -> LoadedModel:
    """Find, read, prepare and build a model; the prepared weights are kept on disk for the next time.

    model: see ``source.resolve``. quantization, dtype, device: see ``numerics.choose_numerics``.
    cache_dir: None for the environment's. progress: called with a phase and its fraction done. env: None
    for the process's own.

    Raises ModelLoadError (UnsupportedModelError for an architecture or feature that is not implemented) with
    the path and the remedy, InvalidRequestError where an option is wrong or cannot be honoured.
    """
    env = environment() if env is None else env
    folder = env.cache_dir if cache_dir is None else cache_dir
    numerics = choose_numerics(quantization, dtype, device)
    clock = PhaseClock(progress)
    with clock.phase("resolve"):
        source = resolve(model)
        local = _on_disk(source, folder, env, clock)
    if isinstance(local, HfFolder) and _support(local) == "transformers":
        loaded = _through_transformers(local, numerics, clock)
    else:
        loaded = _implemented(local, numerics, WeightCache(folder / "weights", env.cache_bytes), clock)
    return replace(loaded, source=str(source))


def _support(folder: HfFolder) -> Literal["implemented", "transformers"]:
    with _located(folder):
        return support_of(read_config(folder.path))


def _implemented(
    local: GgufFile | HfFolder, numerics: Numerics, cache: WeightCache, clock: PhaseClock
) -> LoadedModel:
    """An architecture that DecoderModel computes."""
    prepared = _prepared(local, numerics, cache, clock)
    description, weights = prepared.description, prepared.weights
    with clock.phase("build"), _located(local):
        built = build_model(description.config, weights, numerics.device, numerics.dtype)
    return LoadedModel(
        model=built,
        config=description.config,
        tokenizer_spec=description.tokenizer_spec,
        source=str(local),
        quantization=numerics.quantization,
        dtype=numerics.dtype,
        device=numerics.device,
        weight_bytes=sum(tensor.nbytes for tensor in weights.values()),
        from_cache=prepared.from_cache,
        timings=clock.seconds,
    )


def _through_transformers(local: HfFolder, numerics: Numerics, clock: PhaseClock) -> LoadedModel:
    """Any other architecture: transformers reads and computes it, in the floating-point dtype."""
    if numerics.quantization != "none" and not numerics.automatic:
        raise InvalidRequestError(
            f"quantization is {numerics.quantization!r} but the architecture of {local} runs through "
            "transformers, which computes in floating point here; set quantization='none'",
            field="quantization",
        )
    with clock.phase("read"):
        folder = open_hf_folder(local.path)
    with clock.phase("build"), _located(local):
        model = load_transformers_model(local.path, device=numerics.device, dtype=numerics.dtype)
        spec = spec_from_folder(local.path)
    return LoadedModel(
        model=model,
        config=model.config,
        tokenizer_spec=_of_width(spec, model.config),
        source=str(local),
        quantization="none",
        dtype=numerics.dtype,
        device=numerics.device,
        weight_bytes=folder.tensors.num_values() * numerics.dtype.itemsize,
        from_cache=False,
        timings=clock.seconds,
    )


def _on_disk(source: ModelSource, cache_dir: Path, env: Environment, clock: PhaseClock) -> GgufFile | HfFolder:
    """The source's files, put there where they are not yet."""
    match source:
        case EmbeddedModel():
            return GgufFile((locate(source, cache_dir, lambda done: clock.report("resolve", done)),))
        case HubRepo():
            return download(source, offline=env.offline)
        case GgufFile() | HfFolder():
            return source
        case _:
            assert_never(source)


def _prepared(
    source: GgufFile | HfFolder, numerics: Numerics, cache: WeightCache, clock: PhaseClock
) -> _Prepared:
    """The model's weights as they are computed with, from the cache where they are there."""
    # What is neither decoded nor quantised is read from its own files as fast as from a copy of them.
    cached = cache.max_bytes > 0 and (isinstance(source, GgufFile) or numerics.quantization != "none")
    key = ""
    if cached:
        with clock.phase("cache_read"):
            key = cache_key(_files(source), numerics)
            if (hit := _cached(cache, key)) is not None:
                return hit
    with clock.phase("read"):
        checkpoint = _open(source)
    tensors = TimedTensors(checkpoint.tensors, clock, "dequantise")
    with clock.phase("prepare"), _located(source), _threads_for(source):
        weights = prepare_weights(
            checkpoint.config, tensors, quantization=numerics.quantization, dtype=numerics.dtype
        )
    description = _Description(checkpoint.config, checkpoint.tokenizer_spec)
    if cached:
        with clock.phase("cache_write"):
            cache.store(key, msgspec.msgpack.encode(description), weights)
    return _Prepared(description, weights, from_cache=False)


def _cached(cache: WeightCache, key: str) -> _Prepared | None:
    entry = cache.load(key)
    if entry is None:
        return None
    try:
        description = msgspec.msgpack.decode(entry.description, type=_Description)
    except msgspec.MsgspecError as error:
        # The checksums agree, so another version of the records wrote it under the same format version.
        logger.warning("cache entry %s describes its model in another way (%s); it is built anew", key, error)
        return None
    return _Prepared(description, entry.tensors, from_cache=True)


def _files(source: GgufFile | HfFolder) -> tuple[Path, ...]:
    return source.paths if isinstance(source, GgufFile) else model_files(source.path)


def _open(source: GgufFile | HfFolder) -> _Checkpoint:
    match source:
        case GgufFile(paths):
            gguf = open_gguf(paths)
            with _located(source):
                config = config_from_gguf(gguf.metadata, gguf.tensor_names)
                spec = spec_from_gguf(gguf.metadata)
                return _Checkpoint(config, _of_width(spec, config), GgufTensors(gguf, config))
        case HfFolder(path):
            folder = open_hf_folder(path)
            with _located(source):
                config = config_from_hf(folder.config)
                return _Checkpoint(config, _of_width(spec_from_folder(path), config), folder.tensors)
        case _:
            assert_never(source)


def _of_width(spec: TokenizerSpec, config: ModelConfig) -> TokenizerSpec:
    """Models pad their vocabulary, and some tokenizers know tokens that the model has no embedding for."""
    return msgspec.structs.replace(spec, vocab_size=config.vocab_size)


@contextmanager
def _threads_for(source: GgufFile | HfFolder) -> Iterator[None]:
    """One thread of torch's for a small model.

    Decoding and quantising are hundreds of short calls. On two cores that other processes use as well, two
    threads took ten times as long as one for SmolLM2 (16 s, not 1.5), since each call ends with one waiting for
    the other; on idle cores they save 0.2 s.
    """
    before = torch.get_num_threads()
    if sum(file.stat().st_size for file in _files(source)) < _SMALL_MODEL_BYTES:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _located(source: GgufFile | HfFolder) -> Iterator[None]:
    """Errors of code that knows no paths get the model's path in front."""
    try:
        yield
    except ModelLoadError as error:
        if str(source) in str(error):
            raise
        raise type(error)(f"{source}: {error}") from error
