"""Runs a case's programs on a ramet server in a process of its own: over its own API, and over OpenAI's as
requests that know nothing of each other."""

from typing import Any

import msgspec

from benchmarks.program_cases import ProgramCase
from benchmarks.program_runner import ProgramRun, run_on_backend
from ramet import OpenAI, Runtime, flush_cache, get_server_info
from ramet.runtime.engine import EngineStats


class ServedModel:
    """A server that ends with the ``with`` block of its Runtime, as what programs are counted on."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def flush_cache(self) -> None:
        flush_cache(self.runtime)

    def stats(self) -> EngineStats:
        """The counters of the server's engine."""
        info: dict[str, Any] = get_server_info(self.runtime)
        return msgspec.convert(info["stats"], EngineStats)


def run_on_endpoint(case: ProgramCase, served: ServedModel) -> ProgramRun:
    """Compiled, with token ids over the server's own API. Raises what the program raises."""
    return run_on_backend(case, served.runtime, served, compiled=True)


def run_over_openai(case: ProgramCase, served: ServedModel) -> ProgramRun:
    """Each call as it is said, as a request of OpenAI's API for itself.

    Raises:
        UnsupportedError: the program says what cannot be said in that API.
    """
    runtime = served.runtime
    with OpenAI(
        runtime.info.model, base_url=f"{runtime.base_url}/v1", api_key=runtime.api_key, flavour="ramet"
    ) as openai:
        return run_on_backend(case, openai, served, compiled=False)
