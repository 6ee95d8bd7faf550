"""Text that nobody else can have written."""

import secrets

_FIRST, _COUNT = 0xE000, 0x1900
"""The private use area of Unicode's basic plane: no case, no decomposition, no white space."""


def private_text() -> str:
    """Twelve random private-use characters (150 bits), drawn anew at each call.

    Neither normalisation nor a template's filters (trim, upper, tojson) change them.
    """
    return "".join(chr(_FIRST + secrets.randbelow(_COUNT)) for _ in range(12))


def numbered_character(number: int) -> str:
    """One private-use character for each number below 65,534, outside the characters of ``private_text``."""
    return chr(0xF0000 + number)


def number_of(character: str) -> int:
    return ord(character) - 0xF0000
