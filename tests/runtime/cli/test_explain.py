"""``ramet explain``: the programs of a file, explained without a run."""

from pathlib import Path
from typing import Any

import pytest

TEXT = """
import ramet

@ramet.function
def first(s, question):
    s += "Question: " + question + ramet.gen("a", max_tokens=4) + ramet.gen("b", max_tokens=4)

@ramet.function
def second(s, times=2):
    for number in range(times):
        s += ramet.gen(f"c{number}")

other = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "programs.py"
    path.write_text(TEXT)
    return str(path)


def test_all_programs_of_a_file_are_explained(ramet: Any, file: str) -> None:
    done = ramet("explain", file)
    assert (done.status, done.err) == (0, "")
    assert "program first\n" in done.out
    assert "program second\n" in done.out
    assert "tokens are estimated" in done.out


def test_one_program_with_its_arguments(ramet: Any, file: str) -> None:
    done = ramet("explain", file, "times=3", "--program", "second")
    assert "calls            3" in done.out
    assert "program first" not in done.out
    assert "a -> b" in ramet("explain", file, "question=not json", "-p", "first").out


def test_tokens_are_counted_by_a_model(ramet: Any, fake_engine: Any, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "class Program:\n    name = 'p'\n    def explain(self, backend):\n        return backend.info.model\n"
        "program = Program()\n"
    )
    assert ramet("explain", str(file), "--model", "m").out == "fake\n"
    assert fake_engine.settings == {"model": "m"}
    assert fake_engine.closed


def test_a_page_is_written(ramet: Any, file: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = ramet("explain", file, "-p", "first", "--html", str(page))
    assert done.status == 0
    assert "<svg" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--html", "x.html"], "has the programs first, second; choose one with --program"),
        (["-p", "third"], "has no program 'third'; it has first, second"),
        (["question"], "'question' is no argument; write name=value"),
        (["=3"], "'=3' is no argument"),
    ],
)
def test_what_cannot_be_explained(ramet: Any, file: str, arguments: list[str], words: str) -> None:
    done = ramet("explain", file, *arguments)
    assert done.status == 1
    assert words in done.err


def test_files_without_programs(ramet: Any, tmp_path: Path) -> None:
    assert "is not a file" in ramet("explain", str(tmp_path / "none.py")).err
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    assert "has no programs; decorate a function with ramet.function" in ramet("explain", str(empty)).err


def test_an_exception_of_the_program_is_shown(ramet: Any, file: str) -> None:
    done = ramet("explain", file, "-p", "second", 'times="many"')
    assert done.status == 1
    assert "TypeError" in done.err
