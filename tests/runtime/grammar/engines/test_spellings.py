"""What stands for control tokens, and which tokens end the output."""

import pytest

from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.protocol import UnsupportedConstraintError
from ramet.runtime.tokenizer import ByteTokenizer, FastTokenizer
from tests.runtime.grammar.engines.walking import CONTROL, STOP, TINY
from tests.runtime.grammar.fakes import ListVocabulary


def test_control_tokens_spell_nothing_and_have_names() -> None:
    spellings = Spellings(TINY)
    assert spellings.control_tokens == {114: "<|114|>", 115: "<|115|>", 116: "<|116|>"}
    assert spellings.plain[114:] == [b"", b"", b""]
    assert spellings.stop_token_ids == (STOP,)
    assert spellings.control_token(CONTROL) == spellings.control_token("<|114|>") == 114


def test_bytes_that_no_text_has_are_no_text() -> None:
    assert Spellings(ListVocabulary([b"a", b"\xff", b"x\xfe", None], [3])).plain == [b"a", b"", b"", b""]


def test_a_real_tokenizer_names_its_control_tokens(smollm2: FastTokenizer) -> None:
    spellings = Spellings(smollm2)
    assert spellings.control_tokens[1] == "<|im_start|>"
    assert spellings.control_token("<|im_start|>") == 1
    assert spellings.num_words * 32 >= smollm2.vocab_size
    with pytest.raises(UnsupportedConstraintError, match="ends the output"):
        spellings.control_token("<|im_end|>")


@pytest.mark.parametrize("name", ["<think>", 5, -1, 10**9, None, 1.5, True])
def test_what_is_no_control_token_is_refused(name: object) -> None:
    with pytest.raises(UnsupportedConstraintError, match="is no control token"):
        Spellings(TINY).control_token(name)


def test_padding_of_the_vocabulary_is_never_text() -> None:
    spellings = Spellings(ByteTokenizer(vocab_size=300))
    assert spellings.num_words == 10
    assert 299 in spellings.control_tokens


def test_without_a_stop_token_nothing_could_end() -> None:
    with pytest.raises(UnsupportedConstraintError, match="no stop token"):
        _ = Spellings(ListVocabulary([b"a"], [])).stop_token_ids
