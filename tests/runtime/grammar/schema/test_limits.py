"""Limits hold before anything is parsed, without recursion."""

import pytest

from ramet.runtime.grammar.schema import SchemaLimits, check_ebnf
from ramet.runtime.grammar.schema.limits import check_json_text
from ramet.runtime.protocol import InvalidRequestError


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("(" * 30_000 + ")" * 30_000, "deeper than 64"),
        ('root ::= "a"{1,100000}', "repeats 100000 times"),
        ("start: A~20000", None),
        ('root ::= "\0"', "NUL"),
        ("x" * 600_000, "600000 bytes"),
    ],
)
def test_grammars(grammar: str, message: str | None) -> None:
    if message is None:
        check_ebnf(grammar)
        return
    with pytest.raises(InvalidRequestError, match=message):
        check_ebnf(grammar)


def test_brackets_in_strings_and_classes_do_not_nest() -> None:
    check_ebnf('root ::= "' + "(" * 200 + '" [' + "(" * 200 + "] \\( ( a )")
    check_json_text('{"pattern": "' + "[" * 200 + '\\"{"}')


def test_size_is_counted_in_bytes() -> None:
    limits = SchemaLimits(max_bytes=4)
    check_json_text('"é"', limits)
    with pytest.raises(InvalidRequestError, match="6 bytes"):
        check_json_text('"éé"', limits)


@pytest.mark.parametrize(
    ("text", "is_deep"),
    [
        ("[" * 65, True),
        ("[" * 64 + "]" * 64 + "[" * 64, False),
        ('"\\\\"' + "[" * 65, True),
        ('"\\"' + "[" * 65, False),
        ('"' + "[" * 65 + "\\", False),
        ('"' + "[" * 65 + "\n", False),
        ('{"a' + "\\a" * 100_000 + "[" * 65, False),
    ],
)
def test_nesting_is_counted_outside_of_strings(text: str, is_deep: bool) -> None:
    if not is_deep:
        check_json_text(text)
        return
    with pytest.raises(InvalidRequestError, match="deeper than 64"):
        check_json_text(text)
