"""``ramet run``: a good program, and every way in which a file can be none."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def program(tmp_path: Path) -> Any:
    def write(text: str, name: str = "program.py") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_main_gets_the_engine_and_the_arguments(ramet: Any, fake_engine: Any, program: Any) -> None:
    file = program("def main(engine, *words):\n    print(engine.info.model, words, __name__)\n")
    done = ramet("run", "--kv-tokens", "64", file, "a", "--model", "b")
    assert (done.status, done.out) == (0, "fake ('a', '--model', 'b') ramet_program\n")
    assert fake_engine.settings["kv_tokens"] == 64
    assert "2 calls in" in done.err
    assert "10 prompt tokens (4 cached, 6 computed), 6 generated" in done.err
    assert fake_engine.closed


def test_main_may_be_a_coroutine_function(ramet: Any, fake_engine: Any, program: Any) -> None:
    file = program(
        "import asyncio\nasync def main(engine):\n    await asyncio.sleep(0)\n    print('awaited')\n"
    )
    assert ramet("run", file).out == "awaited\n"


def test_a_file_may_import_its_neighbours_and_have_dataclasses(
    ramet: Any, fake_engine: Any, program: Any
) -> None:
    program("WORD = 'beside'\n", "ramet_test_neighbour.py")
    file = program(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import ClassVar\n"
        "from ramet_test_neighbour import WORD\n\n@dataclass\nclass Box:\n    word: str\n"
        "    kind: ClassVar[int] = 1\n\ndef main(engine):\n    print(Box(WORD))\n"
    )
    assert ramet("run", file).out == "Box(word='beside')\n"


def test_an_exception_is_shown_from_the_program_on(ramet: Any, fake_engine: Any, program: Any) -> None:
    file = program("def main(engine):\n    inner()\n\ndef inner():\n    raise KeyError('of the program')\n")
    done = ramet("run", file)
    assert done.status == 1
    assert "KeyError: 'of the program'" in done.err
    assert "in inner" in done.err
    assert "runtime/cli" not in done.err
    assert fake_engine.closed


def test_ramets_own_errors_inside_a_program_have_a_traceback_too(
    ramet: Any, fake_engine: Any, program: Any
) -> None:
    file = program("from ramet import SamplingParams\ndef main(engine):\n    SamplingParams(top_p=2.0)\n")
    done = ramet("run", file)
    assert done.status == 1
    assert "program.py" in done.err
    assert "top_p is 2.0" in done.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def main(:\n", "SyntaxError"),
        ("import ramet_no_such_module\n", "ModuleNotFoundError"),
        ("def other(engine): ...\n", "has no function main"),
        ("main = 3\n", "has no function main"),
        ("import sys\ndef main(engine):\n    1 / 0\n", "ZeroDivisionError"),
    ],
)
def test_programs_that_do_not_run(ramet: Any, fake_engine: Any, program: Any, text: str, message: str) -> None:
    done = ramet("run", program(text))
    assert done.status == 1
    assert message in done.err
    assert "runtime/cli" not in done.err


@pytest.mark.parametrize(
    ("signature", "arguments", "message"),
    [
        ("engine, needed", [], "missing a required argument: 'needed'"),
        ("engine", ["one", "two"], "too many positional arguments"),
        ("", [], "too many positional arguments"),
    ],
)
def test_arguments_that_main_does_not_take_are_one_line(
    ramet: Any, fake_engine: Any, program: Any, signature: str, arguments: list[str], message: str
) -> None:
    done = ramet("run", program(f"def main({signature}): ...\n"), *arguments)
    assert done.status == 1
    assert message in done.err
    assert done.err.count("\n") == 1
    assert fake_engine.settings == {}


def test_a_programs_own_exit_status_is_kept(ramet: Any, fake_engine: Any, program: Any) -> None:
    assert ramet("run", program("import sys\ndef main(engine):\n    sys.exit(5)\n")).status == 5


@pytest.mark.parametrize(("name", "message"), [("missing.py", "not a file"), ("", "not a file")])
def test_a_missing_file_is_one_line(
    ramet: Any, fake_engine: Any, tmp_path: Path, name: str, message: str
) -> None:
    done = ramet("run", str(tmp_path / name))
    assert done.status == 1
    assert message in done.err
    assert done.err.count("\n") == 1
    assert fake_engine.settings == {}


def test_a_file_of_another_kind_is_refused(ramet: Any, fake_engine: Any, program: Any) -> None:
    done = ramet("run", program("hello", "notes.txt"))
    assert done.status == 1
    assert "must end in .py" in done.err
