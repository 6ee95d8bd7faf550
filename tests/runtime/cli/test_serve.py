"""``ramet serve``: its help, what it refuses before anything is loaded, and what it says when it is ready."""

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.main import get_command

from ramet.runtime.cli import serve as command
from ramet.runtime.cli.app import app
from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.settings import ServeSettings, serve_settings
from tests.runtime.cli.conftest import Ramet


def test_the_help_fits_in_the_head(ramet: Ramet) -> None:
    done = ramet("serve", "--help")
    assert done.status == 0
    for panel in ("Engine", "Memory and cache", "Scheduling", "Network and access", "Limits", "Formats"):
        assert panel in done.out
    assert 25 <= done.out.count(" --") <= 48


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--port", "70000"), "port is 70000"),
        (("--max-json-depth", "2"), "max_json_depth is 2"),
        (("--kv-tokens", "0"), "kv_tokens is 0"),
        (("--config", "/nowhere.toml"), "/nowhere.toml cannot be read"),
        (("--api-key-file", "/nowhere"), "/nowhere cannot be read"),
    ],
)
def test_wrong_settings_cost_no_time(ramet: Ramet, arguments: tuple[str, ...], message: str) -> None:
    done = ramet("serve", *arguments)
    assert done.status == 1
    assert message in done.err


def test_options_become_settings(ramet: Ramet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[ServeSettings] = []
    monkeypatch.setattr(command, "run", seen.append)
    file = tmp_path / "c.toml"
    file.write_text("page_size = 4\nport = 1\n")
    arguments = (
        "--model m.gguf --no-prefix-cache --port 0 --api-key k1 --api-key k2 --cors-origin https://a "
        f"--served-model-name n --request-timeout 5 --config {file}"
    )
    assert ramet("serve", *arguments.split()).status == 0
    (settings,) = seen
    assert (settings.engine.model, settings.engine.enable_prefix_cache, settings.engine.page_size) == (
        "m.gguf", False, 4
    )  # fmt: skip
    server = settings.server
    assert (server.port, server.api_keys, server.request_timeout) == (0, ("k1", "k2"), 5.0)
    assert (server.cors_origins, server.served_model_names) == (("https://a",), ("n",))


def test_it_says_what_it_serves_and_how_to_call_it(capsys: pytest.CaptureFixture[str]) -> None:
    settings = serve_settings({"api_keys": ["secret"], "served_model_names": ["it's [red]"]}, None)
    engine: Any = SimpleNamespace(info=EngineInfo(model="m", vocab_size=5, context_length=99, kv_tokens=1000))
    command.announce(settings, engine, "http://127.0.0.1:8000")
    first, curl = capsys.readouterr().err.strip().split("\n")
    assert "serves it's [red] on http://127.0.0.1:8000" in first
    assert "1 API key" in first
    words = shlex.split(curl)
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert '"model": "it\'s [red]"' in words[-1]
    assert "secret" not in first + curl


def test_each_option_may_stand_in_a_file_under_its_own_name(tmp_path: Path) -> None:
    """And a value that is none is refused by the setting's name, whatever its type."""
    options = [one for one in get_command(app).commands["serve"].params if one.name not in ("config", "help")]  # type: ignore[attr-defined]
    assert len(options) >= 40
    for option in options:
        name = max(option.opts, key=len).removeprefix("--").replace("-", "_")
        file = tmp_path / f"{name}.toml"
        file.write_text(f"{name} = 1979-05-27\n")
        with pytest.raises(InvalidRequestError) as raised:
            serve_settings({}, file)
        assert raised.value.field == option.name, name
