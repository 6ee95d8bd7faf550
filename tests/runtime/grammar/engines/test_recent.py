"""The last results are kept, errors are not."""

import pytest

from ramet.runtime.grammar.engines.recent import Recent
from ramet.runtime.grammar.schema import Pace


def test_results_are_kept_up_to_a_number() -> None:
    asked: list[tuple[str, Pace | None]] = []

    def compute(text: str, pace: Pace | None) -> int:
        asked.append((text, pace))
        if text == "bad":
            raise ValueError(text)
        return len(text)

    pace = Pace()
    recent = Recent(compute, 2)
    assert [recent.get(text, pace) for text in ("a", "bb", "a", "ccc", "a", "bb")] == [1, 2, 1, 3, 1, 2]
    assert asked == [("a", pace), ("bb", pace), ("ccc", pace), ("bb", pace)]
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            recent.get("bad")
    assert asked[4:] == [("bad", None)] * 2
