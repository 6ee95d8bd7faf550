"""A small byte-level tokenizer with tokens of one's choice, and chat templates like those of known families."""

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from ramet.runtime.tokenizer import FastTokenizer, Spelling, TokenizerSpec
from ramet.runtime.tokenizer.spelling import WORD_BOUNDARY, byte_alphabet

CONTROL = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin|>",
    "<|start_header|>",
    "<|end_header|>",
    "<|eot|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
    "<|assistant|>",
    "<|think|>",
)
ENDS = ("</s>", "<|im_end|>", "<|eot|>", "<end_of_turn>")
WORDS = (
    "http",
    "://",
    "//",
    " the",
    " there",
    " is",
    " Paris",
    " Rome",
    "\n\n",
    "us",
    "er",
    "assistant",
    "Yes",
)

CHATML = """{% for message in messages %}
{% if loop.first and messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\nYou are Tiny.<|im_end|>\n' -}}
{% endif %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' -}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

GEMMA = """{{- '<s>' -}}
{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate') -}}
{% endif %}
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' -}}
{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

LLAMA = """{{- '<|begin|>' -}}
{% for message in messages %}
{{- '<|start_header|>' + message['role'] + '<|end_header|>\n\n' -}}
{{- message['content'] | trim + '<|eot|>' -}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|start_header|>assistant<|end_header|>\n\n' }}{% endif %}"""

MISTRAL = """{{- '<s>' -}}
{% if messages[0]['role'] == 'system' %}
{% set preface = messages[0]['content'] + '\n\n' %}{% set rest = messages[1:] %}
{% else %}
{% set preface = '' %}{% set rest = messages %}
{% endif %}
{% for message in rest %}
{% if message['role'] == 'user' %}
{{- '[INST] ' + (preface if loop.last else '') + message['content'] + ' [/INST]' -}}
{% else %}
{{- ' ' + message['content'] | trim + '</s>' -}}
{% endif %}
{% endfor %}"""

THINKER = """{% for message in messages %}
{% set content = message['content'].split('</think>')[-1] %}
{{- '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' -}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<|think|>\n' }}{% endif %}"""

NEVER_ASKS = """{% for message in messages %}
{{- '<|' + message['role'] + '|>' + message['content'] + '</s>' -}}
{% endfor %}"""

TEMPLATES = {
    "chatml": CHATML,
    "gemma": GEMMA,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "thinker": THINKER,
    "never_asks": NEVER_ASKS,
}


def small_tokenizer(
    template: str | None = CHATML,
    *,
    words: Sequence[str] = WORDS,
    bos: str | None = None,
    ends: Sequence[str] = ENDS,
    strips: Sequence[str] = (),
) -> FastTokenizer:
    """All bytes, the words (and their beginnings, which their merges need) and the control tokens. Merges go
    across words. ``bos``: the control token that the model wants in front. ``strips``: control tokens that take
    the white space in front of them."""
    letter = {byte: character for character, byte in byte_alphabet().items()}
    vocabulary = {letter[byte]: byte for byte in range(256)}
    merges: list[tuple[str, str]] = []
    for word in words:
        text = "".join(letter[byte] for byte in word.encode())
        for length in range(2, len(text) + 1):
            if text[:length] not in vocabulary:
                vocabulary[text[:length]] = len(vocabulary)
                merges.append((text[: length - 1], text[length - 1]))
    library = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _finish(library, Spelling("byte_level"), template, bos=bos, ends=ends, strips=strips)


def small_sentencepiece(template: str | None = MISTRAL, *, words: Sequence[str] = WORDS) -> FastTokenizer:
    """As ``small_tokenizer``, of Llama 2's kind: byte fallback, BOS, and a space in front of every text."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    merges: list[tuple[str, str]] = []
    for word in (*map(chr, range(0x20, 0x7F)), *words):
        text = word.replace(" ", WORD_BOUNDARY)
        for length in range(1, len(text) + 1):
            if text[:length] not in vocabulary:
                vocabulary[text[:length]] = len(vocabulary)
                if length > 1:
                    vocabulary.setdefault(text[length - 1], len(vocabulary))
                    merges.append((text[: length - 1], text[length - 1]))
    library = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True))
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend(WORD_BOUNDARY), normalizers.Replace(" ", WORD_BOUNDARY)]
    )
    spelling = Spelling("sentencepiece", byte_fallback=True, leading_space=True)
    return _finish(library, spelling, template, bos="<s>", ends=ENDS, strips=())


def _finish(
    library: Tokenizer,
    spelling: Spelling,
    template: str | None,
    *,
    bos: str | None,
    ends: Sequence[str],
    strips: Sequence[str],
) -> FastTokenizer:
    library.add_special_tokens(
        [AddedToken(text, special=True, normalized=False, lstrip=text in strips) for text in CONTROL]
    )
    ids = {token.content: i for i, token in library.get_added_tokens_decoder().items()}
    size = library.get_vocab_size(with_added_tokens=True)
    return FastTokenizer(
        TokenizerSpec(
            tokenizer_json=library.to_str(),
            num_tokens=size,
            vocab_size=size,
            spelling=spelling,
            bos_id=ids[bos or "<s>"],
            eos_id=ids["</s>"],
            eos_token_ids=tuple(ids[text] for text in ends),
            special_token_ids=tuple(sorted(ids.values())),
            add_bos=bos is not None,
            chat_template=template,
            special_token_names={"bos_token": bos or "<s>", "eos_token": "</s>"},
        )
    )
