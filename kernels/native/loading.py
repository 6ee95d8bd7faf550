"""Which compiled library this process uses: chosen once, checked before it is used, else none."""

import logging
import threading
from pathlib import Path

import torch

from ramet.kernels.native.build import NativeBuildError, build, choose_target, find_compiler, read_cpu_flags
from ramet.kernels.native.library import NativeLibrary
from ramet.kernels.reference import INT8_GROUP

logger = logging.getLogger(__name__)

_CHECKED_SHAPES = ((1, 64, 32), (3, 7, 5), (13, 577, 70))
"""(num_tokens, depth, columns): whole blocks, less than one, and several with a rest."""


class _Process:
    """The process's library. Code that was loaded stays loaded, so there is one for all engines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tried = False
        self._library: NativeLibrary | None = None
        self._reason = "it was not asked for"

    def enable(self, folder: Path) -> str:
        with self._lock:
            if not self._tried:
                self._tried = True
                try:
                    self._library = _checked(_load(folder))
                    self._reason = ""
                except NativeBuildError as error:
                    self._reason = str(error)
                    logger.info("no compiled kernels: %s", error)
            return self._reason

    @property
    def library(self) -> NativeLibrary | None:
        return self._library


_PROCESS = _Process()


def enable(folder: Path) -> str:
    """Compile into ``folder``, or load what is there, for weights that are prepared from now on.

    Returns "" on success, else why there are no compiled kernels: no compiler, another kind of CPU, a folder
    that cannot be written to. The first call in a process decides. Takes about a second where it compiles.
    """
    return _PROCESS.enable(folder)


def library() -> NativeLibrary | None:
    """What ``enable`` has loaded."""
    return _PROCESS.library


def _load(folder: Path) -> NativeLibrary:
    target = choose_target(read_cpu_flags())
    return NativeLibrary(build(target, folder, find_compiler()), target.name)


def _checked(native: NativeLibrary) -> NativeLibrary:
    """Raises NativeBuildError where a product is not that of whole numbers, which have no rounding."""
    generator = torch.Generator().manual_seed(0)
    for num_tokens, depth, columns in _CHECKED_SHAPES:
        x = torch.randint(-127, 128, (num_tokens, depth), generator=generator).float()
        x[:, ::INT8_GROUP] = 127
        weight = torch.randint(-127, 128, (columns, depth), dtype=torch.int8, generator=generator)
        got = native.linear_int8(x, native.pack_int8(weight, torch.ones(columns)), None)
        if not torch.equal(got.double(), x.double() @ weight.double().t()):
            raise NativeBuildError(f"{native.path} computes wrong products of {num_tokens}x{depth}x{columns}")
    return native
