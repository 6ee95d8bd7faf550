"""The cache's bound is in bytes, whatever is put in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.service import ByteCache


def test_the_least_recently_used_goes_first() -> None:
    cache: ByteCache[str, int] = ByteCache(100)
    cache.put("a", 1, 40)
    cache.put("b", 2, 40)
    assert cache.get("a") == 1
    cache.put("c", 3, 40)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_what_is_larger_than_the_cache_is_not_kept_and_pushes_nothing_out() -> None:
    cache: ByteCache[str, int] = ByteCache(100)
    cache.put("a", 1, 100)
    cache.put("b", 2, 101)
    assert (cache.get("a"), cache.get("b"), cache.num_bytes) == (1, None, 100)
    cache.put("a", 3, 101)
    assert (cache.get("a"), cache.num_bytes) == (None, 0)


def test_the_bound_is_checked() -> None:
    with pytest.raises(ValueError, match="max_bytes is -1"):
        ByteCache(-1)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60), st.booleans())))
def test_it_holds_what_a_list_in_order_of_use_would_hold(steps: list[tuple[int, int, bool]]) -> None:
    cache: ByteCache[int, int] = ByteCache(100)
    expected: list[tuple[int, int]] = []
    for key, size, is_put in steps:
        if is_put:
            expected = [entry for entry in expected if entry[0] != key] + [(key, size)]
            while sum(size for _, size in expected) > 100:
                expected.pop(0)
            cache.put(key, size, size)
        else:
            found = [entry for entry in expected if entry[0] == key]
            assert cache.get(key) == (found[0][1] if found else None)
            expected = [entry for entry in expected if entry[0] != key] + found
        assert cache.num_bytes == sum(size for _, size in expected)
        assert len(cache) == len(expected)
