"""How calls are spelled: the template's own form is found, used where it can be held, and read back."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.lang.backends.base import ToolCall, ToolOffer, ToolSpec
from ramet.lang.backends.tool_dialect import (
    JsonDialect,
    TemplateDialect,
    ToolDialect,
    dialect_of,
    tool_calls,
)
from ramet.lang.errors import GenerationError
from ramet.runtime.grammar.engines.structural import TriggeredTags, read_structural_tag
from ramet.runtime.protocol import JsonSchema, StructuralTag
from tests.lang.backends.small_tokenizer import CHATML, small_tokenizer
from tests.lang.backends.tool_templates import CONTROL_TOKEN, HERMES, LLAMA_TOOLS, XML

HERMES_DIALECT = TemplateDialect('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
LLAMA_DIALECT = TemplateDialect('{"name": "', '", "parameters": ', "}")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = (ToolSpec(name="add", parameters=SCHEMA), ToolSpec(name="sub", parameters=SCHEMA))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (HERMES, HERMES_DIALECT),
        (LLAMA_TOOLS, LLAMA_DIALECT),
        (XML, JsonDialect()),
        (CONTROL_TOKEN, JsonDialect()),
        (CHATML, JsonDialect()),
    ],
)
def test_the_templates_own_form(template: str, expected: object) -> None:
    assert dialect_of(small_tokenizer(template), structural_tags=True) == expected
    assert dialect_of(small_tokenizer(template), structural_tags=False) == JsonDialect()


@pytest.mark.parametrize("dialect", [HERMES_DIALECT, LLAMA_DIALECT, JsonDialect()])
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "sub"]), st.dictionaries(st.text(max_size=5), st.text(max_size=9))),
        min_size=1,
        max_size=1,
    )
)
def test_what_is_spelled_is_read(dialect: Any, made: list[tuple[str, dict[str, str]]]) -> None:
    calls = tool_calls([(name, json.dumps(arguments)) for name, arguments in made], 3)
    text, read = dialect.read(dialect.spell(calls))
    assert text == ""
    assert [(name, json.loads(arguments)) for name, arguments in read] == made


def test_several_calls_and_text_around_them() -> None:
    calls = tool_calls([("add", '{"a": 1}'), ("sub", '{"a": "}\\n</tool_call>"}')], 2)
    assert [call.id for call in calls] == ["call_2_0", "call_2_1"]
    text, read = HERMES_DIALECT.read("Let me see.\n" + HERMES_DIALECT.spell(calls))
    assert text == "Let me see."
    assert read == [("add", '{"a": 1}'), ("sub", '{"a": "}\\n</tool_call>"}')]
    assert HERMES_DIALECT.read(" no call ") == (" no call ", [])
    nested = '{"a": {"name": "add", "parameters": {}}}'
    assert LLAMA_DIALECT.read(LLAMA_DIALECT.spell(tool_calls([("sub", nested)], 1))) == ("", [("sub", nested)])
    assert JsonDialect().read('{"answer": "7"}') == ("7", [])


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        (HERMES_DIALECT, 'Hm. <tool_call>\n{"name": "ad'),
        (HERMES_DIALECT, '<tool_call>\n{"name": "add", "arguments": {"a": '),
        (JsonDialect(), '{"name": "add", "arg'),
    ],
)
def test_a_call_that_was_cut_is_named(dialect: Any, text: str) -> None:
    with pytest.raises(GenerationError, match="is not whole; raise max_tokens"):
        dialect.read(text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"answer": "It is', "It is"),
        ('{ "answer" :"a \\"b\\" \\u00e9 \\', 'a "b" é '),
        ('{"answer":"x\\ud83c', "x"),
        ('{"answer":"x\\ud83c\\udf4b"', "x🍋"),
    ],
)
def test_of_an_answer_that_was_cut_there_is_what_there_is(text: str, answer: str) -> None:
    assert JsonDialect().read(text) == (answer, [])


@pytest.mark.parametrize(("dialect", "choice"), [(HERMES_DIALECT, "auto"), (LLAMA_DIALECT, "required")])
def test_the_grammar_of_a_form_is_one_that_engines_take(dialect: TemplateDialect, choice: str) -> None:
    tag = dialect.grammar(ToolOffer(tools=TOOLS, choice=choice))
    assert isinstance(tag, StructuralTag)
    root = read_structural_tag(tag.spec).root
    assert isinstance(root, TriggeredTags)
    assert (root.triggers, len(root.tags), root.at_least_one) == ((dialect.opening,), 2, choice != "auto")


def names_in(grammar: object) -> set[str]:
    text = grammar.schema if isinstance(grammar, JsonSchema) else getattr(grammar, "spec", "")
    return {name for name in ("add", "sub", "answer") if f'"{name}"' in text or f'"name\\": \\"{name}' in text}


def test_the_choice_says_what_may_be_called() -> None:
    expected = {
        "auto": {"add", "sub", "answer"},
        "required": {"add", "sub"},
        "sub": {"sub"},
        "none": {"answer"},
    }
    for choice, names in expected.items():
        offer = ToolOffer(tools=TOOLS, choice=choice)
        assert names_in(JsonDialect().grammar(offer)) == names
        tag = HERMES_DIALECT.grammar(offer)
        if choice == "none":
            assert tag is None
            continue
        assert isinstance(tag, StructuralTag)
        format = json.loads(tag.spec)["format"]
        assert format["at_least_one"] == (choice != "auto")
        assert format["triggers"] == ['<tool_call>\n{"name": "']
        assert {item["begin"].split('"')[3] for item in format["tags"]} == names - {"answer"}


def test_ids_are_of_their_round() -> None:
    assert tool_calls([("f", "{}")], 1) == (ToolCall(id="call_1_0", name="f", arguments="{}"),)


def read_in_pieces(dialect: ToolDialect, text: str, cuts: list[int]) -> tuple[list[str], list[tuple[str, str]]]:
    reader = dialect.reader()
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    given = [reader.push(text[begin:end]) for begin, end in pairwise(edges)]
    rest, calls = reader.finish()
    return [*given, rest], calls


ANSWERS = st.text(st.sampled_from('ab <>\\"/\n\u00e9\U0001f34b{}_tol'), max_size=30)


@given(ANSWERS, st.booleans(), st.lists(st.integers(0, 400), max_size=12))
def test_what_is_streamed_of_an_answer_in_json_is_what_is_read(text: str, ascii: bool, cuts: list[int]) -> None:
    spelled = json.dumps({"answer": text}, ensure_ascii=ascii)
    given, calls = read_in_pieces(JsonDialect(), spelled, cuts)
    assert ("".join(given), calls) == JsonDialect().read(spelled) == (text, [])
    # Cut by max_tokens.
    cut = spelled[: len('{"answer": "') + len(text) // 2]
    given, calls = read_in_pieces(JsonDialect(), cut, cuts)
    assert ("".join(given), calls) == JsonDialect().read(cut)


@given(ANSWERS, st.booleans(), ANSWERS, st.lists(st.integers(0, 400), max_size=12))
def test_what_is_streamed_of_a_free_answer_is_what_is_read(
    text: str, calls: bool, more: str, cuts: list[int]
) -> None:
    spelled = text
    if calls:
        spelled += HERMES_DIALECT.spell(tool_calls([("add", '{"a": 1}')], 0)) + more
    given, found = read_in_pieces(HERMES_DIALECT, spelled, cuts)
    assert ("".join(given), found) == HERMES_DIALECT.read(spelled)


def test_an_answer_comes_as_soon_as_it_is_certain() -> None:
    reader = JsonDialect().reader()
    pieces = ['{"ans', 'wer": "It is', " \\u00e", "9\\", 'n3", \\ud83c', '"}']
    given = []
    for piece in pieces:
        given.append((reader.push(piece), reader.is_answer))
    assert given == [("", False), ("It is", True), (" ", True), ("\u00e9", True), ("\n3", True), ("", True)]
    reader = HERMES_DIALECT.reader()
    assert [reader.push(piece) for piece in ("Hm", ". <", "b> ", "<tool", "_call>\n{")] == [
        *("Hm", ".", " <b>", "", ""),
    ]
    assert not reader.is_answer


def test_of_a_call_nothing_is_streamed() -> None:
    reader = JsonDialect().reader()
    assert [reader.push(piece) for piece in ('{"name": "add', '", "arguments": {"answer": "x"}}')] == ["", ""]
    assert not reader.is_answer
    assert reader.finish() == ("", [("add", '{"answer": "x"}')])


def test_half_a_character_is_no_text() -> None:
    assert JsonDialect().read('{"answer": "a\\ud83cb"}') == ("ab", [])
    given, _ = read_in_pieces(JsonDialect(), '{"answer": "a\\ud83cb"}', [13, 16, 19])
    assert "".join(given) == "ab"
