"""Grammar specs are data: hashable, serialisable, and refuse what can mean nothing."""

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
