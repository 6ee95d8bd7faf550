"""spec_from_gguf against transformers, against SentencePiece's rule, and on damaged metadata."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ramet.runtime.protocol import ModelLoadError
from ramet.runtime.tokenizer import FastTokenizer, TokenizerSpec, spec_from_gguf
from ramet.runtime.tokenizer.spelling import byte_alphabet

TEXTS = [
    "",
    " ",
    "Hello world",
    "  two  spaces,\n\nnew lines\r\n\tand tabs ",
    "I'll say it isn't O'Neil's",
    "Žluťoučký kůň — naïve café… 漢字かな",
    "🙂👩‍👩‍👧 \u0301\u200d",
    "<table><tr><td>x</td></tr></table>",
    "def f(x):\n    return {'a': x}\n",
]


class TestSmolLM2:
    def test_fields(self, smollm2_spec: TokenizerSpec) -> None:
        assert smollm2_spec.vocab_size == smollm2_spec.num_tokens == 49152
        assert smollm2_spec.bos_id == 1
        assert smollm2_spec.eos_id == 2
        assert smollm2_spec.eos_token_ids == (2, 0)
        assert smollm2_spec.special_token_ids == tuple(range(17))
        assert not smollm2_spec.add_bos
        assert smollm2_spec.chat_template is not None
        assert smollm2_spec.special_token_names["eos_token"] == "<|im_end|>"

    def test_digits_are_split_one_by_one(self, smollm2: FastTokenizer) -> None:
        ids = smollm2.encode("In 2024, 3.14159 and x²½")
        pieces = [smollm2.token_bytes(i) for i in ids]
        digits = [piece for piece in pieces if piece is not None and any(48 <= byte < 58 for byte in piece)]
        assert digits == [digit.encode() for digit in "2024314159"]
        assert b" " in pieces  # the space before a number stays alone, as it cannot join the digit
        assert smollm2.decode(ids) == "In 2024, 3.14159 and x²½"

    @pytest.mark.slow
    def test_equals_transformers_without_digits(self, smollm2: FastTokenizer, smollm2_path: Path) -> None:
        """transformers ignores the file's pre-tokenizer, and so is right only where no digit occurs."""
        from transformers import AutoTokenizer

        oracle = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
        for text in TEXTS:
            assert smollm2.encode(text) == oracle.encode(text, add_special_tokens=False), text


class TestGemma:
    def test_fields(self, gemma_spec: TokenizerSpec) -> None:
        assert gemma_spec.bos_id == 2
        assert gemma_spec.add_bos
        assert gemma_spec.eos_token_ids == (1, 106)
        assert gemma_spec.spelling.byte_fallback
        assert not gemma_spec.spelling.leading_space
        assert gemma_spec.chat_template is None

    def test_known_tokens(self, gemma: FastTokenizer) -> None:
        def pieces(text: str) -> list[bytes | None]:
            return [gemma.token_bytes(i) for i in gemma.encode(text)]

        assert pieces("Hello  world") == [b"Hello", b"  ", b"world"]
        assert pieces("a\n\n\nb <b>") == [b"a", b"\n\n\n", b"b", b" ", b"<b>"]
        assert pieces("2024") == [b"2", b"0", b"2", b"4"]

    def test_merges_as_sentencepiece_does(
        self, gemma: FastTokenizer, gemma_fields: Mapping[str, object]
    ) -> None:
        oracle = _SentencePieceOracle(gemma_fields)
        rng = random.Random(0)
        words = [word for text in TEXTS for word in text.split()] + [
            "interoperability",
            "Donaudampfschiff",
            "ñandú",
        ]
        for _ in range(150):
            text = " ".join(rng.choice(words) for _ in range(rng.randrange(1, 8)))
            if not any(symbol in text for symbol in oracle.user_defined):
                assert gemma.encode(text) == oracle.encode(text), text

    def test_rare_characters_fall_back_to_bytes(self, gemma: FastTokenizer) -> None:
        ids = gemma.encode("\U0001f9ff\U00013000\x00")
        assert gemma.decode(ids) == "\U0001f9ff\U00013000\x00"
        assert any(gemma.id_to_token(i) == "<0x00>" for i in ids)


