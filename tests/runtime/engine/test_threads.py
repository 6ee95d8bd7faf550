import os
from pathlib import Path

import pytest
import torch

from ramet.runtime.engine.threads import choose_threads, usable_cores


def test_the_setting_comes_before_the_environment() -> None:
    assert choose_threads(3, 5) == 3
    assert choose_threads(None, 5) == 5


def test_by_itself_it_is_no_more_than_torch_would_take() -> None:
    assert 1 <= choose_threads(None, None) <= torch.get_num_threads()


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max 100000", None), ("100000 100000\n", 1), ("50000 100000", 1), ("150000 100000", 2), ("odd", None)],
)
def test_a_cgroups_quota_counts(text: str, limit: int | None, tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(text)
    cores = len(os.sched_getaffinity(0))
    assert usable_cores(file) == (cores if limit is None else min(cores, limit))
    assert usable_cores(tmp_path / "absent") == cores
