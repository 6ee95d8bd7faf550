"""Parts of a run are kept, and those of another run are not taken for them."""

from pathlib import Path

import pytest

from benchmarks.answer_journal import Journal, OtherRunError, Parts


def test_parts_are_kept(tmp_path: Path) -> None:
    parts = Parts.within(tmp_path / "new", None)
    journal: Journal[int] = parts.journal("a, b", int, ["settings", 1])
    assert journal.done == []
    journal.append(3)
    journal.append(4)
    assert parts.journal("a, b", int, ["settings", 1]).done == [3, 4]
    assert journal.path.name == "a-b.jsonl"
    with pytest.raises(OtherRunError, match=r"a-b\.jsonl"):
        parts.journal("a, b", int, ["settings", 2])


def test_time() -> None:
    assert not Parts.within(Path(), None).is_over
    assert not Parts.within(Path(), 1000).is_over
    assert Parts.within(Path(), 0).is_over
