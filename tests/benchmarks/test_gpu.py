"""The GPU benchmark: in the interpreter at tiny shapes here, as it is where there is a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

pytest.importorskip("triton")

from benchmarks import gpu

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, limit: int) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the interpreter is chosen when triton is imported."""
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit, check=False
    )


def test_a_dry_run_is_right_and_written(tmp_path: Path) -> None:
    done = run("--dry-run", "--out", str(tmp_path), limit=300)
    assert done.returncode == 0, done.stdout + done.stderr
    record = msgspec.json.decode((tmp_path / "gpu.json").read_bytes(), type=gpu.GpuRecord)
    assert all(record.same_bits.values())
    assert len(record.same_bits) == 3
    assert record.left_out == 0
    names = [m.case for m in record.measurements]
    assert "tiny: 2 branches of 256 + 4" in names
    assert "rope + cache write, tiny, 2 rows" in names
    for part in ("draw, top_k", "bitmask", "experts", "int4", "e4m3", "fp8 cache", "latent", "whole: decode"):
        assert any(part in name for name in names), part
    assert all(m.error < 0.01 for m in record.measurements)
    assert "DIFFERENT" not in done.stdout


def test_an_unknown_target_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--compile-only", "--targets", "sm_90,sm_1"]) == 2
    assert "no sm_1; there are sm_80" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_can_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 2
    assert "--dry-run" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_results_are_right_and_bits_the_same(tmp_path: Path) -> None:
    done = run("--seconds", "120", "--out", str(tmp_path), limit=400)
    assert done.returncode == 0, done.stdout + done.stderr
    record = msgspec.json.decode((tmp_path / "gpu.json").read_bytes(), type=gpu.GpuRecord)
    assert all(record.same_bits.values()), record.same_bits
