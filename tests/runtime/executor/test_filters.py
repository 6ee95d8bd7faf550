"""top_k, top_p and min_p on candidates: exact sets, ties, and bounds that lose nothing."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.executor.filters import SHARES, Truncation, choose, is_truncated
from ramet.runtime.protocol import SamplingParams
from tests.runtime.executor import sampling_oracle
from tests.runtime.executor.rows import decode_row


def kept(logits: list[float], **params: Any) -> set[int]:
    """Every token that some uniform number draws."""
    array = np.array(logits, dtype=np.float32)
    mass = float(np.exp((array - array.max()) / params.get("temperature", 1.0)).sum())
    drawn = set()
    for uniform in np.linspace(0, 1, 2001)[:-1]:
        row = Truncation(0, SamplingParams(**params), float(uniform), float(array.max()), len(logits), mass)
        token_id = choose(row, np.arange(len(logits)), array, wide=True)
        assert token_id is not None
        drawn.add(token_id)
    return drawn


def test_ties_at_the_border_go_to_the_lower_id() -> None:
    assert kept([1.0, 2.0, 1.0, 1.0], top_k=2) == {0, 1}
    assert kept([0.0] * 10, top_p=0.35) == {0, 1, 2, 3}
    assert kept([0.0, 5.0, 0.0, 5.0], top_p=0.4) == {1}


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    # Four equal shares of exactly 1/4.
    assert kept([0.0] * 4, top_p=0.5) == {0, 1}
    assert kept([0.0] * 4, top_p=0.5001) == {0, 1, 2}


def test_min_p_keeps_what_is_exactly_at_the_border() -> None:
    assert kept([0.0, 0.0, -1.0], min_p=1.0) == {0, 1}


def test_the_draw_follows_the_order_of_ids() -> None:
    logits = np.array([1.0, 3.0, 2.0], dtype=np.float32)
    drawn = [
        choose(Truncation(0, SamplingParams(top_k=2), u, 3.0, 3), np.arange(3), logits, wide=True)
        for u in (0.0, 0.5, 0.99)
    ]
    assert drawn == [1, 1, 2]


def test_too_few_candidates_for_top_p_are_noticed() -> None:
    logits = np.zeros(3, dtype=np.float32)
    row = Truncation(0, SamplingParams(top_p=0.9), 0.5, 0.0, 10, 10.0)
    assert choose(row, np.arange(3), logits, wide=False) is None
    assert choose(row, np.arange(3), logits, wide=True) == 1


@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.0, 0.1, 1.0, 5.0, 50.0]),
    temperature=st.sampled_from([0.1, 1.0, 3.0]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
)
def test_no_token_of_the_kept_set_lies_below_the_last_bound(
    seed: int, scale: float, temperature: float, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_p=top_p, min_p=min_p)
    if not is_truncated(params, 3000):
        return
    logits = (np.random.default_rng(seed).standard_normal(3000) * scale).astype(np.float32)
    mass = float(np.exp((logits.astype(np.float64) - logits.max()) / temperature).sum())
    row = Truncation(0, params, 0.5, float(logits.max()), 3000, mass)
    exact = sampling_oracle.distribution(
        logits.astype(np.float64), decode_row(temperature=temperature, top_p=top_p, min_p=min_p)
    )
    assert (logits[exact > 0] >= np.float32(row.bound(0.0))).all()
    for share in SHARES:
        ids = np.flatnonzero(logits >= row.bound(share))
        token_id = choose(row, ids, logits[ids], wide=share == 0.0)
        assert token_id is None or exact[token_id] > 0
        assert token_id is not None or share > 0.0


@pytest.mark.parametrize(
    ("params", "truncates"),
    [({}, False), ({"top_k": 9}, True), ({"top_k": 10}, False), ({"top_p": 0.5}, True), ({"min_p": 0.1}, True)],
)
def test_is_truncated(params: dict[str, Any], truncates: bool) -> None:
    assert is_truncated(SamplingParams(**params), 10) is truncates
