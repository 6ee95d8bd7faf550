"""Sets of characters as sorted ranges of code points, and the classes of ECMA-262's regular expressions.

Surrogates are no characters: no JSON string that a model writes can hold one.
"""

import sys
import unicodedata
from bisect import bisect_right
from functools import lru_cache

CharSet = tuple[tuple[int, int], ...]
"""Disjoint ranges, both ends included, ascending and not adjacent."""

EVERYTHING: CharSet = ((0, 0xD7FF), (0xE000, sys.maxunicode))
DIGITS: CharSet = ((0x30, 0x39),)
WORD: CharSet = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: CharSet = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
LINE_ENDS: CharSet = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))


def charset(ranges: list[tuple[int, int]]) -> CharSet:
    """The set of the characters in ``ranges``, in any order and overlapping or not."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(_without_surrogates(ranges)):
        if merged and low <= merged[-1][1] + 1 and not (merged[-1][1] == 0xD7FF and low == 0xE000):
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(chars: CharSet) -> CharSet:
    result = []
    for low, high in EVERYTHING:
        start = low
        for first, last in chars:
            if last < start or first > high:
                continue
            if first > start:
                result.append((start, first - 1))
            start = last + 1
        if start <= high:
            result.append((start, high))
    return tuple(result)


def union(*sets: CharSet) -> CharSet:
    return charset([pair for chars in sets for pair in chars])


def intersection(left: CharSet, right: CharSet) -> CharSet:
    return complement(union(complement(left), complement(right)))


def contains(chars: CharSet, code_point: int) -> bool:
    index = bisect_right(chars, (code_point, sys.maxunicode + 1)) - 1
    return index >= 0 and chars[index][0] <= code_point <= chars[index][1]


@lru_cache(maxsize=64)
def category(name: str) -> CharSet | None:
    """The characters of a Unicode general category such as ``L`` or ``Lu``; None: there is no such category."""
    short = _LONG_NAMES.get(name, name)
    if not short or short[0] not in "LMNPSZC" or len(short) > 2:
        return None
    ranges: list[tuple[int, int]] = []
    for code_point in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code_point)).startswith(short):
            if ranges and ranges[-1][1] == code_point - 1:
                ranges[-1] = (ranges[-1][0], code_point)
            else:
                ranges.append((code_point, code_point))
    return charset(ranges) or None


_LONG_NAMES = {
    "Letter": "L",
    "Lowercase_Letter": "Ll",
    "Uppercase_Letter": "Lu",
    "Mark": "M",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Punctuation": "P",
    "Symbol": "S",
    "Separator": "Z",
    "Other": "C",
}


def _without_surrogates(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    result = []
    for low, high in ranges:
        if low < 0xD800:
            result.append((low, min(high, 0xD7FF)))
        if high > 0xDFFF:
            result.append((max(low, 0xE000), high))
    return result
