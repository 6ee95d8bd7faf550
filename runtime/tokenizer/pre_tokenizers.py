"""How a GGUF file's ``tokenizer.ggml.pre`` splits text into words before byte-pair merges.

A GGUF file names its splitter instead of describing it. The names, and the regular expressions that they stand
for, are those that llama.cpp gives them (src/llama-vocab.cpp); the expressions come from the models' own
tokenizer.json files.
"""

import msgspec
from tokenizers import Regex, pre_tokenizers

from ramet.runtime.protocol import ModelLoadError

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_LLAMA3 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_SEED_CODER = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_CJK_OF_DEEPSEEK = "[一-龥\u0800-一가-\ud7ff]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
    r"\s+$",
    _CJK_OF_DEEPSEEK,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_OF_DEEPSEEK, r"\p{N}")
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


class WordSplit(msgspec.Struct, frozen=True):
    """The regular expressions apply one after another, each to the pieces that the one before left."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """A word that is in the vocabulary is one token, whatever the merges say."""
    add_bos: bool = False
    """Whether a prompt begins with BOS where the file does not say."""


_SPLITS: dict[WordSplit, tuple[str, ...]] = {
    WordSplit(_DEFAULT): ("default", ""),
    WordSplit((_DIGIT, _GPT2)): (
        "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2",
    ),
    WordSplit((_GPT2,)): (
        "gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "gigachat",
        "a.x-4.0", "mellum",
    ),
    WordSplit((_LLAMA3,), ignore_merges=True, add_bos=True): (
        "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    ),
    WordSplit((_LLAMA3,)): ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
    WordSplit((_QWEN2,)): (
        "qwen2", "deepseek-r1-qwen", "kormo", "stablelm2", "megrez", "hunyuan", "solar-open", "grok-2",
    ),
    WordSplit((_QWEN35,)): ("qwen35",),
    WordSplit((_TEKKEN,), ignore_merges=True, add_bos=True): ("tekken", "mistral"),
    WordSplit((_GPT4O,)): ("gpt-4o", "llama4", "kanana2", "minimax-m2"),
    WordSplit(_DEEPSEEK_LLM): ("deepseek-llm",),
    WordSplit(_DEEPSEEK_CODER): ("deepseek-coder",),
    WordSplit(_DEEPSEEK_V3): ("deepseek-v3", "hunyuan-dense", "joyai-llm"),
    WordSplit(_FALCON): ("falcon",),
    WordSplit((_SEED_CODER,)): ("seed-coder",),
    WordSplit((_BAILING,)): ("bailingmoe", "bailingmoe2", "llada-moe"),
}  # fmt: skip
_SPLIT_OF_NAME = {name: split for split, names in _SPLITS.items() for name in names}


def word_split(name: str) -> WordSplit:
    """The split that ``tokenizer.ggml.pre`` names; an absent name ("") is llama.cpp's default.

    Raises:
        ModelLoadError: the name is not known. A wrong split gives other tokens than the model was trained on.
    """
    split = _SPLIT_OF_NAME.get(name)
    if split is None:
        known = ", ".join(sorted(filter(None, _SPLIT_OF_NAME)))
        raise ModelLoadError(
            f"tokenizer.ggml.pre is {name!r}, a pre-tokenizer that is not implemented; known are {known}. "
            "A folder with the model's tokenizer.json can be loaded instead"
        )
    return split


def byte_level_pre_tokenizer(split: WordSplit) -> pre_tokenizers.PreTokenizer:
    """Splits as ``split`` says, then spells each word in GPT-2's byte alphabet."""
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in split.patterns
    ]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
