import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.env import (
    DEFAULT_CACHE_BYTES,
    OPENMP_SPIN_COUNT,
    bound_openmp_spinning,
    environment,
    parse_byte_count,
    read_environment,
)
from ramet.runtime.protocol import InvalidRequestError

HOME = {"HOME": "/home/user"}


def test_the_defaults() -> None:
    env = read_environment(HOME)
    assert env.cache_dir == Path("/home/user/.cache/ramet")
    assert env.cache_bytes == DEFAULT_CACHE_BYTES == 8 * 1024**3
    assert not env.offline
    assert (env.log_level, env.log_format) == ("warning", "text")
    assert env.num_threads is None


def test_the_cache_folder_is_ours_then_the_desktops_then_homes() -> None:
    assert read_environment({**HOME, "XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/ramet")
    assert read_environment({**HOME, "XDG_CACHE_HOME": "/x", "RAMET_CACHE_DIR": "/y"}).cache_dir == Path("/y")
    assert read_environment({**HOME, "XDG_CACHE_HOME": "not/absolute"}).cache_dir == Path(
        "/home/user/.cache/ramet"
    )
    assert read_environment({**HOME, "RAMET_CACHE_DIR": ""}).cache_dir == Path("/home/user/.cache/ramet")
    assert read_environment({}).cache_dir.is_absolute()


def test_a_tilde_is_expanded() -> None:
    assert "~" not in str(read_environment({"RAMET_CACHE_DIR": "~/models"}).cache_dir)


@pytest.mark.parametrize("name", ["RAMET_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_each_offline_flag_counts(name: str) -> None:
    for value in ("1", "true", "YES", "on"):
        assert read_environment({**HOME, name: value}).offline
    for value in ("", "0", "false", "No", "off"):
        assert not read_environment({**HOME, name: value}).offline


def test_other_settings_are_read() -> None:
    variables = {"RAMET_LOG_LEVEL": "DEBUG", "RAMET_LOG_FORMAT": "JSON", "RAMET_NUM_THREADS": "3"}
    env = read_environment({**HOME, **variables})
    assert (env.log_level, env.log_format, env.num_threads) == ("debug", "json", 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RAMET_OFFLINE", "perhaps"),
        ("RAMET_CACHE_BYTES", "-1"),
        ("RAMET_CACHE_BYTES", "lots"),
        ("RAMET_CACHE_BYTES", "1e9"),
        ("RAMET_LOG_LEVEL", "loud"),
        ("RAMET_LOG_FORMAT", "xml"),
        ("RAMET_NUM_THREADS", "0"),
        ("RAMET_NUM_THREADS", "-2"),
        ("RAMET_NUM_THREADS", "two"),
        ("RAMET_NUM_THREADS", "²"),
        ("RAMET_NUM_THREADS", "99999"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_environment({**HOME, name: value})
    assert caught.value.field == name
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("123", 123),
        ("1K", 1000),
        ("1kb", 1000),
        ("2KiB", 2048),
        ("500M", 500_000_000),
        ("8GiB", 8 << 30),
        ("1.5G", 1_500_000_000),
        (" 3 TiB ", 3 << 40),
    ],
)
def test_byte_counts(text: str, expected: int) -> None:
    assert parse_byte_count(text) == expected
    assert read_environment({**HOME, "RAMET_CACHE_BYTES": text}).cache_bytes == expected


@given(st.text(max_size=12))
def test_any_text_is_a_byte_count_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_byte_count(text) >= 0


def test_the_process_reads_its_environment_once() -> None:
    assert environment() is environment()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, OPENMP_SPIN_COUNT),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_openmp_spins_briefly_unless_the_user_has_said_otherwise(
    before: dict[str, str], after: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    bound_openmp_spinning()
    assert os.environ.get("GOMP_SPINCOUNT") == after


def test_api_keys_are_read_and_not_shown() -> None:
    environment = read_environment({"HOME": "/h", "RAMET_API_KEY": " key-1, key-2 ,,"})
    assert environment.api_keys == ("key-1", "key-2")
    assert "key-1" not in repr(environment)
    assert read_environment({"HOME": "/h"}).api_keys == ()
