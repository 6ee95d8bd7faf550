"""The op benchmark at a tiny size: it runs every case and writes what it measured."""

from pathlib import Path

import pytest
import torch

from benchmarks import kernels
from benchmarks.record import read
from ramet.kernels import reference


def test_a_small_run_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = kernels.main(
        ["--rows", "1,3", "--layers", "1", "--repetitions", "1", "--only", "1", "--out", str(tmp_path)]
    )
    assert read(tmp_path / "kernels.json") == record
    names = {median.case for median in record.medians}
    assert {"qkv, 1 rows", "head, 1 rows", "apply_rope, 1 rows", "decode 1 x 192", "prefill 512"} <= names
    assert all(median.metrics["us"] for median in record.medians)
    assert kernels.RAMET in capsys.readouterr().out


def test_the_row_by_row_baseline_is_the_oracle() -> None:
    q, k, v = torch.randn(4, 9, 64), torch.randn(7, 3, 64), torch.randn(7, 3, 64)
    expected = reference.attention(q, k, v, scale=0.125, sliding_window=None, softcap=None)
    torch.testing.assert_close(kernels._sdpa(q, k, v)[0].transpose(0, 1), expected)


@pytest.mark.parametrize("rows", ["0", "1,x", ""])
def test_wrong_rows_are_refused(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kernels.parse(["--rows", rows])
    assert "--rows" in capsys.readouterr().err
