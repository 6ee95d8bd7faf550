"""Hidden states of a prompt, added up chunk by chunk."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.scheduler.pooling import PooledStates


def drive(pooled: PooledStates, states: np.ndarray, cuts: list[int]) -> list[float]:
    """The prompt in chunks that end at ``cuts``."""
    start = 0
    for end in [*sorted(cuts), len(states) + 2]:
        positions = pooled.within(start, end)
        pooled.add(positions, states[positions.start : positions.stop])
        start = end
    return pooled.embedding()


@given(st.integers(1, 30), st.lists(st.integers(0, 30), max_size=5), st.sampled_from(["last", "mean"]))
def test_how_the_prompt_is_cut_changes_no_bit(length: int, cuts: list[int], pooling: str) -> None:
    states = np.random.default_rng(length).standard_normal((length, 3)).astype(np.float32) * 1e3
    of = "last" if pooling == "last" else "mean"
    whole = drive(PooledStates(of, length), states, [])  # type: ignore[arg-type]
    assert drive(PooledStates(of, length), states, cuts) == whole  # type: ignore[arg-type]
    expected = states[-1] if pooling == "last" else states.astype(np.float64).mean(axis=0)
    assert np.allclose(whole, expected, rtol=1e-6)


def test_what_was_added_is_not_asked_for_again() -> None:
    pooled = PooledStates("mean", 10)
    assert pooled.within(0, 4) == range(4)
    pooled.add(range(4), np.ones((4, 2), dtype=np.float32))
    assert pooled.next == 4
    # Computed again after a preemption.
    assert pooled.within(0, 6) == range(4, 6)
    assert not pooled.within(0, 3)
    pooled.add(range(3, 3), np.zeros((0, 2), dtype=np.float32))
    assert pooled.within(6, 12) == range(6, 10)
    pooled.add(range(4, 10), np.full((6, 2), 2.0, dtype=np.float32))
    assert pooled.embedding() == [np.float32(1.6)] * 2


def test_of_the_last_position_nothing_else_is_wanted() -> None:
    pooled = PooledStates("last", 5)
    assert not pooled.within(0, 4)
    assert pooled.within(4, 9) == range(4, 5)
