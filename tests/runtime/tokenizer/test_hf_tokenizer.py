"""spec_from_folder on small folders, against transformers on the same folders."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ramet.runtime.protocol import ModelLoadError
from ramet.runtime.tokenizer import FastTokenizer, spec_from_folder

TEXTS = ["", "The dog said: 12 naïve 🙂 things\n\n ok", "<|im_start|>user\nhi<|im_end|>", " leading <tool> x"]


def write(folder: Path, library: Tokenizer | None = None, **files: Any) -> Path:
    """tokenizer.json from ``library``, and each of ``files`` as its name with .json."""
    if library is not None:
        library.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def tiny_sentencepiece() -> Tokenizer:
    """Llama 2's kind: byte fallback and a space in front."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]
    merges = [("a", "b"), ("▁", "a"), ("▁", "ab"), ("▁a", "b")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")]
    )
    return tokenizer


class TestAgainstTransformers:
    def test_byte_level(self, tmp_path: Path, tiny_byte_level: Tokenizer) -> None:
        from transformers import AutoTokenizer

        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>"}
        folder = write(tmp_path, tiny_byte_level, tokenizer_config=config)
        tokenizer, oracle = FastTokenizer(spec_from_folder(folder)), AutoTokenizer.from_pretrained(folder)
        for text in TEXTS:
            ids = tokenizer.encode(text, allow_special=True)
            assert ids == oracle.encode(text, add_special_tokens=False)
            for skip in (True, False):
                assert tokenizer.decode(ids, skip_special_tokens=skip) == oracle.decode(
                    ids, skip_special_tokens=skip
                )
        assert tokenizer.stop_token_ids == (oracle.eos_token_id,)
        assert tokenizer.bos_token_id == oracle.bos_token_id

    def test_sentencepiece(self, tmp_path: Path, tiny_sentencepiece: Tokenizer) -> None:
        from transformers import AutoTokenizer

        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
        folder = write(tmp_path, tiny_sentencepiece, tokenizer_config=config)
        tokenizer, oracle = FastTokenizer(spec_from_folder(folder)), AutoTokenizer.from_pretrained(folder)
        assert tokenizer.spec.add_bos  # from the post-processor
        for text in ("ab a", " ab", "ab</s>ab b", "a\nž🙂", ""):
            ids = tokenizer.encode(text, allow_special=True, add_bos=True)
            assert ids == oracle.encode(text)
            for skip in (True, False):
                assert tokenizer.decode(ids, skip_special_tokens=skip) == oracle.decode(
                    ids, skip_special_tokens=skip
                )


class TestSpecialTokens:
    def test_tokens_declared_beside_tokenizer_json(self, tmp_path: Path, tiny_byte_level: Tokenizer) -> None:
        size = tiny_byte_level.get_vocab_size()
        config = {
            "added_tokens_decoder": {
                str(size): {"content": "<|eot_id|>", "special": True},
                str(tiny_byte_level.token_to_id("<tool>")): {"content": "<tool>", "special": True},
            },
            "eos_token": {"content": "<|eot_id|>", "special": True},
            "pad_token": "<pad-that-is-nowhere>",
            "additional_special_tokens": ["the"],
        }
        spec = spec_from_folder(write(tmp_path, tiny_byte_level, tokenizer_config=config))
        assert spec.eos_id == size
        assert spec.num_tokens == size + 1
        assert spec.pad_id is None
        assert tiny_byte_level.token_to_id("<tool>") in spec.special_token_ids
        assert tiny_byte_level.token_to_id("the") in spec.special_token_ids
        assert spec.eos_token_ids == (size, tiny_byte_level.token_to_id("<|im_end|>"))

    def test_end_tokens_of_every_file(self, tmp_path: Path, tiny_byte_level: Tokenizer) -> None:
        folder = write(
            tmp_path,
            tiny_byte_level,
            tokenizer_config={"eos_token": "<|im_end|>"},
            generation_config={"eos_token_id": [7, 8, 99_999]},
            config={"eos_token_id": 8, "text_config": {"eos_token_id": 9}},
        )
        assert spec_from_folder(folder).eos_token_ids == (tiny_byte_level.token_to_id("<|im_end|>"), 7, 8, 9)

    def test_special_tokens_map(self, tmp_path: Path, tiny_byte_level: Tokenizer) -> None:
        folder = write(tmp_path, tiny_byte_level, special_tokens_map={"bos_token": {"content": "<s>"}})
        spec = spec_from_folder(folder)
        assert spec.bos_id == tiny_byte_level.token_to_id("<s>")
        assert not spec.add_bos
        assert spec.special_token_names == {"bos_token": "<s>"}

    def test_add_bos_token(self, tmp_path: Path, tiny_byte_level: Tokenizer) -> None:
        config = {"bos_token": "<s>", "add_bos_token": True}
        assert spec_from_folder(write(tmp_path, tiny_byte_level, tokenizer_config=config)).add_bos

    def test_harmony_keeps_end_inside_a_turn(self, tmp_path: Path, tiny_byte_level: Tokenizer) -> None:
        library = Tokenizer.from_str(tiny_byte_level.to_str())
        library.add_special_tokens(
            [AddedToken(t, normalized=False) for t in ("<|end|>", "<|return|>", "<|call|>")]
        )
        ends = [library.id_to_token(i) for i in spec_from_folder(write(tmp_path, library)).eos_token_ids]
        assert ends == ["<|im_end|>", "<|return|>", "<|call|>"]

    def test_truncation_and_padding_are_off(self, tmp_path: Path, tiny_byte_level: Tokenizer) -> None:
        library = Tokenizer.from_str(tiny_byte_level.to_str())
        library.enable_truncation(4)
        library.enable_padding(length=8)
        tokenizer = FastTokenizer(spec_from_folder(write(tmp_path, library)))
        assert tokenizer.decode(tokenizer.encode("x" * 50)) == "x" * 50
        assert len(tokenizer.encode("x")) == 1


