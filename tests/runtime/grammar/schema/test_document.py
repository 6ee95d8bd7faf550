"""Drafts, identifiers, anchors and references."""

import json

import pytest

from ramet.runtime.grammar.schema.document import load, parse_json, step
from ramet.runtime.grammar.schema.limits import SchemaLimits
from ramet.runtime.protocol import InvalidRequestError

LIMITS = SchemaLimits()


def test_references_resolve_against_the_nearest_id() -> None:
    document = load(
        json.dumps(
            {
                "$id": "http://example.com/root.json",
                "$defs": {
                    "a": {
                        "$id": "nested/a.json",
                        "$defs": {"b": {"$anchor": "here"}},
                        "properties": {"$ref": {}},
                    },
                    "c/d": True,
                    "e": {"$id": "urn:example:e", "$defs": {"f": {"$dynamicAnchor": "deep"}}},
                },
            }
        ),
        LIMITS,
    )
    assert document.resolve("#", "/$defs/a") == "/$defs/a"
    assert document.resolve("nested/a.json#here", "") == "/$defs/a/$defs/b"
    assert document.resolve("#/$defs/b", "/$defs/a/$defs/b") == "/$defs/a/$defs/b"
    assert document.resolve("/root.json#/$defs/c~1d", "/$defs/a") == "/$defs/c~1d"
    assert document.resolve("#/$defs/f", "/$defs/e") == "/$defs/e/$defs/f"
    assert document.dynamic == {"deep": ("/$defs/e/$defs/f",)}
    with pytest.raises(InvalidRequestError, match="points outside"):
        document.resolve("other.json", "")


def test_an_id_in_data_names_nothing() -> None:
    document = load(
        '{"enum": [{"$id": "http://x/y"}], "default": {"$anchor": "z"}, "properties": {"$id": {}}}', LIMITS
    )
    for reference in ("http://x/y", "#z"):
        with pytest.raises(InvalidRequestError):
            document.resolve(reference, "")


@pytest.mark.parametrize(
    ("declared", "draft"),
    [
        ("http://json-schema.org/draft-04/schema#", 4),
        ("http://json-schema.org/draft-07/schema", 7),
        ("https://json-schema.org/draft/2020-12/schema", 2020),
        (None, 2020),
    ],
)
def test_drafts(declared: str | None, draft: int) -> None:
    document = load(json.dumps({} if declared is None else {"$schema": declared}), LIMITS)
    assert document.draft == draft
    assert document.declared == (declared is not None)


def test_a_draft_of_other_keywords_is_refused() -> None:
    """Draft 3 has divisibleBy, disallow and extends; read as a later one it would be weaker than it says."""
    schema = {"$schema": "http://json-schema.org/draft-03/schema#", "type": "integer", "divisibleBy": 7}
    with pytest.raises(InvalidRequestError, match=r"#/\$schema: .*draft-03.* is no draft that is known here"):
        load(json.dumps(schema), LIMITS)


def test_pointers_are_escaped() -> None:
    assert step("/a", "b/c", 0, "~") == "/a/b~1c/0/~0"
    assert parse_json("[1.5]", LIMITS) == [1.5]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (r'{"const": "a\ud800"}', "#/const"),
        (r'{"properties": {"k": {"enum": ["ok", {"v": ["\uDFFF"]}]}}}', "#/properties/k/enum/1/v/0"),
        (r'{"properties": {"k": {"const": {"\ud800": 1}}}}', "#/properties/k/const"),
        (r'{"properties": {"\udc00": {"type": "null"}}}', "#/properties"),
        (r'{"required": ["\udc00"]}', "#/required/0"),
        (r'{"items": {"pattern": "\udc00"}}', "#/items/pattern"),
        (r'{"properties": {"\ud83d\ude00": {"const": "\ude00\ud83d"}}}', "#/properties/\U0001f600/const"),
        ('{"const": "\ud800"}', "#/const"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_by_its_place(text: str, place: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        load(text, LIMITS)
    assert str(error.value).startswith(f"{place} holds '\\ud")
    assert "write the whole character, or remove it" in str(error.value)
    str(error.value).encode()


@pytest.mark.parametrize(
    "text",
    [
        r'{"const": "\ud83d\ude00"}',
        r'{"title": "\ud800", "default": ["\ud800"], "examples": ["\ud800"], "x-own": "\ud800"}',
        r'{"const": "\\ud800"}',
    ],
)
def test_whole_characters_and_annotations_may_be_written_with_halves(text: str) -> None:
    load(text, LIMITS)
