"""GBNF and Lark of the user: converted, and nothing of it loosens what the runtime guarantees."""

import re

import pytest

from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.grammar.engines.lark_text import (
    HEADER,
    gbnf_without_dots,
    lark_of_ebnf,
    lark_regex,
    syntax_of,
)
from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.protocol import Ebnf, InvalidRequestError, UnsupportedConstraintError
from tests.runtime.grammar.engines.walking import TINY, tiny_takes

SPELLINGS = Spellings(TINY)
POLICY: dict[str, object] = {"lenient": False}


def lark(grammar: str, syntax: str = "auto") -> str:
    return lark_of_ebnf(Ebnf(grammar, syntax=syntax), SPELLINGS, POLICY)


@pytest.mark.parametrize(
    ("grammar", "syntax"),
    [
        ('root ::= "a"', "gbnf"),
        ('  root::="a"', "gbnf"),
        ('a-b ::= "x"\nroot ::= a-b', "gbnf"),
        ('start: "::="', "lark"),
        ('start: "a"', "lark"),
        ("", "lark"),
    ],
)
def test_the_syntax_is_seen_by_its_rules(grammar: str, syntax: str) -> None:
    assert syntax_of(Ebnf(grammar)) == syntax
    assert syntax_of(Ebnf(grammar, syntax="lark")) == "lark"


def test_gbnf_becomes_lark() -> None:
    made = lark('root ::= "a\\u00e9\\x41\\"" [^\\]\\-&] fooBar # c "\nfooBar ::= . | "(" root ")"')
    assert made.startswith(HEADER)
    assert '"aé\\x41\\x22" /[^\\x5d\\x2d\\x26]/ foo_bar' in made
    assert f"/[\\x00-{chr(0x10FFFF)}]/" in made
    assert "#" not in made
    assert made.count("%llguidance") == 1


def test_dots_are_spelled_out_where_they_are_dots() -> None:
    assert gbnf_without_dots('root ::= . "." [.] # .') == 'root ::= [\\x00-\\U0010ffff] "." [.] # .'


def test_a_schema_in_a_grammar_gets_the_runtimes_options() -> None:
    made = lark('start: %json {"type":"integer","x-guidance":{"lenient":true}} "%json {" /%json/ // %json {')
    assert '"x-guidance": {"lenient": false}' in made
    assert made.endswith('"%json {" /%json/ // %json {')
    assert '"lenient": true' not in made


def test_control_tokens_by_id_and_comments_of_python() -> None:
    assert lark("start: <[114]> <|114|> # x") == HEADER + "start: <[114]> <[114]> // x"
    assert lark('%llguidance {}\nstart: "<b>"') == HEADER + '\nstart: "<b>"'


@pytest.mark.parametrize(
    ("grammar", "error", "problem"),
    [
        ("start: <[115]>", UnsupportedConstraintError, "ends the output"),
        ("start: <nobody>", UnsupportedConstraintError, "no control token"),
        ("start: <[1,5-9]>", UnsupportedConstraintError, "set of tokens"),
        ('%llguidance {"allow_invalid_utf8": true}\nstart: "a"', UnsupportedConstraintError, "options"),
        ('start[temperature=0.1]: "a"', UnsupportedConstraintError, "temperature is not enforced"),
        ('start: x\nx[max_tokens=3]: "a"', UnsupportedConstraintError, "max_tokens is not enforced"),
        ('start: %json {"type":', InvalidRequestError, "not JSON"),
        ("start: %json [1]", InvalidRequestError, "must be a JSON object"),
        ("start: %json false", UnsupportedConstraintError, "no value (meets|can satisfy)"),
        ('root ::= "a" nobody', InvalidRequestError, "the rule nobody is used here and defined nowhere"),
        ('start ::= "a"', InvalidRequestError, "no rule is named root"),
        ('root ::= "a', InvalidRequestError, "not valid"),
        ('root ::= "\\ud800"', InvalidRequestError, "is no character"),
        ('root ::= "\\U00110000"', InvalidRequestError, "is no character"),
        ("root ::= " + "(" * 100 + '"a"' + ")" * 100, InvalidRequestError, "deeper than"),
        ('root ::= "a"\n' + 'r ::= "b"\n' * 500, UnsupportedConstraintError, "501 rules"),
        ('root ::= "' + "a" * 70_000 + '"', UnsupportedConstraintError, "in 700.. characters"),
        ('start: "a"{100000}', InvalidRequestError, "lower the bound"),
    ],
)
def test_what_cannot_be_enforced_is_refused(grammar: str, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem) as caught:
        lark(grammar)
    assert getattr(caught.value, "field", None) == "grammar"


@pytest.mark.parametrize(
    ("pattern", "terminal"),
    [
        ("a/b", r"/a\/b/"),
        (r"a\/b", r"/a\/b/"),
        ("a\nb", r"/a\nb/"),
        ("[/]", r"/[\/]/"),
        (r"\\\\/", r"/\\\\\//"),
        ("a", "/a/"),
    ],
)
def test_a_pattern_is_one_terminal(pattern: str, terminal: str) -> None:
    assert lark_regex(pattern) == terminal
    assert re.fullmatch(r"/(?:[^/\\\n]|\\.)+/", terminal)


def test_the_empty_pattern() -> None:
    assert lark_regex("") == '""'


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        ('root ::= ("x"?){2,3} "y"', ["y", "xy", "xxxy"], ["xxxxy", "x"]),
        ('root ::= (("x"+){2} "y"?)*', ["", "xx", "xxxyxx"], ["x", "xyxx"]),
        ('root ::= ((("x"?){0,2}){0,2}){0,2} "y"', ["y", "xxxxxxxxy"], ["xxxxxxxxxy"]),
        ('root ::= ( [ab]* )+ "y" # ("x"?)*', ["y", "abby"], ["x"]),
        ('root ::= (a?){2} "(" \na ::= "x" | "?)*" ', ["(", "x?)*(", "xx("], ["xxx("]),
        ('root ::= ("x" | "z"?){2}', ["", "xz", "z", "zz"], ["xxx"]),
    ],
)
def test_repeated_groups_of_what_is_repeated(
    tiny_router: EngineRouter, grammar: str, right: list[str], wrong: list[str]
) -> None:
    accepts = tiny_takes(tiny_router.compile(Ebnf(grammar, "gbnf", "llguidance")))
    assert [text for text in right if not accepts(text)] == []
    assert [text for text in wrong if accepts(text)] == []
