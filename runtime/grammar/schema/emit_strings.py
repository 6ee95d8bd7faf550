"""Strings written with patterns alone: what is forbidden becomes what is allowed."""

from collections.abc import Callable, Sequence

from ramet.runtime.grammar.schema.automaton import TooLargeError, combine
from ramet.runtime.grammar.schema.charset import CharSet, charset, complement, contains, intersection
from ramet.runtime.grammar.schema.records import Unsupported
from ramet.runtime.grammar.schema.regex_parser import ANY_TEXT, EMPTY, Alt, Chars, Regex, Seq
from ramet.runtime.grammar.schema.regex_syntax import write
from ramet.runtime.grammar.schema.shapes import String

_NUL: CharSet = ((0, 0),)


def string_patterns(string: String, report: Callable[[Unsupported], None]) -> list[Regex] | None:
    """The regexes that a string must match as a whole, all of them; None: no string can.

    A pattern whose complement is too large is reported and left out.
    """
    patterns = list(string.required)
    for regex in string.forbidden:
        try:
            allowed = combine((ANY_TEXT,), (regex,))
        except TooLargeError:
            report(
                Unsupported(
                    string.at,
                    "not",
                    "the complement of a pattern here is too large",
                    "state with a pattern what the string is",
                )
            )
            continue
        if allowed is None:
            return None
        patterns.append(allowed)
    if string.excluded:
        patterns.append(none_of(string.excluded))
    return patterns


def engine_pattern(regex: Regex) -> str:
    """``regex`` as the pattern that engines are given.

    Where a class has all control characters but not quote and backslash, llguidance 1.9 lets these through
    in their escaped form. So NUL, which no text needs, is taken out of such classes.
    """
    return write(regex, _without_nul)


def is_loose(chars: CharSet) -> bool:
    """It has NUL, and lacks the quote or the backslash."""
    return bool(chars) and chars[0][0] == 0 and not (contains(chars, 0x22) and contains(chars, 0x5C))


def _without_nul(chars: CharSet) -> CharSet:
    """As it is where nothing else would be left."""
    return intersection(chars, complement(_NUL)) if is_loose(chars) and chars != _NUL else chars


def none_of(texts: Sequence[str]) -> Regex:
    """Matches every text but ``texts``. By a trie, so its size is that of ``texts``."""
    trie: dict[str, object] = {}
    for text in texts:
        here = trie
        for character in text:
            here = here.setdefault(character, {})  # type: ignore[assignment]
        here[""] = None
    # Children are finished before their parents, without recursion: texts can be long.
    finished: dict[int, Regex] = {}
    stack = [(trie, False)]
    while stack:
        here, ready = stack.pop()
        children = {key: child for key, child in here.items() if isinstance(child, dict)}
        if not ready:
            stack.append((here, True))
            stack += [(child, False) for child in children.values()]
            continue
        finished[id(here)] = _others("" in here, {key: finished[id(child)] for key, child in children.items()})
    return finished[id(trie)]


def _others(excluded: bool, children: dict[str, Regex]) -> Regex:
    """All texts but those that go through ``children`` and end there as excluded."""
    branches: list[Regex] = [] if excluded else [EMPTY]
    strangers = complement(charset([(ord(key), ord(key)) for key in children]))
    branches.append(Seq((Chars(strangers), ANY_TEXT)))
    for key, rest in children.items():
        branches.append(Seq((Chars(((ord(key), ord(key)),)), rest)))
    return Alt(tuple(branches))
