"""ByteTokenizer, the shipped fake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.tokenizer import ByteTokenizer, encode_chat


@given(text=st.text(max_size=30))
def test_text_is_its_bytes(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens() -> None:
    tokenizer = ByteTokenizer(add_bos=True)
    assert tokenizer.encode("a</s>", add_bos=True, allow_special=True) == [256, 97, 257]
    assert tokenizer.encode("<s>a", add_bos=True, allow_special=True) == [256, 97]
    assert tokenizer.encode("</s>") == list(b"</s>")
    assert tokenizer.decode([97, 257], skip_special_tokens=False) == "a</s>"
    assert tokenizer.stop_token_ids == (257,)
    assert tokenizer.token_bytes(256) is None
    assert tokenizer.id_to_token(65) == "<0x41>"


def test_chat() -> None:
    ids = encode_chat(ByteTokenizer(), [{"role": "user", "content": "hi</s>"}])
    assert ids == [*b"user: hi</s>", 257, *b"\nassistant: "]


def test_padding() -> None:
    tokenizer = ByteTokenizer(vocab_size=300)
    assert tokenizer.decode([299], skip_special_tokens=False) == ""
    with pytest.raises(InvalidRequestError, match="300"):
        tokenizer.decode([300])
    with pytest.raises(InvalidRequestError, match="at least 258"):
        ByteTokenizer(vocab_size=100)
