import io
import sys

import pytest

from ramet.runtime.engine.progress import batch_progress, loading_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("total", "wanted", "shown"), [(3, True, True), (1, True, False), (3, False, False)])
def test_a_bar_is_for_batches_on_a_terminal(
    total: int, wanted: bool, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    with batch_progress(total, wanted=wanted) as show:
        show(1)
        show(total)
    assert ("generating" in stderr.getvalue()) is shown


@pytest.mark.parametrize("stderr", [io.StringIO(), None])
def test_it_is_silent_where_there_is_no_terminal(
    stderr: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    with batch_progress(100, wanted=True) as show:
        show(50)
    assert stderr is None or stderr.getvalue() == ""


def test_loading_shows_its_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    with loading_progress("[model]", wanted=True) as report:
        assert report is not None
        report("read", 0.0)
        report("read", 1.0)
        report("build", 0.5)
    assert "[model]: read" in stderr.getvalue()
    assert "[model]: build" in stderr.getvalue()


@pytest.mark.parametrize(("stderr", "wanted"), [(io.StringIO(), True), (None, True), (Terminal(), False)])
def test_loading_is_silent_where_nobody_sees_it(
    stderr: io.StringIO | None, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    with loading_progress("model", wanted=wanted) as report:
        assert report is None
