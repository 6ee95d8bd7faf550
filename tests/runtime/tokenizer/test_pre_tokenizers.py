"""Each named split on words that tell them apart."""

import pytest

from ramet.runtime.protocol import ModelLoadError
from ramet.runtime.tokenizer.pre_tokenizers import byte_level_pre_tokenizer, word_split
from ramet.runtime.tokenizer.spelling import Spelling

TEXT = "I'LL don't 12345\n\n  x=1"


def words(name: str, text: str) -> list[str]:
    pieces = byte_level_pre_tokenizer(word_split(name)).pre_tokenize_str(text)
    return [Spelling("byte_level").token_bytes(piece).decode() for piece, _ in pieces]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["smollm", "starcoder", "command-r"], "I|'|LL| don|'t| |1|2|3|4|5|\n\n | x|=|1"),
        (["gpt-2", "olmo", "phi-2"], "I|'|LL| don|'t| 12345|\n\n | x|=|1"),
        (["llama-bpe", "llama3", "pixtral", "dbrx", "glm4"], "I|'LL| don|'t| |123|45|\n\n| | x|=|1"),
        (["qwen2", "deepseek-r1-qwen", "qwen35"], "I|'LL| don|'t| |1|2|3|4|5|\n\n| | x|=|1"),
        (["tekken", "mistral"], "I|'LL| don|'t| |1|2|3|4|5|\n\n| | x|=|1"),
        (["gpt-4o", "llama4"], "I'LL| don't| |123|45|\n\n| | x|=|1"),
        (["deepseek-llm"], "I|'|LL| don|'|t| |12345|\n|\n| | x|=|1"),
        (["deepseek-coder"], "I|'|LL| don|'|t| |1|2|3|4|5|\n|\n| | x|=|1"),
        (["deepseek-v3"], "I|'LL| don|'t| |123|45|\n\n| | x|=|1"),
        (["falcon"], "I|'|LL| don|'|t| |123|45|\n\n | x|=|1"),
        (["default", ""], "I|'|LL| don|'|t| |123|45|\n\n | x|=|1"),
    ],
)
def test_words(names: list[str], expected: str) -> None:
    for name in names:
        assert "|".join(words(name, TEXT)) == expected


def test_case_changes_split_in_tekken() -> None:
    assert words("tekken", "camelCaseWord") == ["camel", "Case", "Word"]
    assert words("qwen2", "camelCaseWord") == ["camelCaseWord"]


def test_nothing_is_lost() -> None:
    text = "  naïve\r\n漢字ー… 🙂\t½x² 'S"
    for name in (
        "default",
        "smollm",
        "llama-bpe",
        "qwen2",
        "tekken",
        "gpt-4o",
        "deepseek-llm",
        "falcon",
        "bailingmoe",
    ):
        assert "".join(words(name, text)) == text


def test_what_comes_with_the_name() -> None:
    assert word_split("llama-bpe").ignore_merges
    assert word_split("llama-bpe").add_bos
    assert not word_split("smollm").ignore_merges
    assert not word_split("smollm").add_bos


def test_an_unknown_name() -> None:
    with pytest.raises(ModelLoadError, match=r"'klingon'.*smollm"):
        word_split("klingon")
