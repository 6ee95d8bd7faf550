"""The backend of programs that are run without one, and what can be asked of it directly."""

import threading
from functools import cache

from ramet.lang.backends.base import Backend
from ramet.lang.backends.chosen import AnyBackend, as_backend
from ramet.lang.errors import ProgramStructureError
from ramet.lang.loop_thread import branches_loop


class DefaultBackend:
    """Holds the process's default backend. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._backend: Backend | None = None

    def set(self, backend: Backend | None) -> None:
        with self._lock:
            self._backend = backend

    def find(self) -> Backend | None:
        with self._lock:
            return self._backend

    def get(self) -> Backend:
        with self._lock:
            if self._backend is None:
                raise ProgramStructureError(
                    "there is no backend; call ramet.set_default_backend(...), or give run() a backend"
                )
            return self._backend


def set_default_backend(backend: "AnyBackend | None") -> None:
    """For every program of this process that is run without one, from now on; None: there is none.

    An engine becomes a LocalBackend, as everywhere where a backend is asked for.
    """
    _default().set(None if backend is None else as_backend(backend))


def backend_or_default(backend: "AnyBackend | None") -> Backend:
    """Raises ProgramStructureError where there is neither, InvalidRequestError for what is no backend."""
    return _default().get() if backend is None else as_backend(backend)


def backend_or_none(backend: "AnyBackend | None") -> Backend | None:
    """For what needs none. Raises InvalidRequestError for what is no backend."""
    return _default().find() if backend is None else as_backend(backend)


def flush_cache(backend: "AnyBackend | None" = None) -> None:
    """Drops every cached prefix that nothing running uses."""
    branches_loop().run(backend_or_default(backend).flush_cache())


def get_server_info(backend: "AnyBackend | None" = None) -> dict[str, object]:
    """What the backend says about itself."""
    return branches_loop().run(backend_or_default(backend).server_info())


@cache
def _default() -> DefaultBackend:
    return DefaultBackend()
