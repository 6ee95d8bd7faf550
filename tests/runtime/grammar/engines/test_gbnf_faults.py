"""A GBNF grammar that cannot be read is told of by line and column, with what to do."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.engines.gbnf_faults import gbnf_fault
from ramet.runtime.grammar.engines.router import EngineRouter
from ramet.runtime.grammar.schema.limits import place
from ramet.runtime.protocol import Ebnf, InvalidRequestError

FAULTS = [
    ('root ::= "a', "1, column 10", "no closing quote"),
    ('root = "a"', "1, column 1", "no ::="),
    ('root ::= ("a" | "b"', "1, column 10", "not closed"),
    ('root ::= ("a"\nb ::= "b"', "1, column 10", "not closed"),
    ("root ::= x", "1, column 10", "the rule x is used here and defined nowhere"),
    ('root ::= "a" ]', "1, column 14", "no meaning"),
    ('root ::= "a" )', "1, column 14", "no ( for this )"),
    ("root ::= [a", "1, column 10", "not closed"),
    ('x ::= "a"', "1, column 1", "no rule is named root"),
    ('"a"', "1, column 1", "begin it with root ::="),
    (r'root ::= "\q"', "1, column 11", r"\q is no escape"),
    ('root ::= | * "a"', "1, column 12", "nothing to repeat"),
    ('root ::= "a" ::= "b"', "1, column 14", "no rule's name"),
    ('root ::= "a" {x}', "1, column 14", "no count"),
    ('root ::= "ok"\n\nfoo ::= "b" (("c")', "3, column 13", "not closed"),
    ("root ::= @", "1, column 10", "no meaning"),
    ("root ::= /a/", "1, column 10", "no regular expressions"),
    ('root ::= "a" # c\n  | "b"', "2, column 3", "ends with its line"),
    ('root ::= "a"\n"b"', "2, column 1", "ends with its line"),
    ('root ::= "a"\nfoo', "2, column 1", "no ::= stands behind foo"),
    ('root ::= ("a")**', "1, column 16", "behind another"),
    ("root ::= 'a'", "1, column 10", "double quotes"),
    ('root ::= "a"\n  "b"{5,2}', "2, column 6", "exchange them"),
]


@pytest.mark.parametrize(("grammar", "where", "problem"), FAULTS)
def test_faults(tiny_router: EngineRouter, grammar: str, where: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(problem)) as caught:
        tiny_router.compile(Ebnf(grammar, "gbnf"))
    assert f"line {where}" in str(caught.value)
    assert ";" in str(caught.value) or "exchange" in str(caught.value)
    assert caught.value.field == "grammar"


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= a-b [^x]* "\\x41\\n"{2,} | ( .? )+\na-b ::= "b" | # or\n  "c"',
        'root ::= ("a"\n | "b"\n)\n',
        'a ::= "x"\nroot ::= a{3} a{1,2} [a-z]',
    ],
)
def test_no_fault(tiny_router: EngineRouter, grammar: str) -> None:
    assert gbnf_fault(grammar) is None


@given(st.text(alphabet="root:=\n\"'[](){}|*+?.#\\ ax-1,", max_size=60))
def test_any_text_has_an_answer(text: str) -> None:
    for grammar in (text, f"root ::= {text}"):
        fault = gbnf_fault(grammar)
        if fault is not None:
            assert 0 <= fault.offset <= len(grammar)
            assert fault.problem
            assert fault.remedy


def test_places_count_from_one() -> None:
    assert [place("ab\n\nc", offset) for offset in (0, 1, 3, 4)] == [
        "line 1, column 1",
        "line 1, column 2",
        "line 2, column 1",
        "line 3, column 1",
    ]
