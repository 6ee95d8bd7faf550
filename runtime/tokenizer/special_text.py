"""Finding the texts of special tokens in other text."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping


class SpecialTextScanner:
    """Finds where a text spells special tokens: leftmost first, and the longest one at each place.

    ``rivals`` are the texts of added tokens that are not special. They are not reported, but where one of them
    begins earlier, or is longer at the same place, it wins, as it does in the `tokenizers` library. Time is
    about linear in the text, whatever the number of special tokens (Gemma has 6,249).
    """

    def __init__(self, special: Mapping[str, int], rivals: Iterable[str] = ()) -> None:
        first_characters = {text[0] for text in special}
        self._token_id: dict[str, int | None] = {text: None for text in rivals if text[0] in first_characters}
        self._token_id.update(special)
        self._lengths: dict[str, list[int]] = {}
        for text in self._token_id:
            self._lengths.setdefault(text[0], []).append(len(text))
        for first, lengths in self._lengths.items():
            self._lengths[first] = sorted(set(lengths), reverse=True)
        self._first = re.compile(
            "[" + "".join(map(re.escape, sorted(self._lengths))) + "]" if self._lengths else r"(?!)"
        )
        self._forward = sorted(special)
        self._backward = sorted(text[::-1] for text in special)
        self._longest = max(map(len, special), default=0)

    def spans(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, token id) of each special token's text, in order, without overlaps."""
        at = 0
        while match := self._first.search(text, at):
            start = match.start()
            at = start + 1
            for length in self._lengths[text[start]]:
                candidate = text[start : start + length]
                if candidate in self._token_id:
                    at = start + len(candidate)
                    token_id = self._token_id[candidate]
                    if token_id is not None:
                        yield start, at, token_id
                    break

    def ending_part(self, text: str) -> int:
        """How many characters at the end of ``text`` could be the beginning of a special token's text."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if _is_proper_prefix(text[-length:], self._forward):
                return length
        return 0

    def beginning_part(self, text: str) -> int:
        """How many characters at the beginning of ``text`` could be the end of a special token's text."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if _is_proper_prefix(text[:length][::-1], self._backward):
                return length
        return 0


def _is_proper_prefix(part: str, ordered: list[str]) -> bool:
    """Whether one of ``ordered`` (sorted) is longer than ``part`` and begins with it."""
    at = bisect_left(ordered, part)
    if at < len(ordered) and ordered[at] == part:
        at += 1
    return at < len(ordered) and ordered[at].startswith(part)
