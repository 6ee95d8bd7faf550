"""What tokens spell, against the `tokenizers` library's decoders and GPT-2's published alphabet."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, pre_tokenizers

from ramet.runtime.tokenizer.spelling import WORD_BOUNDARY, Spelling, byte_alphabet

BYTE_LEVEL = Spelling("byte_level")
SENTENCEPIECE = Spelling("sentencepiece", byte_fallback=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


class TestByteLevel:
    def test_the_alphabet_is_the_librarys(self) -> None:
        alphabet = byte_alphabet()
        assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
        assert sorted(alphabet.values()) == list(range(256))
        assert (alphabet["A"], alphabet["Ġ"], alphabet["Ċ"], alphabet["ÿ"]) == (65, 0x20, 0x0A, 0xFF)

    @given(TEXT)
    def test_what_the_library_writes_spells_the_text(self, text: str) -> None:
        written = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        assert b"".join(BYTE_LEVEL.token_bytes(token) for token, _ in written) == text.encode()

    @given(st.lists(st.sampled_from([*sorted(byte_alphabet()), "漢", " ", "🙂"]), min_size=1, max_size=6))
    def test_any_token_decodes_as_in_the_library(self, characters: list[str]) -> None:
        token = "".join(characters)
        expected = decoders.ByteLevel().decode([token])
        assert BYTE_LEVEL.token_bytes(token).decode("utf-8", errors="replace") == expected

    def test_every_byte_alone(self) -> None:
        for character, byte in byte_alphabet().items():
            assert BYTE_LEVEL.token_bytes(character) == bytes([byte])

    def test_a_token_outside_the_alphabet_is_its_own_text(self) -> None:
        assert BYTE_LEVEL.token_bytes("Ġ漢") == "Ġ漢".encode()
        assert BYTE_LEVEL.token_bytes("a b") == b"a b"
        assert BYTE_LEVEL.token_bytes("<0x0A>") == b"<0x0A>"
        assert BYTE_LEVEL.token_bytes("") == b""


class TestSentencePiece:
    @given(st.text(st.sampled_from(f"{WORD_BOUNDARY}ab漢<0x>A🙂 "), min_size=1, max_size=8))
    def test_any_token_decodes_as_in_the_library(self, token: str) -> None:
        library = decoders.Sequence([decoders.Replace(WORD_BOUNDARY, " "), decoders.ByteFallback()])
        expected = library.decode([token])
        assert SENTENCEPIECE.token_bytes(token).decode("utf-8", errors="replace") == expected

    @pytest.mark.parametrize("form", ["<0x{:02X}>", "<0x{:02x}>"])
    def test_byte_pieces(self, form: str) -> None:
        for byte in range(256):
            assert SENTENCEPIECE.token_bytes(form.format(byte)) == bytes([byte])

    def test_without_byte_fallback_a_byte_piece_is_text(self) -> None:
        assert Spelling("sentencepiece").token_bytes("<0x0A>") == b"<0x0A>"

    @pytest.mark.parametrize(
        "token", ["<0x0>", "<0x0AA>", "<0xGG>", " <0x0A>", "<0x0A>\n", "<0X0A>", "<0x٠٠>", "<0x0A"]
    )
    def test_what_only_looks_like_a_byte_piece_is_text(self, token: str) -> None:
        assert SENTENCEPIECE.token_bytes(token) == token.encode()

    def test_boundaries_are_spaces_wherever_they_stand(self) -> None:
        assert SENTENCEPIECE.token_bytes("▁▁a▁") == b"  a "
        assert SENTENCEPIECE.token_bytes("▁") == b" "
        assert SENTENCEPIECE.token_bytes("_") == b"_"


@pytest.mark.parametrize("alphabet", ["byte_level", "sentencepiece"])
def test_survives_the_disk(alphabet: str) -> None:
    spelling = msgspec.convert({"alphabet": alphabet, "leading_space": True}, Spelling)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spelling), type=Spelling) == spelling


def test_an_unknown_alphabet_is_refused_when_read() -> None:
    with pytest.raises(msgspec.ValidationError, match="alphabet"):
        msgspec.convert({"alphabet": "unigram"}, Spelling)
