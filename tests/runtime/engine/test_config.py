from pathlib import Path
from typing import Any

import msgspec
import pytest

from ramet.runtime.engine import EngineConfig
from ramet.runtime.engine.config import ELSEWHERE
from ramet.runtime.protocol import InvalidRequestError


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("model", "", "an embedded model's name"),
        ("device", "tpu", "auto, cpu, cuda or cuda:N"),
        ("device", "cuda:x", "auto, cpu, cuda or cuda:N"),
        ("dtype", "float8", "one of auto, float32, bfloat16, float16"),
        ("quantization", "int3", "one of auto, none, int8"),
        ("context_length", 1, "an integer of at least 2"),
        ("context_length", 2.5, "an integer of at least 2"),
        ("kv_tokens", 0, "an integer of at least 2"),
        ("memory_fraction", 0, "a number above 0 and at most 1"),
        ("memory_fraction", float("nan"), "a number above 0 and at most 1"),
        ("page_size", 0, "an integer from 1 to 1024"),
        ("page_size", True, "an integer from 1 to 1024"),
        ("max_running_requests", 0, "an integer from 1 to 65536"),
        ("max_tokens_per_step", 0, "an integer of at least 1"),
        ("schedule_policy", "lifo", "one of lpm, fcfs"),
        ("max_overtakes", -1, "an integer of at least 0"),
        ("eviction_policy", "random", "one of lru, lfu"),
        ("enable_prefix_cache", 1, "True or False"),
        ("threads", 0, "an integer from 1 to 1024"),
        ("cache_dir", "", "a folder, or None"),
        ("cache_dir", "a\0b", "a folder, or None"),
        ("seed", 2**63, "an integer from -9223372036854775808 to 9223372036854775807"),
    ],
)
def test_wrong_values_name_field_value_and_range(field: str, value: Any, expected: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        EngineConfig.of("smollm2" if field != "model" else value, {} if field == "model" else {field: value})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} is {value!r}; it must be {expected}")


def test_an_unknown_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidRequestError, match=r"no setting 'kv_token'; did you mean kv_tokens\?") as caught:
        EngineConfig.of("smollm2", {"kv_token": 5})
    assert caught.value.field == "kv_token"
    with pytest.raises(InvalidRequestError, match="they are model, device"):
        EngineConfig.of("smollm2", {"qqq": 5})


def test_paths_are_taken(tmp_path: Path) -> None:
    config = EngineConfig.of(tmp_path / "a.gguf", {"cache_dir": tmp_path})
    assert (config.model, config.cache_dir) == (str(tmp_path / "a.gguf"), str(tmp_path))


def test_it_survives_json() -> None:
    config = EngineConfig(model="x", kv_tokens=100, threads=2)
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config


def test_a_long_value_is_shown_short() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        EngineConfig(device="x" * 10_000)
    assert len(str(caught.value)) < 200


def test_names_of_other_engines_lead_to_names_that_there_are() -> None:
    with pytest.raises(InvalidRequestError, match="here it is context_length"):
        EngineConfig.of("smollm2", {"max_model_len": 100})
    known = EngineConfig.__struct_fields__
    assert not set(ELSEWHERE) & set(known)
    hints = {hint.partition("=")[0] for hint in ELSEWHERE.values()}
    assert hints - {"HF_HOME in the environment"} <= set(known)
