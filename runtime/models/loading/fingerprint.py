"""Keys of the weight cache: what a prepared model was made from, and how."""

import hashlib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from ramet.runtime.models.loading.numerics import Numerics
from ramet.runtime.protocol.errors import ModelLoadError

FORMAT_VERSION = 1
"""Raise it whenever decoding, ``prepare_weights``, ModelConfig or TokenizerSpec mean something new."""

_SAMPLE_BYTES = 1 << 16
_NUM_SAMPLES = 4
_WHOLE_BYTES = 1 << 20
"""Files up to this size (configs, indices, templates) are hashed whole."""


def cache_key(files: Iterable[Path], numerics: Numerics) -> str:
    """A file name for the model made of ``files`` in these numbers.

    A file counts with its path, size, modification time, and a sample of its content (whole where it is
    small): the sample catches a file that was replaced under a kept time stamp. Raises ModelLoadError
    where one cannot be read.
    """
    parts = [_identity(file) for file in files]
    how = (FORMAT_VERSION, _ramet_version(), numerics.quantization, str(numerics.dtype))
    return hashlib.blake2b(msgspec.msgpack.encode((how, parts)), digest_size=20).hexdigest()


def _ramet_version() -> str:
    """Of the installed distribution; a source tree that is not installed has only FORMAT_VERSION."""
    try:
        return version("ramet")
    except PackageNotFoundError:
        return "source"


def _identity(path: Path) -> tuple[str, int, int, bytes]:
    try:
        with path.open("rb") as file:
            stat = path.stat()
            digest = hashlib.blake2b(digest_size=20)
            if stat.st_size <= _WHOLE_BYTES:
                digest.update(file.read())
            else:
                for number in range(_NUM_SAMPLES):
                    file.seek((stat.st_size - _SAMPLE_BYTES) * number // (_NUM_SAMPLES - 1))
                    digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror or error}") from error
    return (str(path.absolute()), stat.st_size, stat.st_mtime_ns, digest.digest())
