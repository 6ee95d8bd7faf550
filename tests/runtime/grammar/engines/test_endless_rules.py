"""Grammars that no finite text matches, and such as only look like it."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.engines.endless_rules import check_ends, nested_repeat, written_size
from ramet.runtime.grammar.engines.heavy import MAX_LIGHT
from ramet.runtime.grammar.engines.router import EngineRouter
from ramet.runtime.protocol import Ebnf, InvalidRequestError, StructuralTag, UnsupportedConstraintError
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


def doubling(count: int, last: str, arrow: str = "::=", start: str = "root") -> str:
    rules = [f"r{i} {arrow} r{i + 1} r{i + 1}" for i in range(count)]
    return "\n".join([f"{start} {arrow} r0", *rules, f"r{count} {arrow} {last}"])


LONG = [
    (doubling(40, '"q"'), "gbnf"),
    (doubling(18, "[a-z]"), "gbnf"),
    (doubling(18, "."), "gbnf"),
    (doubling(40, '"q" x\nx ::= "(" x ")" | "a"'), "gbnf"),
    ('root ::= "a" | "b" r0\n' + doubling(40, '"q"').partition("\n")[2], "gbnf"),
    ('root ::= "a" | "b" (r0 | r1)?\n' + doubling(40, '"q"').partition("\n")[2], "gbnf"),
    ('root ::= ((("x"{100}){100}){100}){100}', "gbnf"),
    ('root ::= ("xy"{10000}){10000}', "gbnf"),
    ('root ::= a{10000}\na ::= b{10000}\nb ::= "x" c? "y"\nc ::= "z"', "gbnf"),
    (
        "root ::= r0\n"
        + "\n".join(f"r{i} ::= r{i + 1} r{i + 2}" for i in range(60))
        + '\nr60 ::= "q"\nr61 ::= "w"',
        "gbnf",
    ),
    (f'root ::= "{"x" * 160_000}"', "gbnf"),
    (doubling(40, '"q"', ":", "start"), "lark"),
    (doubling(40, '"a".."z"', ":", "start"), "lark"),
    ('start: "x"~1000000000', "lark"),
    ('start: (("x" ~ 10000)~10000..20000) ~ 2', "lark"),
    (doubling(40, '"q"i', ":", "start").replace("r", "R").replace("staRt", "start"), "lark"),
]
SHORT = [
    (doubling(17, '"q"'), "gbnf"),
    (doubling(40, '""'), "gbnf"),
    (doubling(13, '"q"?'), "gbnf"),
    (doubling(40, '"q" | x\nx ::= "(" x ")" | ""'), "gbnf"),
    (doubling(17, r'"\u0041"'), "gbnf"),
    ('root ::= ((("x"{0,100}){0,100}){100}){100}', "gbnf"),
    ('root ::= root root | "q"', "gbnf"),
    ('root ::= a{0,10000}\na ::= "x"{10000}', "gbnf"),
    (doubling(17, '"a".."z"', ":", "start"), "lark"),
    (doubling(40, '["q"]', ":", "start"), "lark"),
    (doubling(40, "/q*/", ":", "start"), "lark"),
    ("start: A~0..1000000000\nA: /x/", "lark"),
]


@pytest.mark.parametrize(("grammar", "syntax"), LONG)
def test_what_asks_for_texts_of_absurd_length_is_refused_by_name(grammar: str, syntax: str) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"the rule \w+ of the grammar asks for .* characters"
    ) as error:
        check_ends(grammar, syntax)
    assert "the limit is 150,000: lower its repetitions" in str(error.value)


VARYING = [
    (doubling(17, '"q"?'), "gbnf"),
    (doubling(40, "[ab]*"), "gbnf"),
    (doubling(17, '"q" | ""'), "gbnf"),
    (doubling(17, '| "q"'), "gbnf"),
    ("root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}? r{i + 1}?" for i in range(17)) + '\nr17 ::= "q"', "gbnf"),
    (doubling(17, '("q" "w")?'), "gbnf"),
    ("start: R0\n" + doubling(17, '"q"?', ":", "x").partition("\n")[2].replace("r", "R"), "lark"),
]


@pytest.mark.parametrize(("grammar", "syntax"), VARYING)
def test_what_has_too_many_parts_that_vary_is_refused_by_name(grammar: str, syntax: str) -> None:
    """llguidance would need all memory to write it out."""
    with pytest.raises(
        InvalidRequestError, match=r"the rule [rR]\d+ of the grammar has, written out, [\d,]+"
    ) as error:
        check_ends(grammar, syntax)
    assert "the limit is 10,000: have fewer" in str(error.value)


@pytest.mark.parametrize(("grammar", "syntax"), SHORT)
def test_what_has_short_texts_too_is_not(grammar: str, syntax: str) -> None:
    check_ends(grammar, syntax)


@pytest.mark.parametrize("backend", ["auto", "llguidance", "xgrammar"])
def test_no_engine_sees_a_grammar_of_long_texts(backend: str) -> None:
    router = EngineRouter(ByteTokenizer())
    with pytest.raises(InvalidRequestError, match="asks for at least"):
        router.compile(Ebnf(doubling(40, '"q"'), "gbnf", backend))
    tag = {"type": "sequence", "elements": [{"type": "grammar", "grammar": doubling(40, '"q"')}]}
    with pytest.raises(InvalidRequestError, match="asks for at least"):
        router.compile(StructuralTag(json.dumps({"type": "structural_tag", "format": tag}), backend))


@st.composite
def _grammars(draw: st.DrawFn) -> tuple[str, dict[str, list[list[tuple[str, int]]]]]:
    """A grammar in GBNF, and by rule its alternatives: of each what stands in it, and how often."""
    names = [f"r{i}" for i in range(draw(st.integers(1, 5)))]
    part = st.tuples(st.sampled_from([*names, '"x"', '"yz"', "[ab]"]), st.sampled_from([0, 1, 1, 2, 400]))
    rules = {name: draw(st.lists(st.lists(part, max_size=3), min_size=1, max_size=3)) for name in names}
    written = [
        f"{name} ::= "
        + " | ".join(" ".join(f"({w}){{{n}}}" for w, n in parts) or '""' for parts in alternatives)
        for name, alternatives in rules.items()
    ]
    return "\n".join(["root ::= r0", *written]), rules


@given(_grammars())
def test_the_shortest_text_is_that_of_the_grammar(
    case: tuple[str, dict[str, list[list[tuple[str, int]]]]],
) -> None:
    grammar, rules = case
    known = {'"x"': 1, '"yz"': 2, "[ab]": 1}
    shortest = dict.fromkeys(rules, math.inf)
    # A shortest derivation has no rule twice on one path.
    for _ in rules:
        sizes = {**known, **shortest}
        shortest = {
            name: min(sum(sizes[w] * n for w, n in parts if n) for parts in alternatives)
            for name, alternatives in rules.items()
        }
    sizes = {**known, **shortest}
    reached, stack, is_refused = {"r0"}, ["r0"], False
    while stack:
        for parts in rules[stack.pop()]:
            is_refused |= sum(sizes[w] * n for w, n in parts if n) > 150_000
            new = {w for w, _ in parts if w in rules} - reached
            reached |= new
            stack += sorted(new)
    try:
        check_ends(grammar, "gbnf")
    except InvalidRequestError:
        assert is_refused, grammar
    else:
        assert not is_refused, grammar


@pytest.mark.parametrize(
    ("grammar", "rule"),
    [
        ('root ::= ("a"+ "b"?){1,50}', "root"),
        ('root ::= "x" a\na ::= (w s?){1,50}\nw ::= [a-z]+\ns ::= " "', "a"),
        ('root ::= a{3}\na ::= "x" b\nb ::= "y" | "z" b*', "root"),
        ('root ::= ((("x"?){0,100}){0,100}){0,100}', "root"),
        ('root ::= a{0,9}\na ::= "x"{2,3}', "root"),
        ('root ::= "a"{1,50} [b]{3}', None),
        ('root ::= ("a" "b"{3}){1,50}', None),
        ("root ::= (w s?)*\nw ::= [a-z]{1,50}\ns ::= [ ]+", None),
        ('root ::= a{3} b*\na ::= "x"\nb ::= "y"', None),
        ('root ::= "(\\"a\\"+){1,50}"', None),
    ],
)
def test_repeats_that_a_count_repeats(grammar: str, rule: str | None) -> None:
    assert nested_repeat(grammar) == rule
    router = EngineRouter(ByteTokenizer())
    if rule is not None:
        assert router.needs_probe(Ebnf(grammar)) == (written_size(grammar, "gbnf") > MAX_LIGHT), (
            "llguidance takes it"
        )
        with pytest.raises(
            UnsupportedConstraintError, match=f"in the rule {rule} a count repeats .* use llguidance"
        ):
            router.compile(Ebnf(grammar, backend="xgrammar"))


@pytest.mark.parametrize(
    ("grammar", "syntax", "size"),
    [
        ('root ::= "a" [b] "c"', "gbnf", 3),
        ('root ::= "a"{3} | "b"{2,5}', "gbnf", 8),
        ("root ::= x{0,7} x*\nx ::= [a-z] [0-9]", "gbnf", 16),
        ('root ::= ("a" ("b" "c"){1,4}){2}', "gbnf", 18),
        ('root ::= "(" root ")" | x\nx ::= "a" "b"', "gbnf", 2),
        (doubling(70, '"a"'), "gbnf", 10**15),
        ("start: X~2..5\nX: /a/ Y\nY: /b/{3}", "lark", 5),
        ("", "gbnf", 0),
    ],
)
def test_the_size_written_out(grammar: str, syntax: str, size: int) -> None:
    assert written_size(grammar, syntax) == size
