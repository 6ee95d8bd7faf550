"""Classes of a pattern that seem to have every character: none lets a quote, a raw control character or half of
a surrogate pair into a string of JSON, and what it leaves out stays out in every spelling."""

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar import CompiledGrammar
from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.protocol import Ebnf, JsonSchema, Regex, UnsupportedConstraintError
from ramet.runtime.tokenizer.byte_tokenizer import ByteTokenizer
from tests.runtime.grammar.engines.walking import takes

CLASSES = [
    r'[^"]', r"[^a]", r"[^\\]", r'[^"\\]', r"[^\n]", r"[^\x00-\x1f]", r"[^\x20-\x7e]", r"[^ -~]",
    r"[^\ud800-\udfff]", r"[^b-z]", r"\W", r"\D", r"\S", r"\s", r".", r"[\s\S]", r"[\d\D]", r"[\x00-\x7f]",
    r"[\x00-\uffff]", r"[!-~]", r'["]', r"[\\]", r"[\x01-\x1f]", r"[^\u0080-\uffff]", r"(?!a)[^\"]",
]  # fmt: skip
CHARACTERS = [
    *map(chr, range(0x21)), '"', "\\", "/", "a", "b", "Z", "_", "0", "~", "\x7f", "\x80", "\x9f", "\xa0", "é",
    "\u2028", "\ufeff", "\uffff", "\U0001f600", "\ud800", "\udbff", "\udc00", "\udfff",
]  # fmt: skip
SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\", "/": "\\/"}
BYTES = ByteTokenizer()
ECMA_SPACE = "\t\n\v\f\r \xa0\u2028\u2029\ufeff"


def spellings(character: str) -> list[str]:
    """All ways to write it in a string of JSON, and those that are none."""
    units = character.encode("utf-16-be", "surrogatepass")
    numbers = [int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)]
    escaped = ["".join(f"\\u{number:04{case}}" for number in numbers) for case in "xX"]
    return [character, *escaped, *([SHORT[character]] if character in SHORT else [])]


def in_class(text: str, character: str) -> bool:
    """In the sense of ECMA-262, with the flag u."""
    if text == r"\s":
        return character in ECMA_SPACE
    if text == r"\S":
        return character not in ECMA_SPACE
    if text == ".":
        return character not in "\n\r\u2028\u2029"
    return re.fullmatch(text, character, re.ASCII) is not None


def taken_by(compiled: CompiledGrammar) -> Callable[[bytes], bool]:
    return lambda text: takes(compiled, list(text), BYTES)


@pytest.fixture(scope="module")
def byte_router() -> EngineRouter:
    return EngineRouter(BYTES)


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
@pytest.mark.parametrize("text", CLASSES)
def test_a_class_in_a_string_of_json(byte_router: EngineRouter, text: str, backend: str) -> None:
    schema = {"type": "string", "pattern": f"^{text}$"}
    try:
        ok = taken_by(byte_router.compile(JsonSchema(json.dumps(schema), backend)))
    except UnsupportedConstraintError:
        assert backend == "xgrammar" or "\\ud800" in text
        return
    for character in CHARACTERS:
        taken = [form for form in spellings(character) if ok(encoded(f'"{form}"'))]
        is_half = "\ud800" <= character <= "\udfff"
        for form in taken:
            assert json.loads(f'"{form}"') == character
            assert not is_half
            assert in_class(text, character), (text, form)
        if in_class(text, character) and not is_half and character != "\0":
            assert taken, (text, character)


@pytest.mark.parametrize("text", CLASSES)
def test_a_class_in_a_text(byte_router: EngineRouter, text: str) -> None:
    try:
        ok = taken_by(byte_router.compile(Regex(text)))
    except UnsupportedConstraintError:
        return
    for character in CHARACTERS:
        if "\ud800" <= character <= "\udfff":
            assert not ok(encoded(character))


@pytest.mark.parametrize("text", [r"[^a]", r"[^\\x00-\\x1f]", "."])
def test_a_class_in_a_grammar(byte_router: EngineRouter, text: str) -> None:
    ok = taken_by(byte_router.compile(Ebnf(f"root ::= {text}", "gbnf")))
    for character in ("\ud800", "\udfff"):
        assert not ok(encoded(character))


@given(st.sampled_from(CLASSES), st.text(st.sampled_from(CHARACTERS), max_size=4), st.booleans())
def test_repeated_classes_let_no_invalid_text_through(
    byte_router: EngineRouter, text: str, characters: str, ascii: bool
) -> None:
    schema = {"type": "string", "pattern": f"^{text}*$"}
    try:
        ok = taken_by(byte_router.compile(JsonSchema(json.dumps(schema))))
    except UnsupportedConstraintError:
        return
    for form in (json.dumps(characters, ensure_ascii=ascii), f'"{characters}"'):
        if ok(encoded(form)):
            value = json.loads(form)
            assert not re.search("[\ud800-\udfff]", value)
            assert all(in_class(text, character) for character in value)
