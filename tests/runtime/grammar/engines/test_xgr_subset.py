"""What reaches xgrammar is what it enforces whole."""

import json

import pytest

from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.grammar.engines.structural import read_structural_tag
from ramet.runtime.grammar.engines.xgr_subset import gbnf_of, xgrammar_of_structural_tag, xgrammar_pattern
from ramet.runtime.protocol import Ebnf, UnsupportedConstraintError
from tests.runtime.grammar.engines.walking import TINY

SPELLINGS = Spellings(TINY)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        (".", r"reads \. differently"),
        (r"\d+", r"reads \\d differently"),
        (r"[\w]", "differently"),
        ("(?i)a", "no flags"),
        ("(a+b?){1,50}", "can hang"),
        ("(a{50}){50}", "1,000 copies"),
    ],
)
def test_patterns_that_it_reads_differently_are_refused(pattern: str, problem: str) -> None:
    with pytest.raises(UnsupportedConstraintError, match=problem):
        xgrammar_pattern(pattern)


def test_patterns_that_it_reads_alike_pass_without_anchors() -> None:
    assert xgrammar_pattern("^[a-z]{2}(x|y)?$").text == "[a-z]{2}(?:x|y)?"


def test_a_document_is_written_as_it_was_read() -> None:
    number = {"type": "json_schema", "json_schema": {"type": "integer"}}
    tag = {"type": "tag", "begin": "<a>", "content": number, "end": "</a>"}
    elements = [
        {"type": "any_text", "excludes": ["x"]},
        {"type": "repeat", "content": {"type": "regex", "pattern": "[0-9]"}, "min": 1, "max": -1},
        {"type": "or", "elements": [{"type": "const_string", "value": "c"}, {"type": "token", "token": 114}]},
        {"type": "grammar", "grammar": 'root ::= "a"', "syntax": "ebnf"},
        {
            "type": "triggered_tags",
            "triggers": ["<"],
            "tags": [tag],
            "at_least_one": False,
            "stop_after_first": False,
            "excludes": [],
        },
        {
            "type": "tags_with_separator",
            "tags": [tag],
            "separator": ",",
            "at_least_one": True,
            "stop_after_first": True,
        },
        {"type": "tag", "begin": {"type": "token", "token": 114}, "content": number, "end": ["a", "b"]},
    ]
    document = {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
    written = xgrammar_of_structural_tag(read_structural_tag(json.dumps(document)), SPELLINGS, 5)
    bounded = json.dumps(document).replace('"integer"}', '"integer"}, "max_whitespace_cnt": 5')
    assert written == json.loads(bounded)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"type": "regex", "pattern": "."}, "differently"),
        ({"type": "grammar", "grammar": 'start: "a"'}, "Lark"),
        (
            {
                "type": "triggered_tags",
                "triggers": ["<"],
                "tags": [{"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": ">"}],
                "at_least_one": True,
            },
            "no text before the first tag",
        ),
        ({"type": "token", "token": 115}, "ends the output"),
        ({"type": "json_schema", "json_schema": {}}, "max_whitespace is 0"),
        (
            {
                "type": "tag",
                "begin": "a",
                "content": {"type": "any_text"},
                "end": ["b", {"type": "token", "token": 114}],
            },
            "several ends",
        ),
    ],
)
def test_what_it_cannot_enforce_is_refused(document: object, problem: str) -> None:
    with pytest.raises(UnsupportedConstraintError, match=problem):
        xgrammar_of_structural_tag(read_structural_tag(json.dumps(document)), SPELLINGS, 0)


def test_grammars_are_gbnf() -> None:
    assert gbnf_of(Ebnf('root ::= "a"')) == 'root ::= "a"'
    with pytest.raises(UnsupportedConstraintError, match="Lark cannot be enforced by xgrammar"):
        gbnf_of(Ebnf('root ::= "a"', syntax="lark"))
    many = "\n".join(["root ::= r0", *(f'r{index} ::= "a"' for index in range(5_000))])
    with pytest.raises(UnsupportedConstraintError, match="5001 rules in GBNF cannot be enforced by xgrammar"):
        gbnf_of(Ebnf(many))
