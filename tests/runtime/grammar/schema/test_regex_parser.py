"""What is no regular expression, or none that is regular, is refused with a reason and a remedy."""

import pytest

from ramet.runtime.grammar.schema.limits import SchemaLimits
from ramet.runtime.grammar.schema.regex_parser import UnsupportedPatternError, parse, repeat_product


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a", "unmatched \\("),
        ("a)", "unmatched \\)"),
        ("[a", "unmatched \\["),
        ("*a", "nothing to repeat"),
        ("a**", "repetition of a repetition"),
        ("a{3,2}", "out of order"),
        ("[b-a]", "out of order"),
        ("\\", "lone backslash"),
        ("\\q", "unknown escape"),
        ("\\x1", "malformed"),
        ("\\u{110000}", "malformed"),
        ("\\ud800", "lone surrogate"),
        ("\\p{Greek}", "no general category"),
        ("(a)\\1", "back-reference"),
        ("\\k<n>", "back-reference"),
        ("(?<=a)b", "lookbehind"),
        ("(?i)a", "unknown kind of group"),
        ("^*", "repeated anchor"),
        ("\0", "NUL"),
        ("a{1,100000}", "repeats 100000 times"),
        ("a{99999999999}", "repeats"),
        ("((a{1,200}){1,200})", "nested bounds"),
        ("(" * 100 + ")" * 100, "nests groups"),
        ("a" * 5_000, "5000 characters"),
    ],
)
def test_refused(pattern: str, why: str) -> None:
    with pytest.raises(UnsupportedPatternError, match=why) as raised:
        parse(pattern, SchemaLimits())
    assert raised.value.remedy


def test_products() -> None:
    assert repeat_product(parse("(a{2,3}|b{4}){5}c+", SchemaLimits())) == 20
