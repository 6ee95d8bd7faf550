"""check_text: what is not text is named by its field, its code and its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.tokenizer.unicode_text import check_text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_passes(text: str) -> None:
    check_text(text, "prompt")


@given(
    before=st.text(st.characters(exclude_categories=["Cs"])),
    surrogate=st.integers(0xD800, 0xDFFF),
    after=st.text(),
)
def test_the_first_lone_surrogate_is_named(before: str, surrogate: int, after: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        check_text(before + chr(surrogate) + after, "prompts[3]")
    assert error.value.field == "prompts[3]"
    said = f"prompts[3] has the lone surrogate U+{surrogate:04X} at character {len(before)}, "
    assert str(error.value).startswith(said)
    assert "remove or replace it" in str(error.value)


def test_a_pair_of_surrogates_is_no_character() -> None:
    with pytest.raises(InvalidRequestError, match=r"U\+D83D at character 0"):
        check_text("\ud83d\ude42", "prompt")
    check_text("🙂\x00\ufffd\uffff\U0010ffff", "prompt")
