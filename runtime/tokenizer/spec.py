"""TokenizerSpec: everything that a tokenizer is, as data that can be kept on disk."""

from collections.abc import Iterable, Mapping

import msgspec

from ramet.runtime.tokenizer.spelling import Spelling

END_OF_TURN_TEXTS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<eos>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<｜end▁of▁sentence｜>",
)
"""Texts with which models of the families implemented here end a turn or a document."""


class TokenizerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer as plain data; ``msgspec.msgpack`` writes and reads it without loss."""

    tokenizer_json: str
    """The `tokenizers` library's own format."""
    num_tokens: int
    """One more than the highest token id that the tokenizer knows."""
    vocab_size: int
    """Width of the model's logits, where it is known; else num_tokens."""
    spelling: Spelling
    """How a token's text becomes bytes."""
    chat_template: str | None = None
    """The Jinja source of the default chat template."""
    named_chat_templates: dict[str, str] = {}
    """Further templates by name, such as tool_use."""
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    pad_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Every token that ends a turn; eos_id first."""
    special_token_ids: tuple[int, ...] = ()
    """Control tokens, ascending: user text never becomes one, and they spell nothing in the output."""
    unused_token_ids: tuple[int, ...] = ()
    """Padding of the vocabulary; spells nothing."""
    add_bos: bool = False
    """A prompt begins with bos_id."""
    special_token_names: dict[str, str] = {}
    """What chat templates know special tokens by: bos_token, eos_token, ... -> the token's text."""


def end_of_turn_ids(special_tokens: Mapping[str, int], declared: Iterable[int]) -> tuple[int, ...]:
    """The declared end tokens, then the special tokens whose text is known to end a turn.

    ``<|end|>`` closes a message but not the turn where ``<|return|>`` and ``<|call|>`` exist beside it
    (the harmony format), and is then left out unless it is declared.
    """
    ids = list(declared)
    harmony = "<|return|>" in special_tokens and "<|call|>" in special_tokens
    for text in END_OF_TURN_TEXTS:
        if text in special_tokens and not (harmony and text == "<|end|>"):
            ids.append(special_tokens[text])
    return tuple(dict.fromkeys(ids))
