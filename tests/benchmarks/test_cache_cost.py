"""The cost of a match is measured on trees of the size that was asked for. (No time is asserted.)"""

import pytest

from benchmarks.cache_cost import PROMPT_TOKENS, SHARED_TOKENS, match_costs


@pytest.mark.parametrize("page_size", [1, 16])
def test_the_tree_has_the_size_it_should(page_size: int) -> None:
    found = match_costs(5, page_size, seed=0)
    assert found["tree_tokens"] == SHARED_TOKENS + 5 * (PROMPT_TOKENS - SHARED_TOKENS)
    assert found["tree_nodes"] == 6
    assert all(value is not None and value > 0 for value in found.values())