class TestTemplates:
    def test_in_the_config(self, tmp_path: Path, tiny_byte_level: Tokenizer) -> None:
        named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
        spec = spec_from_folder(write(tmp_path, tiny_byte_level, tokenizer_config={"chat_template": named}))
        assert (spec.chat_template, spec.named_chat_templates) == ("D", {"tool_use": "T"})
        spec = spec_from_folder(write(tmp_path, tiny_byte_level, tokenizer_config={"chat_template": "S"}))
        assert spec.chat_template == "S"

    def test_files_win(self, tmp_path: Path, tiny_byte_level: Tokenizer) -> None:
        folder = write(tmp_path, tiny_byte_level, tokenizer_config={"chat_template": "old"})
        (folder / "chat_template.jinja").write_text("new {{ x }}\n")
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "rag.jinja").write_text("R")
        spec = spec_from_folder(folder)
        assert (spec.chat_template, spec.named_chat_templates) == ("new {{ x }}\n", {"rag": "R"})


class TestDecoders:
    def test_metaspace(self, tmp_path: Path, tiny_sentencepiece: Tokenizer) -> None:
        library = Tokenizer.from_str(tiny_sentencepiece.to_str())
        library.normalizer = None
        library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        library.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
        tokenizer = FastTokenizer(spec_from_folder(write(tmp_path, library)))
        ids = tokenizer.encode("ab</s>ab a", allow_special=True)
        assert ids == library.encode("ab</s>ab a", add_special_tokens=False).ids
        assert tokenizer.decode(ids) == "abab a"
        assert [tokenizer.id_to_token(i) for i in tokenizer.encode("ab a", at_start=False)] == ["ab", "▁a"]
        library.decoder = decoders.Metaspace(prepend_scheme="never", split=False)
        assert not spec_from_folder(write(tmp_path, library)).spelling.leading_space

    @pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.CTC(), decoders.Fuse(), None])
    def test_others_are_refused(self, tmp_path: Path, tiny_byte_level: Tokenizer, decoder: Any) -> None:
        library = Tokenizer.from_str(tiny_byte_level.to_str())
        library.decoder = decoder
        with pytest.raises(ModelLoadError, match="decoder of type"):
            spec_from_folder(write(tmp_path, library))


class TestErrors:
    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelLoadError, match="not a folder"):
            spec_from_folder(tmp_path / "nowhere")

    def test_no_tokenizer_json(self, tmp_path: Path) -> None:
        with pytest.raises(ModelLoadError, match=r"no tokenizer\.json.*tokenizer_config\.json"):
            spec_from_folder(tmp_path)
        (tmp_path / "tokenizer.model").write_bytes(b"x")
        with pytest.raises(ModelLoadError, match="save_pretrained"):
            spec_from_folder(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\xfe"])
    def test_a_damaged_tokenizer_json(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(ModelLoadError, match=r"tokenizer\.json cannot be read"):
            spec_from_folder(tmp_path)

    @pytest.mark.parametrize(("content", "said"), [("{", "not valid JSON"), ("[]", "JSON object")])
    def test_a_damaged_config(
        self, tmp_path: Path, tiny_byte_level: Tokenizer, content: str, said: str
    ) -> None:
        write(tmp_path, tiny_byte_level)
        (tmp_path / "tokenizer_config.json").write_text(content)
        with pytest.raises(ModelLoadError, match=said):
            spec_from_folder(tmp_path)

    def test_a_declared_id_that_is_taken(self, tmp_path: Path, tiny_byte_level: Tokenizer) -> None:
        config = {"added_tokens_decoder": {"3": {"content": "<new>", "special": True}}}
        with pytest.raises(ModelLoadError, match="'<new>' the id 3"):
            spec_from_folder(write(tmp_path, tiny_byte_level, tokenizer_config=config))
