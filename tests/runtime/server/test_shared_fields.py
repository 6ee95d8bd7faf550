"""What both kinds of completions take, and what it becomes."""

import json
from typing import Any

import pytest

from ramet.runtime.protocol import (
    Choice,
    Ebnf,
    GrammarSpec,
    InvalidRequestError,
    JsonSchema,
    Regex,
    SamplingParams,
    StructuralTag,
)
from ramet.runtime.server.errors import HttpError
from ramet.runtime.server.shared_fields import (
    ELSEWHERE,
    IGNORED,
    REFUSED,
    ConstraintFields,
    SamplingFields,
    grammar_spec,
    renamed_for,
    sampling_params,
    without_refused,
)

SCHEMA = {"type": "object", "properties": {"z": {}, "a": {}}}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, JsonSchema('{"type":"object"}')),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            JsonSchema(json.dumps(SCHEMA, separators=(",", ":"))),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": True, "strict": False}}},
            JsonSchema("true", strict=False),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": True, "strict": None}}},
            JsonSchema("true"),
        ),
        ({"response_format": TAG}, StructuralTag(json.dumps(TAG, separators=(",", ":")))),
        ({"structural_tag": TAG}, StructuralTag(json.dumps(TAG, separators=(",", ":")))),
        ({"structural_tag": "{}"}, StructuralTag("{}")),
        ({"regex": "a+"}, Regex("a+")),
        ({"ebnf": 'root ::= "a"', "grammar_backend": "xgrammar"}, Ebnf('root ::= "a"', backend="xgrammar")),
        ({"choice": ["a", "b"]}, Choice(("a", "b"))),
        (
            {"response_format": {"type": "json_object"}, "max_whitespace": 0},
            JsonSchema('{"type":"object"}', max_whitespace=0),
        ),
    ],
)
def test_constraints(fields: dict[str, Any], spec: GrammarSpec | None) -> None:
    assert grammar_spec(ConstraintFields(**fields)) == spec


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"regex": "a", "ebnf": "b"}, "ebnf"),
        ({"response_format": {"type": "json_object"}, "choice": ["a"]}, "choice"),
        ({"grammar_backend": "xgrammar"}, "grammar_backend"),
        ({"regex": "a", "max_whitespace": 1}, "max_whitespace"),
        ({"regex": "a", "grammar_backend": "none"}, "grammar"),
    ],
)
def test_constraints_that_are_none(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        grammar_spec(ConstraintFields(**fields))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({}, "response_format.type"),
        ({"type": "text", "schema": {}}, "response_format.schema"),
        ({"type": "json_schema", "json_schema": {"schema": 5}}, "response_format.json_schema.schema"),
        (
            {"type": "json_schema", "json_schema": {"schema": True, "strict": "no"}},
            "response_format.json_schema.strict",
        ),
        ({"type": "json_schema", "json_schema": {}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": SCHEMA}, "response_format.json_schema.type"),
    ],
)
def test_response_formats_that_are_none(wanted: dict[str, Any], param: str) -> None:
    with pytest.raises(HttpError) as caught:
        grammar_spec(ConstraintFields(response_format=wanted))
    assert (caught.value.status, caught.value.detail.param) == (400, param)


def test_a_constraint_is_called_what_the_client_called_it() -> None:
    assert renamed_for(ConstraintFields(regex="a"))["grammar"] == "regex"
    assert renamed_for(ConstraintFields())["grammar"] == "response_format"
    named = {renamed_for(ConstraintFields(), has_tools=True)[ours] for ours in ("grammar", "")}
    assert named == {"tools"}
    assert renamed_for(ConstraintFields(regex="a"), has_tools=True)["grammar"] == "regex"


def test_null_is_the_default() -> None:
    assert sampling_params(SamplingFields()) == SamplingParams()
    fields = SamplingFields(temperature=0, stop="x", logit_bias={5: 1.0})
    assert sampling_params(fields, max_tokens=3) == SamplingParams(
        temperature=0, stop=("x",), logit_bias={5: 1.0}, max_tokens=3
    )


def test_ignored_refused_and_renamed_fields() -> None:
    body = {"prompt": "x", **dict.fromkeys(IGNORED, "y"), **dict.fromkeys(REFUSED)}
    assert without_refused(body) == {"prompt": "x"}
    for name, (harmless, _) in REFUSED.items():
        for value in harmless:
            assert without_refused({name: value}) == {}
        with pytest.raises(HttpError) as caught:
            without_refused({name: {"anything": 1}})
        assert caught.value.detail.code == "unsupported_parameter"
    for name in ELSEWHERE:
        with pytest.raises(HttpError, match="here it is"):
            without_refused({name: None})
