"""Grammars that no finite text matches, and such as only look like it."""

import pytest

from ramet.runtime.grammar.engines.endless_rules import check_ends
from ramet.runtime.grammar.engines.router import EngineRouter
from ramet.runtime.protocol import Ebnf, InvalidRequestError
from ramet.runtime.tokenizer.byte_tokenizer import ByteTokenizer

ENDLESS_GBNF = [
    ("root ::= root", "root"),
    ('root ::= root "a" | root root', "root"),
    ('root ::= "a" root', "root"),
    ("root ::= (root)", "root"),
    ("root ::= root+", "root"),
    ("root ::= root{1,3}", "root"),
    ("root ::= a\na ::= b\nb ::= a", "root"),
    ('root ::= e root\ne ::= ""', "root"),
    ('root ::= e a\ne ::= "x"?\na ::= e root', "root"),
    ('root ::= "x" | a\na ::= "y" b | "z" a\nb ::= a (a | b)', "a"),
    ('root ::= ("x" a)*\na ::= "y" a', "a"),
    ('root ::= # root ::= "a"\n  root', "root"),
]
ENDLESS_LARK = [
    ("start: start", "start"),
    ("start: a\na: b | a b\nb: a", "start"),
    ('start: e start\ne: ""', "start"),
    ('start: "a" start\n     | start "b"', "start"),
    ("start: A\nA: B\nB: A", "start"),
    ('start[temperature=0.0]: "x" | deep\n?deep.2: "(" deep ")" -> name', "deep"),
    ("start: start ~ 2", "start"),
    ('start: %json {"type": "null"} start', "start"),
]
FINITE_GBNF = [
    'root ::= root "a" | "b"',
    "root ::= root?",
    "root ::= (root)*",
    "root ::= root{0,2}",
    'root ::= root* root? | root root "a" | ""',
    'root ::= "root ::= root" | [root] root',
    "root ::= missing",
    'other ::= other\nroot ::= "a"',
    "root ::= a\na ::= b\nb ::= [^a]",
    "root ::=",
    'root ::= "a" ::= root',
]
FINITE_LARK = [
    'start: start "a" | "b"',
    "start: start*",
    "start: start ~ 0..2",
    'start: [start] "b"',
    "start: /start|a/ NAME\n%import common.NAME",
    'start: %json {"$ref": "#/$defs/start", "$defs": {"start": {"type": "null"}}}',
    "start: <|end|> | start",
    "start: _list{start, x}\n_list{a, b}: start a b",
    "start: a::set_bit(1)\na::_: start",
    'start: a\na: "x" | /y/ a // start: start',
]


@pytest.mark.parametrize(
    ("grammar", "syntax", "rule"),
    [(text, "gbnf", rule) for text, rule in ENDLESS_GBNF]
    + [(text, "lark", rule) for text, rule in ENDLESS_LARK],
)
def test_what_never_ends_is_refused_by_name(grammar: str, syntax: str, rule: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"the rule {rule} of the grammar matches no finite text"):
        check_ends(grammar, syntax)


@pytest.mark.parametrize(
    ("grammar", "syntax"), [(text, "gbnf") for text in FINITE_GBNF] + [(text, "lark") for text in FINITE_LARK]
)
def test_what_can_end_is_not(grammar: str, syntax: str) -> None:
    check_ends(grammar, syntax)


@pytest.mark.parametrize("backend", ["auto", "llguidance", "xgrammar"])
@pytest.mark.parametrize("grammar", [text for text, _ in ENDLESS_GBNF])
def test_no_engine_sees_it(grammar: str, backend: str) -> None:
    router = EngineRouter(ByteTokenizer())
    with pytest.raises(InvalidRequestError, match="no finite text"):
        router.compile(Ebnf(grammar, "gbnf", backend))
    if backend == "auto":
        with pytest.raises(InvalidRequestError, match="no finite text"):
            router.needs_probe(Ebnf(grammar, "gbnf"))


def test_large_grammars_take_no_longer_than_their_length() -> None:
    count = 4_000
    chain = "\n".join(["start: r0", *(f"r{i}: r{i + 1}" for i in range(count))])
    with pytest.raises(InvalidRequestError, match="the rule start"):
        check_ends(f"{chain}\nr{count}: r0", "lark")
    check_ends(f'{chain}\nr{count}: "a"', "lark")
