import json

import pytest

from ramet.lang.backends.answer_check import check_answer, schema_fault
from ramet.lang.errors import GenerationError
from ramet.runtime.protocol import (
    Choice,
    Ebnf,
    GrammarSpec,
    InvalidRequestError,
    JsonSchema,
    Regex,
    StructuralTag,
)

SCHEMA = JsonSchema.of(
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]}
)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (Choice(("a", "b")), "b"),
        (Regex("a+b?"), "aab"),
        (SCHEMA, '{"a": 3}'),
        (JsonSchema("true"), "null"),
        (Ebnf("root ::= x"), "whatever"),
        (StructuralTag("{}"), "whatever"),
    ],
)
def test_what_conforms(grammar: GrammarSpec, text: str) -> None:
    check_answer("s", grammar, text)


@pytest.mark.parametrize(
    ("grammar", "text", "fault"),
    [
        (Choice(("a", "b")), "ab", "'ab': it is none of the options"),
        (Regex("a+"), "aab", "'aab': it does not match 'a+'"),
        (SCHEMA, '{"a": 2}', "$.a: 2 is less than the minimum of 3"),
        (SCHEMA, "{", "it is no JSON"),
        (SCHEMA, json.dumps("x" * 200), "...': $: "),
    ],
)
def test_what_does_not(grammar: GrammarSpec, text: str, fault: str) -> None:
    with pytest.raises(GenerationError, match="s was held to a constraint, and answered ") as caught:
        check_answer("s", grammar, text)
    assert fault in str(caught.value)
    assert len(str(caught.value)) < 500


def test_constraints_that_are_not_valid() -> None:
    with pytest.raises(InvalidRequestError, match=r"regex '\(' is not valid"):
        check_answer("s", Regex("("), "")
    with pytest.raises(InvalidRequestError, match="json_schema is no valid schema"):
        schema_fault('{"type": "nothing"}', "1")
    with pytest.raises(InvalidRequestError, match="json_schema is no valid schema"):
        schema_fault('{"$ref": "http://x.invalid/y"}', "1")
