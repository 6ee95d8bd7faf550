"""Runs the tests that need triton's interpreter, in a process where it is chosen before triton is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = (
    "tests/kernels/gpu/interpreted",
    "tests/runtime/attention/interpreted",
    "tests/runtime/executor/interpreted",
)
LIMIT = 500
"""Seconds after which a run is ended; alone it takes well under a minute."""


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_in_the_interpreter(folder: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", folder]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
