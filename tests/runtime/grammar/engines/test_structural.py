"""Documents of structural tags are read whole or refused at a named place."""

import json
from typing import Any

import pytest

from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.grammar.engines.structural import (
    AnyText,
    Const,
    Either,
    Grammar,
    Json,
    Pattern,
    Repeat,
    SeparatedTags,
    Sequence,
    Tag,
    Token,
    TriggeredTags,
    read_structural_tag,
)
from ramet.runtime.protocol import Ebnf, InvalidRequestError, Regex, StructuralTag

TEXT = {"type": "any_text"}
NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
TAG = {"type": "tag", "begin": "<a>", "content": NUMBER, "end": "</a>"}


def read(document: object) -> Any:
    return read_structural_tag(json.dumps(document)).root


def test_every_format() -> None:
    assert read({"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}) == Const("x")
    assert read({"type": "regex", "pattern": "a+"}) == Pattern(Regex("a+"))
    assert read({"type": "grammar", "grammar": "g"}) == Grammar(Ebnf("g"))
    assert read({"type": "grammar", "grammar": "g", "syntax": "ebnf"}) == Grammar(Ebnf("g", syntax="gbnf"))
    assert read({**TEXT, "excludes": ["x"]}) == AnyText(("x",))
    assert read({"type": "token", "token": 3}) == Token(3)
    assert read({"type": "sequence", "elements": [TEXT]}) == Sequence((AnyText(),))
    assert read({"type": "or", "elements": [TEXT, TEXT]}) == Either((AnyText(), AnyText()))
    assert read({"type": "optional", "content": TEXT}) == Repeat(AnyText(), 0, 1)
    assert read({"type": "star", "content": TEXT}) == Repeat(AnyText(), 0, None)
    assert read({"type": "plus", "content": TEXT}) == Repeat(AnyText(), 1, None)
    assert read({"type": "repeat", "content": TEXT, "min": 2, "max": -1}) == Repeat(AnyText(), 2, None)
    tag = read({"type": "tag", "begin": {"type": "token", "token": "<x>"}, "content": TEXT, "end": ["a", "b"]})
    assert tag == Tag(Token("<x>"), AnyText(), (Const("a"), Const("b")))
    made = read({"type": "triggered_tags", "triggers": ["<"], "tags": [TAG], "stop_after_first": True})
    assert isinstance(made, TriggeredTags)
    assert (made.triggers, made.stop_after_first, made.at_least_one) == (("<",), True, False)
    made = read({"type": "tags_with_separator", "tags": [TAG], "separator": ", ", "at_least_one": True})
    assert isinstance(made, SeparatedTags)
    assert made.at_least_one


def test_every_schema_is_planned() -> None:
    document = {"type": "sequence", "elements": [NUMBER, TAG, {"type": "json_schema", "json_schema": True}]}
    made = read_structural_tag(json.dumps(document))
    assert len(made.plans) == 3
    assert isinstance(made.root, Sequence)
    assert made.root.elements[0] == Json(made.plans[0])


def test_the_older_form() -> None:
    structures = [{"begin": "<a>", "schema": {"type": "integer"}, "end": "</a>"}]
    made = read({"triggers": ["<a"], "structures": structures})
    assert isinstance(made, TriggeredTags)
    assert made == read({"type": "structural_tag", "triggers": ["<a"], "structures": structures})
    assert made.tags[0].begin == Const("<a>")


def nested(depth: int) -> dict[str, object]:
    return {"type": "optional", "content": nested(depth - 1)} if depth else dict(TEXT)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("{", "not JSON"),
        ([1], "at #: it is"),
        ({"type": "structural_tag"}, "at #: format is missing"),
        ({"type": "structural_tag", "format": TEXT, "x": 1}, "at #: x is not known"),
        ({"type": "anything"}, "type is 'anything'"),
        ({}, "type is missing"),
        ({**TEXT, "max_tokens": 3}, "max_tokens is not known"),
        ({**NUMBER, "style": "qwen_xml"}, "style is not known"),
        ({"type": "json_schema", "json_schema": "integer"}, "no JSON schema"),
        ({"type": "const_string", "value": 3}, "value is '3'"),
        ({"type": "sequence", "elements": []}, "elements is empty"),
        ({"type": "sequence", "elements": {}}, "must be a list"),
        ({"type": "sequence", "elements": [TEXT, 1]}, "at #/elements/1"),
        ({"type": "token", "token": True}, "a token's id or text"),
        ({"type": "repeat", "content": TEXT, "min": 3, "max": 2}, "min is 3 and max is 2"),
        ({"type": "repeat", "content": TEXT, "min": "3", "max": 2}, "must be an integer"),
        ({**TAG, "end": []}, "end is empty"),
        ({**TAG, "end": {"type": "any_text"}}, "neither a string nor a token"),
        ({"type": "grammar", "grammar": "g", "syntax": "bnf"}, "syntax is 'bnf'"),
        ({"type": "triggered_tags", "triggers": [], "tags": [TAG]}, "triggers is empty"),
        ({"type": "triggered_tags", "triggers": [""], "tags": [TAG]}, "none empty"),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": []}, "tags is empty"),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": [TEXT]}, "must be a tag"),
        ({"type": "triggered_tags", "triggers": ["["], "tags": [TAG]}, "begins with no trigger"),
        ({"type": "triggered_tags", "triggers": ["<", "<a"], "tags": [TAG]}, "is part of '<a'"),
        ({"type": "triggered_tags", "triggers": ["<", "["], "tags": [TAG]}, "no tag begins with"),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": [TAG], "at_least_one": 1}, "true or false"),
        (
            {
                "type": "triggered_tags",
                "triggers": ["<"],
                "tags": [{**TAG, "begin": {"type": "token", "token": 1}}],
            },
            "begins with a token",
        ),
        (nested(40), "nested more than 32"),
    ],
)
def test_what_is_wrong_is_refused_at_its_place(document: object, problem: str) -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        read_structural_tag(text)
    assert caught.value.field == "grammar"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"type": "json_schema", "json_schema": {"type": "strin"}},
            "in the structural tag, at #/format/elements/1/json_schema: #/type is 'strin'",
        ),
        (
            {**TAG, "content": {"type": "json_schema", "json_schema": {"enum": []}}},
            "at #/format/elements/1/content/json_schema: no value can satisfy the schema: at # its enum",
        ),
        (
            {
                **TAG,
                "content": {
                    "type": "json_schema",
                    "json_schema": {"items": {"pattern": "\\bz"}, "type": "array"},
                },
            },
            "at #/format/elements/1/content/json_schema: the schema cannot be enforced at #/items/pattern: ",
        ),
        (
            {"type": "regex", "pattern": "a[z-a]"},
            "at #/format/elements/1/pattern: the regular expression 'a[z-a]' cannot be enforced: the range z-a",
        ),
        (
            {"type": "grammar", "grammar": "root ::= root"},
            "at #/format/elements/1/grammar: the rule root of the grammar matches no finite text",
        ),
        (
            {"type": "const_string", "value": "a\udc00"},
            "at #/format/elements/1/value: it holds '\\udc00', half of a surrogate pair",
        ),
    ],
)
@pytest.mark.parametrize("backend", ["auto", "llguidance", "xgrammar"])
def test_what_a_region_is_refused_for_begins_with_its_place(
    tiny_router: EngineRouter, document: object, message: str, backend: str
) -> None:
    whole = {"type": "sequence", "elements": [{"type": "const_string", "value": "x"}, document]}
    text = json.dumps({"type": "structural_tag", "format": whole})
    with pytest.raises(InvalidRequestError) as error:
        tiny_router.compile(StructuralTag(text, backend))
    assert message in str(error.value)
    assert str(error.value).count("structural tag") == 1, "said once"


def test_the_older_form_names_its_places_too() -> None:
    document = {"triggers": ["<a"], "structures": [{"begin": "<a>", "schema": {"enum": []}, "end": "</a>"}]}
    with pytest.raises(InvalidRequestError, match="at #/structures/0/schema: no value can satisfy the schema"):
        read(document)
