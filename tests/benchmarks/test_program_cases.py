"""The programs' cases: deterministic, of two items at least, and without the shared folder too."""

from pathlib import Path

import pytest

from benchmarks.program_cases import ProgramCase, case_names, make_case
from benchmarks.workloads import read_gsm8k, read_mt_bench, shared_folder
from ramet import Program

needs_shared = pytest.mark.skipif(shared_folder() is None, reason="no shared folder")


@pytest.mark.parametrize("name", case_names())
def test_cases_are_deterministic(name: str) -> None:
    case = make_case(name, 1.0, seed=0)
    assert isinstance(case, ProgramCase)
    assert isinstance(case.program, Program)
    assert case.name == name
    assert case.items == make_case(name, 1.0, seed=0).items
    assert 2 <= len(make_case(name, 0.1, seed=0).items) <= len(case.items)


@pytest.mark.parametrize("name", ["gsm8k", "chat_long"])
def test_without_the_shared_folder_there_are_the_examples(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAMET_SHARED", str(tmp_path / "nowhere"))
    assert len(make_case(name, 1.0, seed=0).items) >= 4


@needs_shared
def test_shared_problems_and_questions() -> None:
    problems = read_gsm8k(5)
    assert len(problems) == 5
    assert all(problem and number.replace(",", "").lstrip("-").isdigit() for problem, number in problems)
    assert all(len(turns) == 2 for turns in read_mt_bench(10))
