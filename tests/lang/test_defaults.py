"""The default backend, and what is asked of a backend directly."""

import pytest

from ramet.lang import ProgramStructureError, flush_cache, get_server_info, set_default_backend
from ramet.lang.backends.scripted import ScriptedBackend
from ramet.lang.defaults import backend_or_default


def test_default_backend() -> None:
    first, second = ScriptedBackend(), ScriptedBackend()
    try:
        set_default_backend(first)
        assert backend_or_default(None) is first
        assert backend_or_default(second) is second
        flush_cache()
        flush_cache(second)
        assert (first.num_flushes, second.num_flushes) == (1, 1)
        assert get_server_info() == {"backend": "the scripted backend", "num_calls": 0}
    finally:
        set_default_backend(None)
    with pytest.raises(ProgramStructureError, match="there is no backend"):
        flush_cache()
