"""Structural tags as Lark: free text ends where it can be told to end, or the document is refused."""

import json

import pytest

from ramet.runtime.grammar.engines.guidance import schema_policy
from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.grammar.engines.structural import read_structural_tag
from ramet.runtime.grammar.engines.tag_lark import lark_of_structural_tag
from ramet.runtime.protocol import UnsupportedConstraintError
from tests.runtime.grammar.engines.walking import TINY

TEXT = {"type": "any_text"}
NUMBER = {"type": "json_schema", "json_schema": {"type": "integer", "x-guidance": {"lenient": True}}}


def lark(document: object) -> str:
    tag = read_structural_tag(json.dumps(document))
    return lark_of_structural_tag(tag, Spellings(TINY), schema_policy(4))


def test_text_up_to_a_string_is_one_lazy_lexeme() -> None:
    made = lark({"type": "sequence", "elements": [TEXT, {"type": "const_string", "value": "</t>"}, NUMBER]})
    assert 'text_0[lazy]: /(?s:.*)/ "</t>"' in made
    assert "start: text_0 %json" in made


def test_every_schema_has_the_runtimes_options_and_no_other() -> None:
    made = lark(NUMBER)
    assert '"lenient": false' in made
    assert '"lenient": true' not in made
    assert "{1,4}" in made


def test_a_grammar_inside_is_a_grammar_of_its_own() -> None:
    made = json.loads(lark({"type": "grammar", "grammar": 'root ::= "a"'}))
    assert [grammar["name"] for grammar in made["grammars"]] == ["structure", "grammar_0"]
    assert "@grammar_0" in made["grammars"][0]["lark_grammar"]


@pytest.mark.parametrize(
    "document",
    [
        {"type": "sequence", "elements": [TEXT, NUMBER]},
        {"type": "sequence", "elements": [{"type": "regex", "pattern": "a*"}, NUMBER]},
        {"type": "star", "content": TEXT},
        {"type": "sequence", "elements": [{"type": "or", "elements": [TEXT, NUMBER]}, NUMBER]},
        {"type": "tag", "begin": "<", "content": TEXT, "end": ["", ">"]},
        {
            "type": "sequence",
            "elements": [
                {
                    "type": "triggered_tags",
                    "triggers": ["<"],
                    "tags": [{"type": "tag", "begin": "<", "content": NUMBER, "end": ">"}],
                },
                NUMBER,
            ],
        },
        {"type": "token", "token": 115},
        {"type": "regex", "pattern": "(?=a)"},
    ],
)
def test_what_cannot_be_told_apart_is_refused(document: object) -> None:
    with pytest.raises(UnsupportedConstraintError, match=r"cannot be enforced|ends the output"):
        lark(document)
