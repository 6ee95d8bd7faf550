"""Numbers against brute force over a grid."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.schema import numbers
from ramet.runtime.grammar.schema.shapes import Number

GRID = [Fraction(step, 4) for step in range(-24, 25)]
BOUND = st.none() | st.sampled_from(GRID)
NUMBERS = st.builds(
    Number,
    integer=st.booleans(),
    low=BOUND,
    low_open=st.booleans(),
    high=BOUND,
    high_open=st.booleans(),
    multiple=st.none()
    | st.sampled_from([Fraction(1, 2), Fraction(3, 4), Fraction(1), Fraction(2), Fraction(3)]),
    not_multiples=st.sampled_from([(), (Fraction(1),), (Fraction(2),)]),
)


def grid(options: object) -> list[Fraction]:
    assert isinstance(options, list | tuple)
    return [value for value in GRID if any(numbers.accepts(option, value) for option in options)]


@given(NUMBERS, NUMBERS)
def test_operations(left: Number, right: Number) -> None:
    both = [value for value in GRID if numbers.accepts(left, value) and numbers.accepts(right, value)]
    assert grid(numbers.simplify(left)) == grid([left])
    assert grid(numbers.intersect(left, right)) == both
    assert grid(numbers.negate(left)) == [value for value in GRID if value not in grid([left])]


def test_few_integers_are_listed() -> None:
    thirds = Number(integer=True, low=Fraction(-7, 2), high=Fraction(7), multiple=Fraction(3))
    assert numbers.listed(thirds, 10) == [-3, 0, 3, 6]
    assert numbers.listed(Number(integer=True, low=Fraction(0), high=Fraction(99)), 10) is None
    assert numbers.listed(Number(low=Fraction(0), high=Fraction(1)), 10) is None


def test_digits() -> None:
    assert [numbers.decimal_digits(Fraction(text)) for text in ("12.5", "0.00125", "3000", "1")] == [
        125,
        125,
        3,
        1,
    ]
