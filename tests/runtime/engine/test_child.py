import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.runtime.engine.child import MAX_SOCKET_PATH, EngineChild, private_directory
from ramet.runtime.engine.config import EngineConfig

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(ROOT))
    return iter(())


def test_the_folder_of_the_sockets_is_private_and_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    folder = private_directory()
    try:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len(str(folder / "requests")) <= MAX_SOCKET_PATH
        assert list(deep.iterdir()) == []
    finally:
        folder.rmdir()


def test_a_child_that_does_not_know_is_terminated_and_leaves_nothing() -> None:
    child = EngineChild(EngineConfig(), "tests.runtime.engine.builders:never_ready")
    assert child.directory.is_dir()
    child.end(told=False)
    assert not child.directory.exists()
    assert "exit code -15, SIGTERM" in str(child.death())
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_how_a_child_ended_is_told() -> None:
    child = EngineChild(EngineConfig(), "tests.runtime.engine.builders:exits")
    assert "does not answer" in str(child.death())
    child._process.wait(60)
    child.end(told=True)
    assert str(child.death()) == "the engine's process ended: exit code 7"
