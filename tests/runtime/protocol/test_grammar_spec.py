"""Grammar specs are data: hashable, serialisable, and refuse what can mean nothing."""

import re
from typing import Any

import msgspec
import pytest

from ramet.runtime.protocol import (
    Choice,
    Ebnf,
    GrammarSpec,
    InvalidRequestError,
    JsonSchema,
    Prefix,
    Regex,
    StructuralTag,
)


@pytest.mark.parametrize(
    "spec",
    [
        JsonSchema("{}"),
        Regex("a+"),
        Ebnf('root ::= "a"'),
        JsonSchema("true", backend="llguidance", max_whitespace=0, strict=False),
        Ebnf('start: "a"', syntax="lark", backend="xgrammar"),
        Choice(("yes", "no")),
        StructuralTag("{}"),
        Prefix("a"),
        Prefix("é", Choice(("yes", "no"))),
    ],
)
def test_round_trip_and_key(spec: GrammarSpec) -> None:
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=GrammarSpec)
    assert again == spec
    assert hash(again) == hash(spec)


@pytest.mark.parametrize("options", [(), ("a", "")])
def test_choice_refuses_what_nothing_can_spell(options: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequestError, match="option"):
        Choice(options)


def test_schema_keeps_the_order_of_its_keys() -> None:
    assert JsonSchema.of({"b": 1, "a": {"z": "ü", "c": None}}).schema == '{"b":1,"a":{"z":"ü","c":null}}'
    assert JsonSchema.of(True).schema == "true"


def test_prefix_requires_something() -> None:
    with pytest.raises(InvalidRequestError, match="prefix has an empty text"):
        Prefix("")


def test_choice_takes_a_list() -> None:
    options: Any = ["yes", "no"]
    assert Choice(options) == Choice(("yes", "no"))
    assert hash(Choice(options)) == hash(Choice(("yes", "no")))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (JsonSchema, {"type": "object"}),
        (Regex, None),
        (Regex, re.compile("a")),
        (Ebnf, b"root"),
        (Choice, "yes"),
        (Choice, None),
        (Choice, {"yes", "no"}),
        (Choice, ("yes", 1)),
        (Choice, ["yes", ["no"]]),
        (StructuralTag, {}),
        (Prefix, None),
    ],
)
def test_a_field_of_the_wrong_type_is_refused(kind: Any, value: object) -> None:
    with pytest.raises(InvalidRequestError, match="it must be") as caught:
        kind(value)
    assert caught.value.field == "grammar"


@pytest.mark.parametrize(
    ("kind", "value", "more"),
    [
        (JsonSchema, "{}", {"backend": "guidance"}),
        (JsonSchema, "{}", {"strict": "no"}),
        (JsonSchema, "{}", {"max_whitespace": -1}),
        (JsonSchema, "{}", {"max_whitespace": 65}),
        (JsonSchema, "{}", {"max_whitespace": True}),
        (JsonSchema, "{}", {"max_whitespace": None}),
        (Regex, "a", {"backend": None}),
        (Ebnf, "a", {"backend": ["auto"]}),
        (Ebnf, "a", {"syntax": "bnf"}),
        (Choice, ("a",), {"backend": "trie"}),
        (StructuralTag, "{}", {"backend": ""}),
        (StructuralTag, "{}", {"max_whitespace": 1.0}),
    ],
)
def test_how_it_is_enforced_is_checked(kind: Any, value: object, more: dict[str, Any]) -> None:
    (name,) = more
    with pytest.raises(InvalidRequestError, match=f"{name} is .*; it must be") as caught:
        kind(value, **more)
    assert caught.value.field == "grammar"


def test_the_inner_grammar_of_a_prefix_is_one() -> None:
    inner: Any = "yes"
    with pytest.raises(InvalidRequestError, match="inner is 'yes'"):
        Prefix("a", inner)
