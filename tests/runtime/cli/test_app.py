"""Help, version, exit statuses, and errors of one line."""

import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest


def test_version(ramet: Any) -> None:
    done = ramet("--version")
    assert (done.status, done.out) == (0, f"ramet {version('ramet')}\n")


@pytest.mark.parametrize("command", ["generate", "chat", "run", "info"])
def test_every_command_has_help(ramet: Any, command: str) -> None:
    whole, one = ramet("--help"), ramet(command, "-h")
    assert whole.status == one.status == 0
    assert command in whole.out
    assert "--model" in one.out
    assert "--kv-tokens" in one.out


def test_without_a_command_help_is_shown(ramet: Any) -> None:
    done = ramet()
    assert done.status == 2
    assert "generate" in done.out + done.err


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["generate"], ["generate", "x", "--nothing"], ["generate", "x", "--seed", "x"]]
)
def test_wrong_usage_is_status_2(ramet: Any, arguments: list[str]) -> None:
    assert ramet(*arguments).status == 2


def test_an_error_is_one_line_and_status_1(ramet: Any, fake_engine: Any) -> None:
    """Brackets in a message are not markup, and however long it is, it is not wrapped."""
    done = ramet("generate", "word " * 100)
    assert done.status == 1
    assert done.out == ""
    assert done.err == "error: the prompt has 104 tokens, and the context is 60 [tokens]\n"


def test_a_wrong_value_is_refused_before_the_engine_is_opened(ramet: Any, fake_engine: Any) -> None:
    done = ramet("generate", "x", "--temperature", "-1")
    assert done.status == 1
    assert "temperature is -1.0; it must be a number from 0 to 100" in done.err
    assert fake_engine.settings == {}


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['ramet', '--help']\nfrom ramet.runtime.cli import main\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert done.code == 0\n"
        "assert not {'torch', 'numpy', 'tokenizers', 'transformers', 'zmq'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ctrl_c_while_the_commands_are_loaded_says_nothing() -> None:
    code = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'ramet.runtime.cli.app':\n"
        "            raise KeyboardInterrupt\n"
        "from ramet.runtime.cli import main\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
