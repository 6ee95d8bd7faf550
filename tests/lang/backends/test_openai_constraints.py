import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.lang.backends.answer_text import Wrapping
from ramet.lang.backends.openai_constraints import constraint, object_constraint
from ramet.lang.backends.openai_flavours import FLAVOURS
from ramet.lang.errors import UnsupportedError
from ramet.runtime.protocol import (
    Choice,
    Ebnf,
    GrammarSpec,
    InvalidRequestError,
    JsonSchema,
    Regex,
    StructuralTag,
)

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TAG = '{"type": "structural_tag", "format": {}}'


def fields(grammar: GrammarSpec, flavour: str) -> dict[str, Any]:
    return constraint(grammar, FLAVOURS[flavour]).fields


@pytest.mark.parametrize("flavour", ["openai", "vllm", "sglang", "ramet"])
def test_a_schema_of_an_object_is_sent_as_it_is(flavour: str) -> None:
    held = constraint(JsonSchema.of(OBJECT), FLAVOURS[flavour])
    assert held.wrapping is None
    described = held.fields["response_format"]["json_schema"]
    assert (described["schema"], described["strict"]) == (OBJECT, True)
    loose = fields(msgspec.structs.replace(JsonSchema.of(OBJECT), strict=False), flavour)
    assert loose["response_format"]["json_schema"]["strict"] is False


@pytest.mark.parametrize(
    ("grammar", "flavour", "expected"),
    [
        (Regex("a+"), "vllm", {"structured_outputs": {"regex": "a+"}}),
        (Regex("a+"), "sglang", {"regex": "a+"}),
        (Regex("a+"), "ramet", {"regex": "a+"}),
        (Ebnf("root ::= x"), "vllm", {"structured_outputs": {"grammar": "root ::= x"}}),
        (Ebnf("root ::= x"), "sglang", {"ebnf": "root ::= x"}),
        (Ebnf("root ::= x"), "ramet", {"ebnf": "root ::= x"}),
        (Choice(("a", "b")), "vllm", {"structured_outputs": {"choice": ["a", "b"]}}),
        (Choice(("a", "b.")), "sglang", {"regex": r"(a|b\.)"}),
        (Choice(("a", "b")), "ramet", {"choice": ["a", "b"]}),
        (StructuralTag(TAG), "vllm", {"structured_outputs": {"structural_tag": TAG}}),
        (StructuralTag(TAG), "sglang", {"response_format": json.loads(TAG)}),
        (StructuralTag(TAG), "ramet", {"structural_tag": json.loads(TAG)}),
    ],
)
def test_kinds(grammar: GrammarSpec, flavour: str, expected: dict[str, Any]) -> None:
    assert fields(grammar, flavour) == expected


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_choices_as_a_regex_are_exactly_the_options(options: list[str]) -> None:
    pattern = fields(Choice(tuple(options)), "sglang")["regex"]
    for option in options:
        assert re.fullmatch(pattern, option)
        assert (re.fullmatch(pattern, option + "x") is not None) == (option + "x" in options)


def test_what_is_no_object_comes_in_one() -> None:
    schema = {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": OBJECT}}
    held = constraint(JsonSchema.of(schema), FLAVOURS["openai"])
    outer = held.fields["response_format"]["json_schema"]["schema"]
    assert outer["$defs"] == {"a": OBJECT}
    assert outer["properties"]["answer"] == {"anyOf": schema["anyOf"]}
    assert held.wrapping == Wrapping(is_text=False)
    assert held.wrapping.unwrapped('{"answer": {"a": 1}}') == '{"a": 1}'


def test_a_pattern_comes_in_an_object() -> None:
    held = constraint(Regex("a|b"), FLAVOURS["openai"])
    outer = held.fields["response_format"]["json_schema"]["schema"]
    assert outer["properties"]["answer"] == {"type": "string", "pattern": "^(?:a|b)$"}
    assert held.wrapping == Wrapping(is_text=True)


@pytest.mark.parametrize(
    ("grammar", "flavour", "message"),
    [
        (
            Ebnf("root ::= x"),
            "openai",
            "cannot constrain an answer by ebnf; it can by choice, json_schema, regex",
        ),
        (StructuralTag(TAG), "openai", "cannot constrain an answer by structural_tag"),
        (Regex("a", backend="xgrammar"), "vllm", "without backend='xgrammar'; leave it out"),
        (JsonSchema("{}", max_whitespace=0), "vllm", "without max_whitespace=0"),
        (Ebnf("start: x", syntax="lark"), "sglang", "without syntax='lark'"),
        (JsonSchema('{"anyOf": [{"$ref": "#"}]}'), "openai", r"move it into \$defs"),
    ],
)
def test_what_cannot_be_said_is_refused(grammar: GrammarSpec, flavour: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        constraint(grammar, FLAVOURS[flavour])


def test_no_json() -> None:
    with pytest.raises(InvalidRequestError, match="grammar is no JSON"):
        constraint(JsonSchema("{"), FLAVOURS["vllm"])


def test_servers_that_know_objects_only() -> None:
    assert object_constraint(Choice(("a",)), "s").wrapping == Wrapping(is_text=True)
    with pytest.raises(UnsupportedError, match="s cannot constrain an answer by ebnf"):
        object_constraint(Ebnf("root ::= x"), "s")