class _SentencePieceOracle:
    """The rule itself, slowly: merge the adjacent pair whose union has the best score, leftmost first."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        tokens: Sequence[str] = fields["tokenizer.ggml.tokens"]
        types: Sequence[int] = fields["tokenizer.ggml.token_type"]
        self.id_of = {token: i for i, token in enumerate(tokens)}
        self.scores: Sequence[float] = fields["tokenizer.ggml.scores"]
        self.normal = {token for token, kind in zip(tokens, types, strict=True) if kind == 1}
        self.user_defined = [token for token, kind in zip(tokens, types, strict=True) if kind == 4]

    def encode(self, text: str) -> list[int]:
        symbols = list(text.replace(" ", "▁"))
        while True:
            best = None
            for i in range(len(symbols) - 1):
                union = symbols[i] + symbols[i + 1]
                if union in self.normal and (best is None or self.scores[self.id_of[union]] > best[0]):
                    best = (self.scores[self.id_of[union]], i)
            if best is None:
                break
            symbols[best[1] : best[1] + 2] = [symbols[best[1]] + symbols[best[1] + 1]]
        ids = []
        for symbol in symbols:
            if symbol in self.normal:
                ids.append(self.id_of[symbol])
            else:
                ids += [self.id_of[f"<0x{byte:02X}>"] for byte in symbol.encode()]
        return ids


def test_a_spec_survives_the_disk(
    smollm2: FastTokenizer, smollm2_spec: TokenizerSpec, gemma_spec: TokenizerSpec
) -> None:
    for spec in (smollm2_spec, gemma_spec):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=TokenizerSpec) == spec
    after = FastTokenizer(msgspec.msgpack.decode(msgspec.msgpack.encode(smollm2_spec), type=TokenizerSpec))
    for text in TEXTS:
        assert after.encode(text) == smollm2.encode(text)
    assert after.chat_template.render([{"role": "user", "content": "x"}]).endswith("assistant\n")


@pytest.mark.parametrize("name", ["smollm2", "gemma"])
@given(text=st.text(max_size=60))
def test_text_comes_back(name: str, request: pytest.FixtureRequest, text: str) -> None:
    tokenizer: FastTokenizer = request.getfixturevalue(name)
    assume(name == "gemma" or not set(text.encode()) & UNSPELLABLE_BY_SMOLLM2)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes(i) or b"" for i in ids) == text.encode()
    assert not set(ids) & set(tokenizer.spec.special_token_ids)


UNSPELLABLE_BY_SMOLLM2 = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}


def test_bytes_without_a_token_are_left_out(smollm2: FastTokenizer) -> None:
    """As llama.cpp and transformers do; SmolLM2's vocabulary lacks a few control characters and unused
    planes."""
    spelled = {piece[0] for i in range(49152) if (piece := smollm2.token_bytes(i)) and len(piece) == 1}
    assert spelled == set(range(256)) - UNSPELLABLE_BY_SMOLLM2
    assert smollm2.decode(smollm2.encode("a\x04b")) == "ab"


def _tiny_bpe_fields(**changes: object) -> dict[str, object]:
    alphabet = list(byte_alphabet())
    tokens = [*alphabet, "ab", "abc", "<|im_end|>", "<tool>", "[PAD]"]
    fields: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 258 + [3, 4, 5],
        "tokenizer.ggml.merges": ["a b", "ab c"],
        "tokenizer.ggml.eos_token_id": 258,
    }
    fields.update({f"tokenizer.ggml.{name}": value for name, value in changes.items()})
    return {key: value for key, value in fields.items() if value is not None}


def _tiny_spm_fields(**changes: object) -> dict[str, object]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]
    fields: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *([6] * 256), *([1] * 6)],
        "tokenizer.ggml.scores": [0.0] * 259 + [-4.0, -5.0, -6.0, -2.0, -1.0, -3.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    fields.update({f"tokenizer.ggml.{name}": value for name, value in changes.items()})
    return {key: value for key, value in fields.items() if value is not None}


class TestTinyBytePairs:
    def test_token_types(self) -> None:
        tokenizer = FastTokenizer(spec_from_gguf(_tiny_bpe_fields()))
        assert [tokenizer.id_to_token(i) for i in tokenizer.encode("abcab")] == ["abc", "ab"]
        assert tokenizer.encode("<tool>") == [259]  # user defined: always a token
        assert 258 not in tokenizer.encode("<|im_end|>")  # control: only where that is allowed
        assert tokenizer.encode("<|im_end|>", allow_special=True) == [258]
        assert tokenizer.token_bytes(258) is None
        assert tokenizer.token_bytes(259) == b"<tool>"
        assert tokenizer.token_bytes(260) is None  # unused
        assert tokenizer.decode([257, 260, 258]) == "abc"

    def test_types_may_be_absent(self) -> None:
        tokenizer = FastTokenizer(spec_from_gguf(_tiny_bpe_fields(token_type=None)))
        assert tokenizer.spec.special_token_ids == ()

    def test_end_of_turn_marked_as_text_is_control(self) -> None:
        spec = spec_from_gguf(_tiny_bpe_fields(token_type=[1] * 258 + [4, 4, 5], eos_token_id=None))
        assert spec.eos_token_ids == (258,)
        assert spec.special_token_ids == (258,)

    def test_named_templates(self) -> None:
        fields = _tiny_bpe_fields() | {
            "tokenizer.chat_template": "plain",
            "tokenizer.chat_template.tool_use": "with tools",
        }
        spec = spec_from_gguf(fields)
        assert spec.chat_template == "plain"
        assert spec.named_chat_templates == {"tool_use": "with tools"}

    def test_empty_tokens_are_padding(self) -> None:
        tokens = [*byte_alphabet(), "ab", "abc", "<|im_end|>", "", ""]
        spec = spec_from_gguf(_tiny_bpe_fields(tokens=tokens))
        assert FastTokenizer(spec).decode([259, 260]) == ""

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"model": "t5"}, "tokenizer.ggml.model is 't5'"),
            ({"model": None}, "tokenizer.ggml.model is None"),
            ({"pre": "klingon"}, "'klingon'"),
            ({"tokens": None}, "no tokenizer.ggml.tokens"),
            ({"tokens": "abc"}, "not an array"),
            ({"merges": None}, "no tokenizer.ggml.merges"),
            ({"merges": ["ab"]}, "'ab'"),
            ({"merges": ["a zz"]}, "'a zz'"),
            ({"merges": ["a c"]}, "'a c'"),
            ({"token_type": [1]}, "1 entries for 261"),
            ({"eos_token_id": 5000}, "tokenizer.ggml.eos_token_id is 5000"),
            ({"eos_token_id": "two"}, "'two'"),
            ({"tokens": [*byte_alphabet(), "ab", "abc", "xx", "xx", "y"]}, "'xx' twice (ids 258 and 259)"),
        ],
    )
    def test_damage_is_named(self, changes: dict[str, object], said: str) -> None:
        with pytest.raises(ModelLoadError) as error:
            spec_from_gguf(_tiny_bpe_fields(**changes))
        assert said in str(error.value)


class TestTinySentencePiece:
    def test_dummy_prefix(self) -> None:
        tokenizer = FastTokenizer(spec_from_gguf(_tiny_spm_fields()))
        assert tokenizer.spec.add_bos
        ids = tokenizer.encode("ab", add_bos=True)
        assert [tokenizer.id_to_token(i) for i in ids] == ["<s>", "▁ab"]
        assert tokenizer.decode(ids) == "ab"
        assert tokenizer.decode(ids, at_start=False) == " ab"
        assert tokenizer.encode("") == []

    def test_the_prefix_comes_back_after_a_control_token(self) -> None:
        tokenizer = FastTokenizer(spec_from_gguf(_tiny_spm_fields()))
        ids = tokenizer.encode("ab</s>ab", allow_special=True)
        assert [tokenizer.id_to_token(i) for i in ids] == ["▁ab", "</s>", "▁ab"]

    def test_text_that_continues_other_text(self) -> None:
        tokenizer = FastTokenizer(spec_from_gguf(_tiny_spm_fields()))

        def tokens(text: str) -> list[str | None]:
            return [
                tokenizer.id_to_token(i) for i in tokenizer.encode(text, allow_special=True, at_start=False)
            ]

        assert tokens("ab") == ["ab"]
        assert tokens(" ab") == ["▁ab"]
        assert tokens("ab</s>ab") == ["ab", "</s>", "▁ab"]
        assert tokens("</s>ab") == ["</s>", "▁ab"]
        assert tokens("") == []

    def test_without_prefix(self) -> None:
        tokenizer = FastTokenizer(spec_from_gguf(_tiny_spm_fields(add_space_prefix=False, add_bos_token=False)))
        assert [tokenizer.id_to_token(i) for i in tokenizer.encode("ab a", add_bos=True)] == ["ab", "▁a"]
        assert tokenizer.decode(tokenizer.encode(" ab")) == " ab"

    def test_bytes(self) -> None:
        tokenizer = FastTokenizer(spec_from_gguf(_tiny_spm_fields()))
        ids = tokenizer.encode("a\nž")
        assert [tokenizer.token_bytes(i) for i in ids] == [b" a", b"\n", b"\xc5", b"\xbe"]
        # The text of a byte token is text when a user writes it.
        assert tokenizer.decode(tokenizer.encode("<0x0A>")) == "<0x0A>"

    def test_damage_is_named(self) -> None:
        with pytest.raises(ModelLoadError, match=r"no tokenizer\.ggml\.scores"):
            spec_from_gguf(_tiny_spm_fields(scores=None))
        with pytest.raises(ModelLoadError, match="1 entries for"):
            spec_from_gguf(_tiny_spm_fields(scores=[0.0]))
