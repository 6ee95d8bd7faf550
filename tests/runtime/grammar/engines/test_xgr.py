"""xgrammar's known faults, guarded."""

import json

import numpy as np
import pytest

from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.grammar.engines.xgr import CompiledXgrammar
from ramet.runtime.protocol import Ebnf, JsonSchema, Regex, RequestFailedError, UnsupportedConstraintError
from ramet.runtime.tokenizer import FastTokenizer
from tests.runtime.grammar.engines.walking import TINY, allowed, spelled, takes, tiny_takes
from tests.runtime.grammar.fakes import ListVocabulary

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "s": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}


def schema(document: object, max_whitespace: int = 8) -> JsonSchema:
    return JsonSchema(json.dumps(document), "xgrammar", max_whitespace)


def test_a_schema_in_any_whitespace_up_to_its_bound(tiny_router: EngineRouter) -> None:
    compiled = tiny_router.compile(schema(POINT, 2))
    ok = tiny_takes(compiled)
    assert all(map(ok, ('{"x":1}', '{"x": 12, "s": "a\\n"}', '{ \n"x":1}')))
    assert not any(map(ok, ('{"x":   1}', '{"s":"a"}', '{"x":1,"s":"a\nb"}', '{"x":1,"y":2}', '{"x":1}   ')))
    assert isinstance(compiled, CompiledXgrammar)
    assert compiled.num_bytes > 0


def test_compact(tiny_router: EngineRouter) -> None:
    ok = tiny_takes(tiny_router.compile(schema(POINT, 0)))
    assert ok('{"x":1,"s":"a"}')
    assert not ok('{"x": 1}')


def test_objects_are_open_unless_the_schema_closes_them(tiny_router: EngineRouter) -> None:
    ok = tiny_takes(
        tiny_router.compile(schema({"type": "object", "additionalProperties": {"type": "integer"}}))
    )
    assert ok('{"x": 1, "y": 2}')


def test_no_control_token_inside_of_a_string(router: EngineRouter, smollm2: FastTokenizer) -> None:
    matcher = router.compile(schema({"type": "string"})).matcher()
    for token_id in smollm2.encode('"some text'):
        assert not allowed(matcher, smollm2) & set(smollm2.special_tokens.values())
        assert matcher.accept(token_id)
    assert not any(matcher.fork().accept(token_id) for token_id in smollm2.special_tokens.values())


def test_the_mask_of_a_recursive_schema_is_never_wider_than_what_is_accepted(
    router: EngineRouter, smollm2: FastTokenizer
) -> None:
    node = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "n": {"$ref": "#/$defs/n"}},
        "additionalProperties": False,
    }
    document = {"$defs": {"n": node}, "$ref": "#/$defs/n"}
    compiled = router.compile(schema(document))
    text = '{"v": 1, "n": {"v": 2} }'
    assert takes(compiled, smollm2.encode(text), smollm2)


def test_after_the_end_nothing_is_asked_of_the_library(tiny_router: EngineRouter) -> None:
    matcher = tiny_router.compile(Regex("ab?", "xgrammar")).matcher()
    for token_id in [*spelled("ab", TINY), TINY.stop_token_ids[0]]:
        assert matcher.accept(token_id)
    assert not allowed(matcher, TINY)
    matcher.rollback(2)
    assert allowed(matcher, TINY) == set(spelled("a", TINY)) | {spelled("ab", TINY)[0]}


def test_a_text_that_may_be_anything_allows_no_control_token_and_no_padding() -> None:
    vocabulary = ListVocabulary([b"a", b"\n", b"\xc3\xa9", None, None], [3])
    compiled = EngineRouter(vocabulary).compile(Ebnf("root ::= [\\x00-\\U0010ffff]*", backend="xgrammar"))
    row = np.zeros(Spellings(vocabulary).num_words, dtype=np.int32)
    compiled.matcher().fill_bitmask(row)
    assert row.tolist() == [0b1111]


def test_ambiguous_grammars_are_taken_as_they_are(tiny_router: EngineRouter) -> None:
    ok = tiny_takes(tiny_router.compile(Ebnf('root ::= [a-z]+ "abc"', backend="xgrammar")))
    assert ok("zzabcabc")
    assert not ok("abc")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (Ebnf('root ::= "a" nobody', backend="xgrammar"), "cannot be enforced by xgrammar: .*nobody"),
        (Ebnf('root ::= "\u4e00"', backend="xgrammar"), "no token that it allows"),
        (Regex("(a+b?)+", "xgrammar"), "can hang xgrammar"),
        (schema({"type": "object", "properties": {"x": {"type": "integer"}}}), "xgrammar cannot enforce"),
    ],
)
def test_what_it_cannot_enforce_is_refused(
    tiny_router: EngineRouter, spec: Ebnf | Regex | JsonSchema, problem: str
) -> None:
    with pytest.raises(UnsupportedConstraintError, match=problem) as caught:
        tiny_router.compile(spec)
    assert ".cc:" not in str(caught.value)


def test_rolling_back_too_far_is_an_error_with_a_name(tiny_router: EngineRouter) -> None:
    matcher = tiny_router.compile(Regex("ab", "xgrammar")).matcher()
    state = matcher._state  # type: ignore[attr-defined]
    with pytest.raises(RequestFailedError, match="xgrammar cannot roll back"):
        state.undo(3)
