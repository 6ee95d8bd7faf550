"""Private text: drawn anew, untouched by what templates and normalisers do, apart from numbered characters."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from ramet.runtime.tokenizer.private_text import number_of, numbered_character, private_text

COUNT = 65_534


def test_every_call_draws_anew() -> None:
    texts = [private_text() for _ in range(500)]
    assert len(set(texts)) == len(texts)
    assert {len(text) for text in texts} == {12}
    # 6,000 draws of 6,400 characters: the whole range is drawn from.
    assert len(set("".join(texts))) > 3_000


def test_its_characters_are_those_of_the_private_use_area() -> None:
    drawn = set("".join(private_text() for _ in range(200)))
    assert all(0xE000 <= ord(character) < 0xF900 for character in drawn)
    assert {unicodedata.category(character) for character in drawn} == {"Co"}


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_normalisation_changes_nothing(form: str) -> None:
    text = private_text() + "".join(numbered_character(i) for i in (0, 1, 777, COUNT - 1))
    assert unicodedata.normalize(form, text) == text  # type: ignore[arg-type]
    assert getattr(normalizers, form)().normalize_str(text) == text


def test_what_templates_do_to_text_changes_nothing() -> None:
    text = private_text() + numbered_character(5)
    for changed in (text.strip(), text.upper(), text.lower(), text.title(), text.casefold(), text.capitalize()):
        assert changed == text
    assert json.dumps(text, ensure_ascii=False) == f'"{text}"'
    assert text.split() == text.splitlines() == [text]


@given(st.integers(0, COUNT - 1))
def test_numbers_come_back(number: int) -> None:
    character = numbered_character(number)
    assert len(character) == 1
    assert number_of(character) == number
    assert unicodedata.category(character) == "Co"


def test_numbered_characters_differ_from_each_other_and_from_private_text() -> None:
    numbered = {numbered_character(number) for number in range(COUNT)}
    assert len(numbered) == COUNT
    assert not numbered & {chr(code) for code in range(0xE000, 0xF900)}
