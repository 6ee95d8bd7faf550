"""The child process that compiles what may hang or kill it: builds a backend, tries specs, answers."""

import logging
import math
import os
import queue
import resource
import threading
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import msgspec
import numpy as np

from ramet.runtime.grammar.backend import GrammarBackend, LoadsEngines
from ramet.runtime.grammar.service.frames import (
    Begun,
    FrameReader,
    FromProbe,
    Passed,
    Ready,
    Refused,
    Setup,
    Trial,
    framed,
)
from ramet.runtime.protocol import GrammarSpec, RametError, UnsupportedConstraintError

logger = logging.getLogger(__name__)

CPU_MARGIN_SECONDS = 5.0
"""CPU time beyond the deadline after which the kernel ends a trial whose parent is not there to end it."""
MAX_GROWTH = 0.5
"""A process that keeps more than this share of its memory limit is not used for another trial."""
IDLE_SECONDS = 120.0
NICENESS = 5
"""Who waits for a grammar waits behind those who wait for tokens."""
_STRIDE = 0x9E3779B1


def main(requests_fd: int, replies_fd: int) -> NoReturn:
    """Until the parent closes its end, memory has grown, or nothing was to be tried for IDLE_SECONDS."""
    os.nice(NICENESS)
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_all, args=(requests_fd, frames), daemon=True).start()
    setup = msgspec.msgpack.decode(frames.get(), type=Setup)
    module, _, function = setup.builder.partition(":")
    backend: GrammarBackend = getattr(import_module(module), function)(setup.vocabulary)
    first_bytes = address_space()
    _reply(replies_fd, Ready())
    while address_space() - first_bytes <= MAX_GROWTH * setup.max_bytes:
        try:
            trial = msgspec.msgpack.decode(frames.get(timeout=IDLE_SECONDS), type=Trial)
        except queue.Empty:
            # Loaded engines hold hundreds of megabytes. The parent starts another child when it needs one.
            break
        # What an engine itself takes, whichever spec is the first to need it, is nothing of that spec's.
        before = address_space()
        bound_memory(None)
        bound_cpu_time(None)
        refusal = loaded(backend, trial.spec)
        first_bytes += address_space() - before
        bound_memory(first_bytes + setup.max_bytes)
        bound_cpu_time(setup.max_seconds + CPU_MARGIN_SECONDS)
        if refusal is None:
            _reply(replies_fd, Begun())
        _reply(replies_fd, refusal or answer(backend, trial.spec, setup))
    os._exit(0)


def loaded(backend: GrammarBackend, spec: GrammarSpec) -> FromProbe | None:
    """None: what the spec needs of an engine is loaded, or will be when it is compiled."""
    if not isinstance(backend, LoadsEngines):
        return None
    try:
        backend.load(spec)
    except RametError as error:
        return Refused(type(error).__name__, str(error), getattr(error, "field", None))
    return None


def answer(backend: GrammarBackend, spec: GrammarSpec, setup: Setup) -> FromProbe:
    """Try a spec; whatever it raises becomes a record."""
    try:
        try_out(backend, spec, setup.vocabulary.vocab_size, setup.num_steps)
    except RametError as error:
        return Refused(type(error).__name__, str(error), getattr(error, "field", None))
    except MemoryError:
        text = f"compiling the grammar takes more than {setup.max_bytes >> 20} MiB; make it smaller"
        return Refused(UnsupportedConstraintError.__name__, text, "grammar")
    except Exception as error:
        logger.warning("a grammar engine failed", exc_info=error)
        text = f"the grammar engine failed: {type(error).__name__}: {error}"
        return Refused(UnsupportedConstraintError.__name__, text, "grammar")
    return Passed()


def try_out(backend: GrammarBackend, spec: GrammarSpec, vocab_size: int, num_steps: int) -> None:
    """Compile, and fill ``num_steps`` masks along one walk: always the same one for the same grammar.

    Raises:
        RametError: it cannot be compiled, or its first mask cannot be filled. An error further on is one of the
            path taken, which no request may take.
    """
    matcher = backend.compile(spec).matcher()
    row = np.zeros(-(-vocab_size // 32), dtype=np.int32)
    matcher.fill_bitmask(row)
    for step in range(1, num_steps):
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        if not len(allowed) or not matcher.accept(int(allowed[step * _STRIDE % len(allowed)])):
            return
        if matcher.is_terminated():
            return
        try:
            matcher.fill_bitmask(row)
        except RametError:
            return


def address_space(statm: Path = Path("/proc/self/statm")) -> int:
    """Bytes of this process's address space; 0 where the system does not say."""
    if not statm.is_file():
        return 0
    return int(statm.read_text().split()[0]) * resource.getpagesize()


def bound_memory(num_bytes: int | None) -> None:
    """No allocation beyond this succeeds. None: no bound of ours."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if num_bytes is None:
        wanted = hard
    else:
        wanted = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    # A crash is an expected end here: it need not leave a core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def bound_cpu_time(seconds: float | None) -> None:
    """The kernel ends this process (SIGXCPU) after so much more CPU time. None: no bound of ours."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = hard if seconds is None else math.ceil(used + seconds)
    resource.setrlimit(
        resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
    )


def _read_all(fd: int, frames: "queue.SimpleQueue[bytes]") -> None:
    """In a thread of its own, so that the parent's end is noticed in the middle of a trial too."""
    reader = FrameReader(fd)
    while (body := reader.read()) is not None:
        frames.put(body)
    os._exit(0)


def _reply(fd: int, record: FromProbe) -> None:
    data = memoryview(framed(record))
    while data:
        data = data[os.write(fd, data) :]
