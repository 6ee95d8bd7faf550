"""Command line, file and environment become one record of settings."""

from pathlib import Path

import pytest

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.settings import described_settings, serve_settings


def write(folder: Path, text: str, name: str = "serve.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_the_command_line_counts_before_the_file_and_that_before_the_defaults(tmp_path: Path) -> None:
    file = write(
        tmp_path, 'port = 1\nmodel = "a.gguf"\nmax-running-requests = 5\ncors_origins = ["https://x"]\n'
    )
    settings = serve_settings({"port": 2, "host": None}, file)
    assert (settings.server.port, settings.server.host) == (2, "127.0.0.1")
    assert (settings.engine.model, settings.engine.max_running_requests) == ("a.gguf", 5)
    assert settings.server.cors_origins == ("https://x",)
    assert settings.start_timeout == 600.0
    assert serve_settings({}, None).engine.model == "smollm2"


def test_a_file_may_call_them_as_the_options_are_called(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        'api-key = "k"\ncors_origin = ["https://x"]\nserved_model_name = "m"\nprefix_cache = false\n'
        'response_store = "r.sqlite"\n',
    )
    settings = serve_settings({}, file)
    assert settings.server.api_keys == ("k",)
    assert settings.server.cors_origins == ("https://x",)
    assert settings.server.served_model_names == ("m",)
    assert not settings.engine.enable_prefix_cache
    assert settings.server.response_store == "r.sqlite"
    assert serve_settings({"response_store": Path("r")}, None).server.response_store == "r"


def test_keys_of_all_sources_count(tmp_path: Path) -> None:
    keys = write(tmp_path, "# mine\n\nfrom-file\n", "keys")
    file = write(tmp_path, f'api_keys = ["in-toml"]\napi_key_file = "{keys}"\n')
    settings = serve_settings({}, file, ["from-env", "in-toml"])
    assert settings.server.api_keys == ("in-toml", "from-env", "from-file")
    assert "in-toml" not in str(described_settings(settings))
    assert described_settings(settings)["port"] == 8000


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("prot = 1", "did you mean port"),
        ('api_keys = ["x"]\napi_key = "y"', "api_keys twice"),
        ("[server]\nport = 1", r"has a table \[server\]"),
        ("api_key = 5", "must be a list"),
        ("api_key_file = 5", "api_key_file is 5; it must be a path"),
        ("response_store = 5", "response_store is 5; it must be a string"),
        ('host = ["x"]', "host is .*; it must be a string"),
        ('tool_format = "x"', "tool_format is 'x'; it must be one of auto, hermes"),
        ('reasoning_format = "x"', "reasoning_format is 'x'; it must be one of auto, none"),
        (f"port = {'[' * 2000}{']' * 2000}", "2000 brackets"),
        ("port = '\x00'", "is not TOML"),
        ("port = ", "is not TOML"),
        ('api_keys = "x"', "must be a list"),
        ("start_timeout = 0", "start_timeout is 0"),
        ("hang_timeout = 0.5", "hang_timeout is 0.5.*or 0 for never"),
        ("write_timeout = 0", "write_timeout is 0"),
        ('host = ""', "host is empty"),
        ("max_running_requests = 0", "max_running_requests is 0"),
        ('api_key_file = "/nowhere"', "cannot be read"),
        ("gpu_memory_utilization = 0.5", "memory_fraction"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(InvalidRequestError, match=match):
        serve_settings({}, write(tmp_path, text))


def test_files_that_are_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        serve_settings({}, tmp_path / "none.toml")
    with pytest.raises(InvalidRequestError, match="has no key"):
        serve_settings({"api_key_file": write(tmp_path, "# none\n", "keys")}, None)
