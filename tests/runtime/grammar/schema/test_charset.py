"""Sets of characters against Python's sets."""

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.schema import charset as cs

RANGES = st.lists(
    st.tuples(st.integers(0xD7F0, 0xE010), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair)))
)


def members(chars: cs.CharSet) -> set[int]:
    return {point for low, high in chars for point in range(low, high + 1)}


@given(RANGES, RANGES)
def test_operations(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    a, b = cs.charset(left), cs.charset(right)
    plain = {point for low, high in left for point in range(low, high + 1) if not 0xD800 <= point <= 0xDFFF}
    assert members(a) == plain
    assert members(cs.union(a, b)) == members(a) | members(b)
    assert members(cs.intersection(a, b)) == members(a) & members(b)
    assert cs.complement(cs.complement(a)) == a
    assert all(cs.contains(a, point) == (point in plain) for point in range(0xD7F0, 0xE020))


def test_categories() -> None:
    letters = cs.category("L")
    assert letters is not None
    assert cs.contains(letters, ord("é"))
    assert not cs.contains(letters, ord("1"))
    assert cs.category("Letter") == letters
    assert cs.category("Greek") is None
    assert cs.category("") is None
