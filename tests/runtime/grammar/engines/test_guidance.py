"""llguidance held to the runtime's guarantees, on the real tokenizers."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.backend import ForcedText, GrammarMatcher
from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.protocol import (
    Choice,
    Ebnf,
    GrammarSpec,
    InvalidRequestError,
    JsonSchema,
    Regex,
    RequestFailedError,
    StructuralTag,
    UnsupportedConstraintError,
)
from ramet.runtime.tokenizer import FastTokenizer
from tests.runtime.grammar.engines.walking import TINY, allowed, spelled, takes, tiny_takes

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def schema(document: object, max_whitespace: int = 8) -> JsonSchema:
    return JsonSchema(json.dumps(document), "llguidance", max_whitespace)


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ('{"name": "Zoë", "age": 7}', True),
        ('{"name":"x","age":120}', True),
        ('{\n    "name": "a \\" é \\n",\n    "age": 0\n}', True),
        ('{"age": 7, "name": "x"}', False),
        ('{"name": "x", "age": 121}', False),
        ('{"name": "x", "age": 1.5}', False),
        ('{"name": "x"}', False),
        ('{"name": "x", "age": 7, "more": 1}', False),
        ('{"name": "a\nb", "age": 7}', False),
        ('{"name": "\\ud800", "age": 7}', False),
        ('{"name":         "x","age":1}', False),
        ('{"name": "x", "age": 7} ', False),
    ],
)
@pytest.mark.parametrize("tokenizer", ["smollm2", "gemma"])
def test_a_schema_on_real_tokenizers(
    request: pytest.FixtureRequest, tokenizer: str, text: str, is_valid: bool
) -> None:
    vocabulary: FastTokenizer = request.getfixturevalue(tokenizer)
    compiled = request.getfixturevalue(f"{tokenizer}_router").compile(schema(PERSON))
    assert takes(compiled, vocabulary.encode(text, at_start=False), vocabulary) == is_valid


def test_no_control_token_inside_of_a_string(router: EngineRouter, smollm2: FastTokenizer) -> None:
    matcher = router.compile(schema({"type": "string"})).matcher()
    for token_id in smollm2.encode('"some text'):
        assert not allowed(matcher, smollm2) & set(smollm2.special_tokens.values())
        assert matcher.accept(token_id)
    assert not allowed(matcher, smollm2) & set(smollm2.special_tokens.values())
    assert not any(matcher.fork().accept(token_id) for token_id in smollm2.special_tokens.values())


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_whitespace_is_bounded_everywhere(tiny_router: EngineRouter, bound: int) -> None:
    ok = tiny_takes(tiny_router.compile(schema({"type": "array"}, bound)))
    for spaces in ("", " ", " \n", "\t \n", "    "):
        assert ok(f"[{spaces}1,{spaces}true{spaces}]") == (len(spaces) <= bound)


def test_the_callers_options_for_llguidance_have_no_say(tiny_router: EngineRouter) -> None:
    loose = {"lenient": True, "whitespace_pattern": " *", "coerce_one_of": True, "item_separator": ";"}
    document = {"type": "array", "items": {"type": "integer"}, "x-guidance": loose}
    ok = tiny_takes(tiny_router.compile(schema(document, 1)))
    assert ok("[1, 2]")
    assert not ok("[1,  2]")
    assert not ok("[1;2]")


@pytest.mark.parametrize("name", ["a", "\n", '"', "\\", "é"])
def test_no_escape_makes_another_name_of_a_propertys(tiny_router: EngineRouter, name: str) -> None:
    document = {
        "type": "object",
        "properties": {name: {"type": "integer"}},
        "additionalProperties": {"type": "null"},
    }
    ok = tiny_takes(tiny_router.compile(schema(document)))
    assert ok(json.dumps({name: 1}, ensure_ascii=False))
    for spelling in (json.dumps(name, ensure_ascii=False), f'"\\u{ord(name):04x}"', f'"\\u{ord(name):04X}"'):
        assert not ok(f"{{{spelling}: null}}")
        assert not ok(f"{{{json.dumps(name, ensure_ascii=False)}: 1, {spelling}: null}}")
    assert ok('{"other \\n": null}')


def test_characters_may_be_escaped_by_number_where_that_hides_nothing(tiny_router: EngineRouter) -> None:
    closed = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    ok = tiny_takes(tiny_router.compile(schema(closed)))
    assert ok('{"a": "\\u00e9\\u0007"}')
    assert not ok('{"\\u0061": "x"}')
    ok = tiny_takes(tiny_router.compile(schema({"type": "string", "maxLength": 2})))
    assert ok('"\\u00e9\\u0041"')
    assert not ok('"\\u00e9\\u0041b"')


@pytest.mark.parametrize("document", [True, {}])
def test_any_json(tiny_router: EngineRouter, document: object) -> None:
    ok = tiny_takes(tiny_router.compile(schema(document)))
    assert all(ok(text) for text in ("1", "true", '"a"', "[]", '{"a": [1, {"b": null}]}', "-1.5e3"))
    assert not any(ok(text) for text in ("", "a", "[", "01", "{a: 1}"))


def test_a_pattern_of_a_schema_searches_and_a_regex_matches_the_whole(tiny_router: EngineRouter) -> None:
    ok = tiny_takes(tiny_router.compile(schema({"type": "string", "pattern": "b+"})))
    assert ok('"abba"')
    assert not ok('"aaa"')
    ok = tiny_takes(tiny_router.compile(Regex("b+", "llguidance")))
    assert ok("bb")
    assert not ok("abba")


REGEXES = [r"[ab]+c?", r"(a|bc){2,3}", r"\d{1,2}/x", r"a*?b", r"[^a]b", r".\.", "(?i)ab", "x|", r"\w\s"]


@given(pattern=st.sampled_from(REGEXES), text=st.text("abcAB1/x.\n ", max_size=5))
def test_a_regex_takes_what_python_matches(tiny_router: EngineRouter, pattern: str, text: str) -> None:
    ok = tiny_takes(tiny_router.compile(Regex(pattern, "llguidance")))
    assert ok(text) == bool(re.fullmatch(pattern, text))


def test_any_tokenisation_is_allowed(router: EngineRouter, smollm2: FastTokenizer) -> None:
    compiled = router.compile(schema({"const": "naïve café"}))
    text = '"naïve café"'
    canonical = smollm2.encode(text)
    assert takes(compiled, canonical, smollm2)
    single = [token_id for character in '"na' for token_id in smollm2.encode(character)]
    assert takes(compiled, [*single, *smollm2.encode(text[3:])], smollm2)
    bytewise = [
        next(i for i in range(smollm2.vocab_size) if smollm2.token_bytes(i) == bytes([byte]))
        for byte in text.encode()
    ]
    assert takes(compiled, bytewise, smollm2)


def test_choices_and_grammars(tiny_router: EngineRouter) -> None:
    ok = tiny_takes(tiny_router.compile(Choice(("a.b", "a/b", "x\ny"), "llguidance")))
    assert [ok(text) for text in ("a.b", "a/b", "x\ny", "axb")] == [True, True, True, False]
    many = Choice(tuple(f"option {n}" for n in range(3_000)), "llguidance")
    ok = tiny_takes(tiny_router.compile(many))
    assert ok("option 2999")
    assert not ok("option 3000")
    ok = tiny_takes(tiny_router.compile(Ebnf('root ::= "(" root ")" | [0-9]+')))
    assert ok("((12))")
    assert not ok("((12)")
    ok = tiny_takes(tiny_router.compile(Ebnf('start: "a"+ %json {"type": "boolean"}')))
    assert ok("aatrue")


def tag(begin: object, content: object, end: object) -> dict[str, object]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_free_text_then_a_tag_behind_its_trigger(tiny_router: EngineRouter, backend: str) -> None:
    tags = [tag("<f=x>", NUMBER, "</f>"), tag("<f=y>", {"type": "regex", "pattern": "[ab]+"}, "</f>")]
    document = {"type": "triggered_tags", "triggers": ["<f="], "tags": tags}
    ok = tiny_takes(tiny_router.compile(StructuralTag(json.dumps(document), backend)))
    assert all(map(ok, ("", "text <f", "<f=x>12</f>", "a <f=x>1</f> b <f=y>ab</f>.", "< f= <<f=x>1</f>")))
    assert not any(map(ok, ("<f=", "<f=z>", "<f=x>a</f>", "<f=x>1", "<f=y></f>", "a <f=x>1</f> <f=")))


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_reasoning_first_then_a_constrained_answer(tiny_router: EngineRouter, backend: str) -> None:
    document = {"type": "sequence", "elements": [tag("", {"type": "any_text"}, "</t>"), NUMBER]}
    ok = tiny_takes(tiny_router.compile(StructuralTag(json.dumps(document), backend)))
    assert all(map(ok, ("</t>1", "so { 12 < 13 </t>13")))
    assert not any(map(ok, ("12", "so </t>x", "so </t>", "</t>1 and more")))


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_reasoning_between_control_tokens(router: EngineRouter, smollm2: FastTokenizer, backend: str) -> None:
    marks = {"type": "token", "token": "<filename>"}, {"type": "token", "token": "<gh_stars>"}
    document = {"type": "sequence", "elements": [tag(marks[0], {"type": "any_text"}, marks[1]), NUMBER]}
    compiled = router.compile(StructuralTag(json.dumps(document), backend))
    begin, end = smollm2.special_tokens["<filename>"], smollm2.special_tokens["<gh_stars>"]
    assert allowed(compiled.matcher(), smollm2) == {begin}
    assert takes(compiled, [begin, *smollm2.encode("it is <gh_stars> 3"), end, *smollm2.encode("3")], smollm2)
    assert not takes(compiled, [begin, *smollm2.encode("it is"), begin], smollm2)
    assert not takes(compiled, [begin, *smollm2.encode("it is"), end, *smollm2.encode("x")], smollm2)


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_forced_control_tokens_can_be_asked_for(
    router: EngineRouter, smollm2: FastTokenizer, backend: str
) -> None:
    """As the engine does before each mask, where text is drafted that must come."""
    mark = {"type": "token", "token": "<filename>"}
    document = {
        "type": "sequence",
        "elements": [tag(mark, {"type": "const_string", "value": "ab"}, mark), NUMBER],
    }
    matcher = router.compile(StructuralTag(json.dumps(document), backend)).matcher()
    for token_id in (smollm2.special_tokens["<filename>"], *smollm2.encode("ab")):
        assert isinstance(matcher, ForcedText)
        matcher.forced_tokens()
        matcher.forced_bytes()
        assert token_id in allowed(matcher, smollm2)
        assert matcher.accept(token_id)
    matcher.forced_tokens()
    assert allowed(matcher, smollm2) == {smollm2.special_tokens["<filename>"]}


@pytest.mark.parametrize(
    "spec",
    [
        JsonSchema.of({"const": "ab" * 100_000}),
        JsonSchema.of({"type": "object", "properties": {"k": {"enum": ["x", "ab" * 100_000]}}}),
        JsonSchema.of({"type": "object", "properties": {"k" * 160_000: True}}),
        Choice(("a" * 200_000, "b"), "llguidance"),
    ],
)
def test_texts_that_would_end_an_answer_by_their_length_are_refused(
    router: EngineRouter, spec: GrammarSpec
) -> None:
    with pytest.raises(UnsupportedConstraintError, match="too long for llguidance; the limit is 150000"):
        router.compile(spec)


def test_what_exceeds_the_engine_a_step_later_is_refused_at_once(router: EngineRouter) -> None:
    with pytest.raises(UnsupportedConstraintError, match="too many"):
        router.compile(Regex("(a?){300}a{300}"))


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_tags_one_after_the_other(tiny_router: EngineRouter, backend: str) -> None:
    separated = {
        "type": "tags_with_separator",
        "tags": [tag("<a>", NUMBER, "</a>"), tag("<b>", {"type": "any_text", "excludes": ["x"]}, "</b>")],
        "separator": ", ",
        "at_least_one": True,
    }
    ok = tiny_takes(tiny_router.compile(StructuralTag(json.dumps(separated), backend)))
    assert all(map(ok, ("<a>1</a>", "<b></b>, <a>2</a>, <b>y</b>")))
    assert not any(map(ok, ("", "<a>1</a>,<a>2</a>", "<b>x</b>", "<a>1</a> ")))


def test_what_llguidance_refuses_is_refused_by_name(tiny_router: EngineRouter) -> None:
    for spec, problem in (
        (Ebnf("start: nobody"), "cannot be enforced by llguidance"),
        (Regex("[\u4e00-\u9fff]"), "nothing that this model can write matches it"),
        (Ebnf('start: "\u4e00"'), "nothing that this model can write"),
        (Ebnf("start: " + " | ".join(f'"w{n}"' for n in range(3_000))), "row has 3001 items"),
        (Ebnf("start: " + " | ".join(f'"w{n}"' for n in range(3_000))), "Current row has 3001 items"),
    ):
        with pytest.raises(UnsupportedConstraintError, match=problem) as caught:
            tiny_router.compile(spec)
        assert caught.value.field == "grammar"
        assert "<state>" not in str(caught.value)


def test_matchers_go_from_thread_to_thread(tiny_router: EngineRouter) -> None:
    compiled = tiny_router.compile(schema({"type": "array", "items": {"type": "integer"}}))
    matcher = compiled.matcher()
    for token_id in spelled("[12,", TINY):
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(matcher.accept, token_id).result(30)
    assert allowed(matcher, TINY)


def test_forced_text_is_known_and_left_to_the_model(router: EngineRouter, smollm2: FastTokenizer) -> None:
    matcher = router.compile(schema(PERSON, 0)).matcher()
    assert matcher.forced_tokens() == [], "several tokens begin with a brace"
    assert matcher.forced_bytes() == b'{"name":"'  # type: ignore[attr-defined]
    (brace,) = smollm2.encode("{")
    assert {brace, smollm2.encode('{"name')[0]} <= allowed(matcher, smollm2)


PIECES = ["<", "f", "=", "x>", "y", "1", "2", "</f>", "<f=x>", "<f=", " ", "\n", "a", "<f=x>1</f>"]
TAGGED = re.compile(r"(?:(?!<f=).)*(?:<f=x>(?:0|-?[1-9][0-9]*)</f>(?:(?!<f=).)*)*", re.DOTALL)


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
@given(text=st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_text_with_tags_is_what_a_plain_definition_says(
    tiny_router: EngineRouter, backend: str, text: str
) -> None:
    document = {"type": "triggered_tags", "triggers": ["<f="], "tags": [tag("<f=x>", NUMBER, "</f>")]}
    ok = tiny_takes(tiny_router.compile(StructuralTag(json.dumps(document), backend)))
    assert ok(text) == bool(TAGGED.fullmatch(text))


GBNF = 'root ::= item ("," item)* tail?\nitem ::= [a-b]+ | "1" [^,.] | "(" item ")"\ntail ::= "." .'
FLAT = re.compile(
    r"(?P<i>[ab]+|1[^,.]|\([ab]+\)|\(1[^,.]\))(,(?:[ab]+|1[^,.]|\([ab]+\)|\(1[^,.]\)))*(\..)?", re.DOTALL
)


@given(text=st.text("ab1,.()\n", max_size=7))
def test_gbnf_is_never_taken_for_more_than_it_says(tiny_router: EngineRouter, text: str) -> None:
    taken = {
        engine: tiny_takes(tiny_router.compile(Ebnf(GBNF, backend=engine)))(text)
        for engine in ("llguidance", "xgrammar")
    }
    assert taken["llguidance"] == taken["xgrammar"]
    if "((" not in text:
        assert taken["llguidance"] == bool(FLAT.fullmatch(text))


def test_a_count_whose_bounds_are_exchanged_is_refused_by_its_place(tiny_router: EngineRouter) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"\{3,2\} in the grammar, at line 2, column 10, .* exchange"
    ) as error:
        tiny_router.compile(Ebnf('root ::= b\nb ::= "a"{3,2}', backend="llguidance"))
    assert error.value.field == "grammar"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            Ebnf('start: a\na: "x"\n | c'),
            'the grammar cannot be enforced by llguidance: line 2, column 4: unknown name: "c"',
        ),
        (Ebnf("start: /[z-a]/"), "llguidance: line 1, column 8: invalid regex"),
        (Ebnf('start: "a'), "llguidance: line 1, column "),
        (
            Regex(r"a\p{Foo}"),
            r"the regular expression 'a\\p{Foo}' cannot be enforced by llguidance: invalid regex",
        ),
        (
            Regex("(ab{1000}){100}|(ba{1000}){100}"),
            "the regular expression '(ab{1000}){100}|(ba{1000}){100}' takes more than llguidance's limits",
        ),
        (Choice(("a" * 200_000,), "llguidance"), "a text of 200000 characters"),
    ],
)
def test_refusals_say_what_is_wrong_where_and_what_to_do(
    tiny_router: EngineRouter, spec: GrammarSpec, message: str
) -> None:
    with pytest.raises(UnsupportedConstraintError) as error:
        tiny_router.compile(msgspec.structs.replace(spec, backend="llguidance"))
    said = str(error.value)
    assert message in said
    assert any(remedy in said for remedy in ("; correct or simplify it", "; make it smaller: ", ": shorten it"))
    assert "verbose" not in said


def write_many(matcher: GrammarMatcher) -> None:
    for _ in range(60):
        allowed(matcher, TINY)
        matcher.accept(spelled("a", TINY)[0])


def test_a_limit_met_while_generating_is_named_with_what_to_do(tiny_router: EngineRouter) -> None:
    many = " ".join(f"a{{0,{count}}}" for count in range(3, 60))
    matcher = tiny_router.compile(Ebnf(f'root ::= {many}\na ::= "a" | "a" a "b"')).matcher()
    with pytest.raises(
        RequestFailedError, match=r"the grammar takes more than llguidance's limits .* make it smaller"
    ):
        write_many(matcher)
