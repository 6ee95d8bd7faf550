"""Whatever the chunks, the pieces concatenate to what decode gives for the whole."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.tokenizer import ByteTokenizer, FastTokenizer, IncrementalDetokenizer, Tokenizer


def stream(
    tokenizer: Tokenizer, chunks: list[list[int]], *, skip: bool = True, at_start: bool = True
) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip, at_start=at_start)
    return [*(detokenizer.push(chunk) for chunk in chunks), detokenizer.flush()]


def cut(ids: list[int], places: list[int]) -> list[list[int]]:
    borders = [0, *sorted(place % (len(ids) + 1) for place in places), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(borders)]


@pytest.mark.parametrize("name", ["smollm2", "gemma"])
@given(data=st.data(), skip=st.booleans())
def test_real_vocabularies(name: str, request: pytest.FixtureRequest, data: st.DataObject, skip: bool) -> None:
    tokenizer: FastTokenizer = request.getfixturevalue(name)
    # Byte tokens and special ones are rare among all ids, and they are what matters.
    ids = st.one_of(st.integers(0, tokenizer.vocab_size - 1), st.integers(0, 500))
    token_ids = data.draw(st.lists(ids, max_size=20))
    whole = tokenizer.decode(token_ids, skip_special_tokens=skip)
    chunks = cut(token_ids, data.draw(st.lists(st.integers(0, 20), max_size=6)))
    assert "".join(stream(tokenizer, chunks, skip=skip)) == whole
    assert "".join(stream(tokenizer, [[i] for i in token_ids], skip=skip)) == whole


@given(data=st.binary(max_size=16), places=st.lists(st.integers(0, 16), max_size=5))
def test_any_bytes(data: bytes, places: list[int]) -> None:
    """Invalid UTF-8 becomes the same replacement characters as in one piece."""
    pieces = stream(ByteTokenizer(), cut(list(data), places))
    assert "".join(pieces) == data.decode("utf-8", errors="replace") == ByteTokenizer().decode(data)


def test_a_character_comes_whole(smollm2: FastTokenizer) -> None:
    for text in ("Žluťoučký ď", "🙂👩‍👩‍👧🇨🇿", "漢字"):
        pieces = stream(smollm2, [[i] for i in smollm2.encode(text)])
        assert "".join(pieces) == text
        assert not any("\ufffd" in piece for piece in pieces)


def test_an_incomplete_character_at_the_end() -> None:
    assert stream(ByteTokenizer(), [[0x61, 0xF0], [0x9F], [0x99]]) == ["a", "", "", "\ufffd"]


def test_special_tokens() -> None:
    assert stream(ByteTokenizer(), [[0x61, 257], [0x62]]) == ["a", "b", ""]
    assert stream(ByteTokenizer(), [[0x61, 257], [0x62]], skip=False) == ["a</s>", "b", ""]


def test_an_id_out_of_range() -> None:
    with pytest.raises(InvalidRequestError, match="258"):
        stream(ByteTokenizer(), [[258]])
    with pytest.raises(InvalidRequestError, match="-1"):
        stream(ByteTokenizer(), [[-1]])
