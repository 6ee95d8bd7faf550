"""Strings: intersection, complement and membership."""

from dataclasses import replace

from ramet.runtime.grammar.schema.automaton import TooLargeError, is_empty, matches
from ramet.runtime.grammar.schema.charset import EVERYTHING
from ramet.runtime.grammar.schema.regex_parser import ANY_TEXT, Chars, Regex, Repeat
from ramet.runtime.grammar.schema.regex_syntax import literal
from ramet.runtime.grammar.schema.shapes import STRING, Option, String

_LONGEST_CHECKED = 300
"""A length bound above this is left out of the search for a string that meets all conditions."""


def simplify(string: String) -> tuple[String, ...]:
    """Nothing where provably no string is left."""
    if string.high is not None and string.low > string.high:
        return ()
    if ANY_TEXT in string.forbidden:
        return ()
    required = _distinct(tuple(regex for regex in string.required if regex != ANY_TEXT))
    forbidden = _distinct(string.forbidden)
    string = replace(string, required=required, forbidden=forbidden)
    if forbidden and set(required) & set(forbidden):
        return ()
    parts = len(required) + len(forbidden) + bool(string.low or string.high is not None)
    if required and parts > 1 and _is_impossible(string):
        return ()
    return (string,)


def intersect(left: String, right: String) -> tuple[String, ...]:
    highs = [high for high in (left.high, right.high) if high is not None]
    return simplify(
        String(
            low=max(left.low, right.low),
            high=min(highs, default=None),
            required=left.required + right.required,
            forbidden=left.forbidden + right.forbidden,
            excluded=tuple(sorted({*left.excluded, *right.excluded})),
            at=left.at if left != STRING else right.at,
        )
    )


def negate(string: String) -> list[Option]:
    """The other strings. ``excluded`` ones are not in it: they are literals, which the caller adds."""
    result: list[Option] = []
    if string.low > 0:
        result.append(String(high=string.low - 1, at=string.at))
    if string.high is not None:
        result.append(String(low=string.high + 1, at=string.at))
    result += [String(forbidden=(regex,), at=string.at) for regex in string.required]
    result += [String(required=(regex,), at=string.at) for regex in string.forbidden]
    return result


def accepts(string: String, text: str) -> bool:
    """Raises TooLargeError where a pattern is too large to tell."""
    if len(text) < string.low or (string.high is not None and len(text) > string.high):
        return False
    if text in string.excluded:
        return False
    return all(matches(regex, text) for regex in string.required) and not any(
        matches(regex, text) for regex in string.forbidden
    )


def of_length(low: int, high: int | None) -> Regex:
    return Repeat(Chars(EVERYTHING), low, high)


def conditions(string: String) -> tuple[tuple[Regex, ...], tuple[Regex, ...]]:
    """All of it as regexes: (required, forbidden)."""
    required = string.required
    if string.low or string.high is not None:
        required += (of_length(string.low, string.high),)
    return required, string.forbidden + tuple(literal(text) for text in string.excluded)


def _distinct(regexes: tuple[Regex, ...]) -> tuple[Regex, ...]:
    """Each once. To hash a regex is to read all of it, so one alone is not."""
    return regexes if len(regexes) < 2 else tuple(dict.fromkeys(regexes))


def _is_impossible(string: String) -> bool:
    long = max(string.low, string.high or 0) > _LONGEST_CHECKED
    required, forbidden = conditions(replace(string, low=0, high=None) if long else string)
    try:
        return is_empty(required, forbidden, max_states=1_500)
    except TooLargeError:
        return False
