"""From a token's text in the vocabulary to the bytes that it spells."""

import re
from typing import Literal

import msgspec

WORD_BOUNDARY = "\u2581"
"""SentencePiece writes a space as this character."""

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: a printable character for each of the 256 bytes.

    Printable Latin-1 characters stand for themselves; the others, in order, for U+0100 and on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = byte_alphabet()


class Spelling(msgspec.Struct, frozen=True):
    """How the vocabulary writes bytes.

    ``byte_level``: GPT-2's alphabet, one character a byte. ``sentencepiece``: U+2581 is a space, other
    characters are themselves, and ``<0xHH>`` is one byte where there is ``byte_fallback``.
    """

    alphabet: Literal["byte_level", "sentencepiece"]
    byte_fallback: bool = False
    leading_space: bool = False
    """Encoding puts a space in front of a text, so decoding a text from its start removes one."""

    def token_bytes(self, token: str) -> bytes:
        """The bytes that a token of the vocabulary spells (not an added token: that is its own text)."""
        if self.alphabet == "byte_level":
            try:
                return bytes([_BYTE_OF_CHARACTER[character] for character in token])
            except KeyError:  # as in GPT-2's decoder, a token that leaves the alphabet is its own text
                return token.encode("utf-8")
        if self.byte_fallback and len(token) == 6 and (match := _BYTE_PIECE.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.replace(WORD_BOUNDARY, " ").encode("utf-8")
