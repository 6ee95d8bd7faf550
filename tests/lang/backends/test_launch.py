"""A server of its own: it is started, awaited, asked, and ended, whatever happens."""

import gc
import os
import sys
import time
from typing import Any

import pytest

import ramet
from ramet.lang.backends.launch import Runtime, arguments_of
from ramet.lang.backends.local import LocalBackend
from ramet.runtime.protocol import EngineDeadError

FAKE = (sys.executable, "-m", "tests.lang.backends.fake_serve")


@ramet.function
def ask(s: Any) -> None:
    s += ramet.user("Where?") + ramet.assistant(ramet.gen("x", max_tokens=4, temperature=0))


def is_gone(process_id: int) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(process_id, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_a_program_on_a_server_of_its_own() -> None:
    with Runtime(command=FAKE) as runtime:
        state = ask.run(backend=runtime)
        assert len(state.get_meta_info("x")["token_ids"]) == 4
        assert runtime.info.model == "random"
        process_id = runtime.process_id
    assert is_gone(process_id)
    runtime.shutdown()


def test_a_runtime_that_is_dropped_ends_its_server() -> None:
    runtime = Runtime(command=FAKE)
    process_id = runtime.process_id
    del runtime
    gc.collect()
    assert is_gone(process_id)


def test_a_server_that_ends() -> None:
    with pytest.raises(
        EngineDeadError, match="ended with code 1 before it answered:\nerror: there is no model 'brok"
    ):
        Runtime("broken", command=FAKE)


def test_a_server_that_does_not_answer() -> None:
    with pytest.raises(EngineDeadError, match=r"within start_timeout=1\.5 s; it said:"):
        Runtime("silent", start_timeout=1.5, command=FAKE)


def test_the_command_line() -> None:
    options = {"model": None, "port": 1, "kv_tokens": 5, "enable_prefix_cache": False, "names": ["a", "b"]}
    assert arguments_of(options) == [
        "--port", "1", "--kv-tokens", "5", "--no-enable-prefix-cache", "--names", "a", "--names", "b",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_real_server() -> None:
    with Runtime(kv_tokens=2048, context_length=1024, threads=1) as runtime:
        state = ask.run(backend=runtime)
        assert state["x"]
        with ramet.Engine(kv_tokens=2048, context_length=1024, threads=1) as engine:
            here = ask.run(backend=LocalBackend(engine))
        assert here["x"] == state["x"]
        assert here.get_meta_info("x")["token_ids"] == state.get_meta_info("x")["token_ids"]
