"""Numbers: intersection, complement and membership, exactly in fractions."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor, gcd, lcm

from ramet.runtime.grammar.schema.shapes import NUMBER, Number, Option

_MAX_GAPS = 16


def simplify(number: Number) -> tuple[Number, ...]:
    """``number`` with its bounds as tight as they are, or nothing where no number is left."""
    low, high = number.low, number.high
    integer = number.integer or (number.multiple is not None and number.multiple.denominator == 1)
    if any(_is_multiple(number, factor) for factor in number.not_multiples):
        return ()
    if integer:
        if low is not None:
            low = Fraction(floor(low) + 1 if number.low_open else ceil(low))
        if high is not None:
            high = Fraction(ceil(high) - 1 if number.high_open else floor(high))
        number = replace(number, integer=True, low=low, low_open=False, high=high, high_open=False)
        # A multiple of a fraction that is an integer is a multiple of its numerator.
        if number.multiple is not None:
            factor = Fraction(number.multiple.numerator)
            number = replace(number, multiple=None if factor == 1 else factor)
    if low is not None and high is not None:
        if low > high or (low == high and (number.low_open or number.high_open)):
            return ()
        if number.multiple is not None and not _has_multiple(number, low, high):
            return ()
    return (number,)


def intersect(left: Number, right: Number) -> tuple[Number, ...]:
    low, low_open = _tighter(left.low, left.low_open, right.low, right.low_open, largest=True)
    high, high_open = _tighter(left.high, left.high_open, right.high, right.high_open, largest=False)
    multiple = left.multiple or right.multiple
    if left.multiple is not None and right.multiple is not None:
        multiple = _common_multiple(left.multiple, right.multiple)
    return simplify(
        Number(
            integer=left.integer or right.integer,
            low=low,
            low_open=low_open,
            high=high,
            high_open=high_open,
            multiple=multiple,
            not_multiples=tuple(sorted({*left.not_multiples, *right.not_multiples})),
            at=left.at if left != NUMBER else right.at,
        )
    )


def negate(number: Number) -> list[Option]:
    """The other numbers."""
    result: list[Option] = []
    few = listed(number, _MAX_GAPS)
    if few is not None:
        # Between few integers there are open intervals, which can be written; "no integer" cannot.
        bounds = [None, *(Fraction(value) for value in few), None]
        gaps = [
            Number(low=low, low_open=low is not None, high=high, high_open=high is not None, at=number.at)
            for low, high in pairwise(bounds)
        ]
        return list(gaps)
    if number.low is not None:
        result.append(Number(high=number.low, high_open=not number.low_open, at=number.at))
    if number.high is not None:
        result.append(Number(low=number.high, low_open=not number.high_open, at=number.at))
    if number.integer:
        result.append(Number(not_multiples=(Fraction(1),), at=number.at))
    if number.multiple is not None:
        result.append(Number(not_multiples=(number.multiple,), at=number.at))
    result += [Number(multiple=factor, at=number.at) for factor in number.not_multiples]
    return result


def listed(number: Number, most: int) -> list[int] | None:
    """All integers of ``number`` where bounds leave at most ``most`` steps; None: more, or no integers."""
    if not number.integer or number.low is None or number.high is None:
        return None
    step = number.multiple.numerator if number.multiple is not None else 1
    first = ceil(number.low / step) * step
    if (number.high - first) / step > most:
        return None
    return [value for value in range(first, floor(number.high) + 1, step) if accepts(number, Fraction(value))]


def decimal_digits(value: Fraction) -> int:
    """The digits of a positive ``value`` written in decimals, as one integer: 125 for 12.5 and for 0.00125."""
    scaled = value
    while scaled.denominator != 1:
        scaled *= 10
    while scaled.numerator % 10 == 0:
        scaled /= 10
    return scaled.numerator


def binary_digits(value: Fraction) -> int:
    """As ``decimal_digits``, as an engine finds them that computes with binary floating point: 7 for 0.7, and
    70000000000000007 for 0.07, which times ten is 0.7000000000000001."""
    scaled = float(value)
    while scaled != int(scaled):
        scaled *= 10
    return int(scaled)


def accepts(number: Number, value: Fraction) -> bool:
    if number.low is not None and (value < number.low or (value == number.low and number.low_open)):
        return False
    if number.high is not None and (value > number.high or (value == number.high and number.high_open)):
        return False
    if number.integer and value.denominator != 1:
        return False
    if number.multiple is not None and (value / number.multiple).denominator != 1:
        return False
    return all((value / factor).denominator != 1 for factor in number.not_multiples)


def _is_multiple(number: Number, factor: Fraction) -> bool:
    """Every number that it accepts is a multiple of ``factor``."""
    step = number.multiple or (Fraction(1) if number.integer else None)
    if number.multiple is not None and number.integer:
        step = _common_multiple(number.multiple, Fraction(1))
    return step is not None and (step / factor).denominator == 1


def _has_multiple(number: Number, low: Fraction, high: Fraction) -> bool:
    assert number.multiple is not None
    first = ceil(low / number.multiple)
    if number.low_open and first * number.multiple == low:
        first += 1
    value = first * number.multiple
    return value < high or (value == high and not number.high_open)


def _tighter(
    left: Fraction | None, left_open: bool, right: Fraction | None, right_open: bool, *, largest: bool
) -> tuple[Fraction | None, bool]:
    if left is None or right is None:
        return (right, right_open) if left is None else (left, left_open)
    if left == right:
        return left, left_open or right_open
    return (left, left_open) if (left > right) == largest else (right, right_open)


def _common_multiple(left: Fraction, right: Fraction) -> Fraction:
    """The least common multiple of two positive fractions."""
    return Fraction(lcm(left.numerator, right.numerator), gcd(left.denominator, right.denominator))
