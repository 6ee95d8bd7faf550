"""A tokenizer for text that continues other text: the same but for the space in front."""

import json
from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ramet.runtime.tokenizer import FastTokenizer, Spelling, TokenizerSpec
from ramet.runtime.tokenizer.continuation import puts_leading_space, without_leading_space

TOKENS = ["<unk>", "</s>", "▁", "a", "b", "ab", "▁a", "▁ab", "Ġ", "Ġa"]
MERGES = [("▁", "a"), ("▁a", "b"), ("Ġ", "a"), ("a", "b")]
METASPACE = pre_tokenizers.Metaspace


def make(normalizer: Any = None, pre_tokenizer: Any = None) -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES, unk_token="<unk>"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_special_tokens([AddedToken("</s>", normalized=False)])
    return tokenizer


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    found: list[str] = tokenizer.encode(text, add_special_tokens=False).tokens
    return found


PREPEND, REPLACE = normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")
WITH_SPACE: dict[str, tuple[Any, Any]] = {
    "prepend": (normalizers.Sequence([PREPEND, REPLACE]), None),
    "nested": (normalizers.Sequence([normalizers.Sequence([PREPEND, normalizers.NFC()]), REPLACE]), None),
    "metaspace": (None, METASPACE(prepend_scheme="always")),
    "metaspace-first": (None, METASPACE(prepend_scheme="first")),
    "metaspace-in-sequence": (None, pre_tokenizers.Sequence([METASPACE(), pre_tokenizers.Digits()])),
}
WITHOUT_SPACE: dict[str, tuple[Any, Any]] = {
    "nothing": (None, None),
    "replace": (REPLACE, None),
    "metaspace-never": (None, METASPACE(prepend_scheme="never")),
    "byte-level": (normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False)),
}


@pytest.mark.parametrize("parts", WITH_SPACE.values(), ids=WITH_SPACE.keys())
def test_the_space_in_front_goes_and_others_stay(parts: tuple[Any, Any]) -> None:
    whole = make(*parts)
    assert tokens(whole, "ab a") == ["▁ab", "▁a"]
    assert puts_leading_space(whole.to_str())
    continuing = Tokenizer.from_str(without_leading_space(whole.to_str()))
    assert tokens(continuing, "ab a") == ["ab", "▁a"]
    assert tokens(continuing, " ab") == ["▁ab"]
    assert tokens(continuing, "") == []
    assert not puts_leading_space(continuing.to_str())


def test_the_space_of_byte_level() -> None:
    whole = make(None, pre_tokenizers.ByteLevel(add_prefix_space=True))
    assert tokens(whole, "a") == ["Ġa"]
    assert puts_leading_space(whole.to_str())
    continuing = Tokenizer.from_str(without_leading_space(whole.to_str()))
    assert (tokens(continuing, "a"), tokens(continuing, " a")) == (["a"], ["Ġa"])


@pytest.mark.parametrize("parts", WITHOUT_SPACE.values(), ids=WITHOUT_SPACE.keys())
def test_a_tokenizer_without_the_space_stays_as_it_is(parts: tuple[Any, Any]) -> None:
    whole = make(*parts)
    assert not puts_leading_space(whole.to_str())
    continuing = Tokenizer.from_str(without_leading_space(whole.to_str()))
    for text in ("ab a", " ab", "", "a</s> b"):
        assert tokens(continuing, text) == tokens(whole, text)


def test_everything_else_stays() -> None:
    before = json.loads(make(*WITH_SPACE["prepend"]).to_str())
    after = json.loads(without_leading_space(json.dumps(before)))
    assert after["normalizer"] == {"type": "Sequence", "normalizers": [before["normalizer"]["normalizers"][1]]}
    assert {name: part for name, part in after.items() if name != "normalizer"} == {
        name: part for name, part in before.items() if name != "normalizer"
    }


def test_a_normalizer_that_did_nothing_else_goes_whole() -> None:
    assert json.loads(without_leading_space(make(PREPEND).to_str()))["normalizer"] is None


def test_a_byte_level_tokenizer_with_a_prefix_continues_without_it() -> None:
    library = make(None, pre_tokenizers.ByteLevel(add_prefix_space=True))
    library.decoder = decoders.ByteLevel()
    spec = TokenizerSpec(
        tokenizer_json=library.to_str(),
        num_tokens=len(TOKENS),
        vocab_size=len(TOKENS),
        spelling=Spelling("byte_level"),
    )
    tokenizer = FastTokenizer(msgspec.structs.replace(spec, special_token_ids=(1,)))
    assert tokenizer.encode("ab a") == [TOKENS.index(token) for token in ("Ġa", "b", "Ġa")]
    assert tokenizer.encode("ab a", at_start=False) == [TOKENS.index(token) for token in ("ab", "Ġa")]
