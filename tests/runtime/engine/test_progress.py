import io
import sys

import pytest

from ramet.runtime.engine.progress import batch_progress


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
