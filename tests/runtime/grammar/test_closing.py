"""Documents that are closed before their tokens are used up: random walks against jsonschema."""

import json
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ramet.runtime.grammar.backend import ClosingGrammar, CompiledGrammar
from ramet.runtime.grammar.closing import (
    MAX_ENDING_BYTES,
    ClosingMatcher,
    ClosingTokens,
    TextPlace,
    closing_matcher,
    likely_bytes,
)
from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.protocol import (
    GrammarSpec,
    InvalidRequestError,
    JsonSchema,
    Prefix,
    Regex,
    UnsupportedConstraintError,
)
from tests.runtime.grammar.engines.walking import STOP, TINY, allowed, spelled

ROUTER = EngineRouter(TINY)
SCHEMAS: tuple[Any, ...] = (
    True,
    {"type": "object"},
    {"type": "integer", "multipleOf": 7, "minimum": 5},
    {"type": "integer", "maximum": -5},
    {"type": "string", "pattern": "^a*b$"},
    {"type": "string", "minLength": 5, "maxLength": 9},
    {"type": "array", "items": {"type": "integer", "minimum": 1000}, "minItems": 2},
    {
        "type": "object",
        "properties": {
            "a": {"type": "string", "format": "date-time"},
            "b": {"type": "array", "items": {"enum": ["xx", "xy", 1.5]}},
            "c": {"type": ["number", "null"]},
        },
        "required": ["a", "c"],
    },
    {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "number"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
)


@cache
def tokens() -> ClosingTokens:
    return ClosingTokens(ROUTER.tokens)


@cache
def compiled(spec: GrammarSpec) -> CompiledGrammar:
    return ROUTER.compile(spec)


def closing(spec: GrammarSpec, max_tokens: int) -> ClosingMatcher:
    return closing_matcher(compiled(spec).matcher(), spec, tokens(), max_tokens)


def text_of(token_ids: list[int]) -> str:
    return b"".join(TINY.token_bytes(token_id) or b"" for token_id in token_ids).decode()


@cache
def shortest(spec: GrammarSpec) -> int:
    return next(n for n in range(1, 500) if _fits(spec, n))


def _fits(spec: GrammarSpec, max_tokens: int) -> bool:
    try:
        closing(spec, max_tokens)
    except UnsupportedConstraintError:
        return False
    return True


def walk(matcher: ClosingMatcher, max_tokens: int, random: Random) -> list[int]:
    """Any tokens of the mask, as at a very high temperature; it stops only where it must."""
    taken: list[int] = []
    while len(taken) < max_tokens and not matcher.is_terminated():
        permitted = sorted(allowed(matcher, TINY))
        token_id = random.choice([item for item in permitted if item != STOP] or permitted)
        if matcher.accept(token_id):
            taken.append(token_id)
        else:
            assert matcher.begin_closing(token_id)
            assert token_id not in allowed(matcher, TINY)
    return taken


@settings(max_examples=60)
@given(st.integers(0, len(SCHEMAS) - 1), st.integers(0, 40), st.integers(0, 2**32))
def test_whatever_is_sampled_the_document_is_complete_when_the_tokens_are_used_up(
    index: int, spare: int, seed: int
) -> None:
    spec = JsonSchema.of(SCHEMAS[index])
    max_tokens = shortest(spec) + spare
    taken = walk(closing(spec, max_tokens), max_tokens, Random(seed))
    assert len(taken) <= max_tokens
    document = json.loads(text_of([token_id for token_id in taken if token_id != STOP]))
    assert Draft202012Validator(SCHEMAS[index]).is_valid(document)


@pytest.mark.parametrize(
    ("schema", "begun", "ending"),
    [
        ({"type": "object"}, '{"ab', '"' + ":0}"),
        ({"type": "object"}, '{"a": [1, {"b": "ab', '"}]}'),
        ({"type": "array", "items": {"type": "integer"}}, "[12", "]"),
        ({"enum": ["true", True, None]}, "t", "rue"),
        ({"type": "string"}, '"a\\', '""'),
    ],
)
def test_the_ending_is_short(schema: Any, begun: str, ending: str) -> None:
    matcher = closing(JsonSchema.of(schema), 100)
    for token_id in spelled(begun, TINY):
        assert matcher.accept(token_id)
    assert matcher.begin_closing(min(allowed(matcher, TINY) - {STOP}))
    assert text_of(matcher.forced_tokens()) == ending


def test_behind_the_ending_only_the_stop_is_allowed() -> None:
    matcher = closing(JsonSchema.of({"type": "object"}), 10)
    assert isinstance(matcher, ClosingGrammar)
    assert matcher.begin_closing(spelled("{", TINY)[0])
    assert matcher.is_closing
    assert matcher.forced_bytes() == b""
    for token_id in matcher.forced_tokens():
        assert allowed(matcher, TINY) == {token_id}
        assert not matcher.accept(STOP)
        assert matcher.accept(token_id)
    assert allowed(matcher, TINY) == {STOP}
    assert not matcher.accept(spelled(" ", TINY)[0])
    assert matcher.accept(STOP)
    assert matcher.is_terminated()
    assert not matcher.is_unconstrained()
    assert not allowed(matcher, TINY)


def test_a_token_that_the_grammar_forbids_begins_nothing() -> None:
    matcher = closing(JsonSchema.of({"type": "object"}), 10)
    wrong = spelled("x", TINY)[0]
    assert not matcher.accept(wrong)
    assert not matcher.begin_closing(wrong)
    assert not matcher.is_closing


def test_rolling_back_and_forking() -> None:
    spec = JsonSchema.of({"type": "array", "items": {"type": "string"}})
    matcher = closing(spec, 6)
    begun = [spelled(piece, TINY)[0] for piece in ("[", '"', "a")]
    assert all(map(matcher.accept, begun))
    before = allowed(matcher, TINY)
    more = spelled("b", TINY)[0]
    assert matcher.accept(more)
    fork = matcher.fork()
    assert not fork.accept(more)
    assert fork.begin_closing(more)
    assert text_of(fork.forced_tokens()) == '"]'
    assert not matcher.is_closing
    matcher.rollback(1)
    assert allowed(matcher, TINY) == before
    fork.rollback(1)
    assert not fork.is_closing
    assert allowed(fork, TINY) == before
    with pytest.raises(ValueError, match="cannot roll back 4 tokens: 3 were accepted"):
        matcher.rollback(4)


def test_behind_a_prefix() -> None:
    spec = Prefix('"a', JsonSchema.of({"type": "object"}))
    for seed in range(20):
        taken = walk(closing(spec, 9), 9, Random(seed))
        text = text_of([token_id for token_id in taken if token_id != STOP])
        assert isinstance(json.loads(text.removeprefix('"a')), dict)


def test_what_cannot_be_closed_is_refused() -> None:
    with pytest.raises(UnsupportedConstraintError, match="takes at least 2 tokens, of which there may be 1"):
        closing(JsonSchema.of({"type": "object"}), 1)
    long = JsonSchema.of({"type": "string", "minLength": MAX_ENDING_BYTES})
    with pytest.raises(UnsupportedConstraintError, match="no complete answer of at most 1024 bytes"):
        closing(long, 10**6)
    for spec in (Regex("a"), Prefix("a"), Prefix("a", Regex("b"))):
        with pytest.raises(InvalidRequestError, match="closes JSON alone"):
            closing(spec, 100)


def test_texts_are_spelled_with_the_fewest_tokens() -> None:
    assert [TINY.token_bytes(i) for i in tokens().spell(b'"}')] == [b'"}']
    assert [TINY.token_bytes(i) for i in tokens().spell(b'abc"}')] == [b"abc", b'"}']
    assert tokens().spell(b"") == []


def test_where_in_a_text_one_is() -> None:
    assert TextPlace().after(b'{"a\\"b').in_string
    assert TextPlace().after(b'"a\\').is_escaped
    assert not TextPlace().after(b'{"a\\\\"').in_string
    assert TextPlace(3).after(b'"a"').in_string is False
    assert TextPlace(2).after(b'"a"').in_string is True
    assert TextPlace().after(b"12").choices().index(b"3") < TextPlace().after(b"12").choices().index(b"1")


@pytest.mark.parametrize(
    ("pattern", "ending"),
    [
        ("a[0-9]", '"a0"'),
        (r"x\d\d", '"x00"'),
        ("[A-Z]{2}-[0-9]", '"AA-0"'),
        ("^ab|cd[ef]g", '"ab"'),
        (r"(foo|ba)\w?z", '"baz"'),
    ],
)
def test_patterns_that_are_searched_for_are_met(pattern: str, ending: str) -> None:
    matcher = closing(JsonSchema.of({"type": "string", "pattern": pattern}), 30)
    assert matcher.begin_closing(min(allowed(matcher, TINY)))
    text = text_of(matcher.forced_tokens())
    assert len(text) == len(ending)
    assert Draft202012Validator({"pattern": pattern}).is_valid(json.loads(text))


def test_the_characters_of_patterns() -> None:
    schema = {"properties": {"pattern": {"pattern": r"b\d[é\\]\w"}}, "allOf": [{"pattern": '"{2}'}]}
    assert sorted(likely_bytes(json.dumps(schema))) == sorted(b"2b0a{}[]")
    assert likely_bytes("true") == b""
    assert likely_bytes('{"type": "string"}') == b""
