"""The tokenizer that a GGUF file carries in its metadata.

Keys and token types: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (tokenizer.ggml.*). What the
file leaves open (how words are split, what is added in front, which tokens end a turn) follows llama.cpp, whose
converters write these files.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, cast

from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from ramet.runtime.protocol import ModelLoadError
from ramet.runtime.tokenizer.pre_tokenizers import byte_level_pre_tokenizer, word_split
from ramet.runtime.tokenizer.spec import END_OF_TURN_TEXTS, TokenizerSpec, end_of_turn_ids
from ramet.runtime.tokenizer.spelling import WORD_BOUNDARY, Spelling

_PREFIX = "tokenizer.ggml."
_NAMED_TEMPLATE = "tokenizer.chat_template."


class _TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def spec_from_gguf(fields: Mapping[str, object]) -> TokenizerSpec:
    """The tokenizer of a GGUF file, from its metadata as plain Python values (arrays as sequences).

    Takes up to a few seconds for a SentencePiece vocabulary of 262k tokens, whose merges have to be derived;
    keep the result.

    Raises:
        ModelLoadError: a field is missing or malformed, or names a tokenizer that is not implemented.
    """
    vocabulary = _Vocabulary(fields)
    model = fields.get(_PREFIX + "model")
    if model == "gpt2":
        return _byte_level_spec(vocabulary, fields)
    if model == "llama":
        return _sentencepiece_spec(vocabulary, fields)
    raise ModelLoadError(
        f"tokenizer.ggml.model is {model!r}; implemented are 'gpt2' (byte-level BPE) and 'llama' "
        "(SentencePiece BPE). A folder with the model's tokenizer.json can be loaded instead"
    )


class _Vocabulary:
    """The token arrays of the file, checked: texts are unique and not empty, types are as many as tokens."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self.tokens = [str(token) for token in _array(fields, _PREFIX + "tokens")]
        types = _array(fields, _PREFIX + "token_type", default=[_TokenType.NORMAL] * len(self.tokens))
        if len(types) != len(self.tokens):
            raise ModelLoadError(
                f"tokenizer.ggml.token_type has {len(types)} entries for {len(self.tokens)} tokens; "
                "the file is damaged"
            )
        self.types = [int(kind) for kind in types]
        self.id_of: dict[str, int] = {}
        for token_id, token in enumerate(self.tokens):
            if not token:
                token = self.tokens[token_id] = f"[EMPTY_{token_id}]"
                self.types[token_id] = _TokenType.UNUSED
            if self.id_of.setdefault(token, token_id) != token_id:
                raise ModelLoadError(
                    f"tokenizer.ggml.tokens has {token!r} twice (ids {self.id_of[token]} and {token_id}); "
                    "the file is damaged"
                )
            if token in END_OF_TURN_TEXTS and self.types[token_id] == _TokenType.USER_DEFINED:
                # Some converters mark end-of-turn tokens as plain text; llama.cpp corrects the same ones.
                self.types[token_id] = _TokenType.CONTROL

    def ids_of_type(self, *kinds: _TokenType) -> list[int]:
        return [token_id for token_id, kind in enumerate(self.types) if kind in kinds]

    def add_to(self, tokenizer: Tokenizer) -> None:
        """Make control and user-defined tokens match in text before any splitting or merging."""
        control = self.ids_of_type(_TokenType.CONTROL, _TokenType.UNKNOWN)
        tokenizer.add_special_tokens([_added(self.tokens[i], special=True) for i in control])
        user_defined = self.ids_of_type(_TokenType.USER_DEFINED)
        tokenizer.add_tokens([_added(self.tokens[i], special=False) for i in user_defined])


def _added(text: str, *, special: bool) -> AddedToken:
    return AddedToken(text, single_word=False, lstrip=False, rstrip=False, normalized=False, special=special)


def _byte_level_spec(vocabulary: _Vocabulary, fields: Mapping[str, object]) -> TokenizerSpec:
    merges = [_split_merge(str(merge), vocabulary.id_of) for merge in _array(fields, _PREFIX + "merges")]
    split = word_split(str(fields.get(_PREFIX + "pre", "")))
    tokenizer = Tokenizer(BPE(vocab=vocabulary.id_of, merges=merges, ignore_merges=split.ignore_merges))
    tokenizer.pre_tokenizer = byte_level_pre_tokenizer(split)
    tokenizer.decoder = decoders.ByteLevel()
    vocabulary.add_to(tokenizer)
    return _spec(vocabulary, fields, tokenizer, Spelling("byte_level"), split.add_bos)


def _sentencepiece_spec(vocabulary: _Vocabulary, fields: Mapping[str, object]) -> TokenizerSpec:
    scores = [float(score) for score in _array(fields, _PREFIX + "scores")]
    if len(scores) != len(vocabulary.tokens):
        raise ModelLoadError(
            f"tokenizer.ggml.scores has {len(scores)} entries for {len(vocabulary.tokens)} tokens; "
            "the file is damaged"
        )
    byte_fallback = bool(vocabulary.ids_of_type(_TokenType.BYTE))
    add_space_prefix = bool(fields.get(_PREFIX + "add_space_prefix", True))
    unk_id = _token_id(fields, "unknown_token_id", len(scores))
    tokenizer = Tokenizer(
        BPE(
            vocab=vocabulary.id_of,
            merges=list(_merges_from_scores(vocabulary, scores)),
            unk_token=None if unk_id is None else vocabulary.tokens[unk_id],
            fuse_unk=True,
            byte_fallback=byte_fallback,
        )
    )
    escape = normalizers.Replace(" ", WORD_BOUNDARY)
    decode_steps: list[decoders.Decoder] = [
        decoders.Replace(WORD_BOUNDARY, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if add_space_prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(WORD_BOUNDARY), escape])
        decode_steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = escape
    tokenizer.decoder = decoders.Sequence(decode_steps)
    vocabulary.add_to(tokenizer)
    spelling = Spelling("sentencepiece", byte_fallback=byte_fallback, leading_space=add_space_prefix)
    return _spec(vocabulary, fields, tokenizer, spelling, add_bos_by_default=True)


def _merges_from_scores(vocabulary: _Vocabulary, scores: Sequence[float]) -> Iterator[tuple[str, str]]:
    """Merges in the order in which SentencePiece would apply them: by the score of what they make.

    SentencePiece merges the adjacent pair whose union is the best-scored piece. So each way to cut a piece into
    two pieces is a merge, ranked by the piece's score; ways of one piece are ranked by the ids of their parts.
    Control, byte and user-defined tokens take no part: those are matched in the text before merging.
    """
    tokens, types = vocabulary.tokens, vocabulary.types
    id_of = {tokens[i]: i for i in range(len(tokens)) if types[i] == _TokenType.NORMAL}
    find = id_of.get
    for piece, _ in sorted(id_of.items(), key=lambda item: -scores[item[1]]):
        cuts = [
            (left, right)
            for i in range(1, len(piece))
            if (left := find(piece[:i])) is not None and (right := find(piece[i:])) is not None
        ]
        cuts.sort()
        for left, right in cuts:
            yield tokens[left], tokens[right]


def _spec(
    vocabulary: _Vocabulary,
    fields: Mapping[str, object],
    tokenizer: Tokenizer,
    spelling: Spelling,
    add_bos_by_default: bool,
) -> TokenizerSpec:
    size = len(vocabulary.tokens)
    named = {
        "bos_token": _token_id(fields, "bos_token_id", size),
        "eos_token": _token_id(fields, "eos_token_id", size),
        "unk_token": _token_id(fields, "unknown_token_id", size),
        "pad_token": _token_id(fields, "padding_token_id", size),
    }
    declared = [named["eos_token"]] + [_token_id(fields, f"{kind}_token_id", size) for kind in ("eot", "eom")]
    special = vocabulary.ids_of_type(_TokenType.CONTROL, _TokenType.UNKNOWN)
    template = fields.get("tokenizer.chat_template")
    return TokenizerSpec(
        tokenizer_json=tokenizer.to_str(),
        num_tokens=size,
        vocab_size=size,
        spelling=spelling,
        chat_template=None if template is None else str(template),
        named_chat_templates={
            key.removeprefix(_NAMED_TEMPLATE): str(value)
            for key, value in fields.items()
            if key.startswith(_NAMED_TEMPLATE)
        },
        bos_id=named["bos_token"],
        eos_id=named["eos_token"],
        unk_id=named["unk_token"],
        pad_id=named["pad_token"],
        eos_token_ids=end_of_turn_ids(
            {vocabulary.tokens[i]: i for i in special}, [i for i in declared if i is not None]
        ),
        special_token_ids=tuple(special),
        unused_token_ids=tuple(vocabulary.ids_of_type(_TokenType.UNUSED)),
        add_bos=named["bos_token"] is not None
        and bool(fields.get(_PREFIX + "add_bos_token", add_bos_by_default)),
        special_token_names={name: vocabulary.tokens[i] for name, i in named.items() if i is not None},
    )


def _split_merge(merge: str, id_of: Mapping[str, int]) -> tuple[str, str]:
    """ "left right"; the left part may itself begin with a space."""
    at = merge.find(" ", 1)
    left, right = merge[:at], merge[at + 1 :]
    if at < 1 or left not in id_of or right not in id_of or left + right not in id_of:
        raise ModelLoadError(
            f"tokenizer.ggml.merges has {merge!r}, which does not join two tokens to a third; "
            "the file is damaged"
        )
    return left, right


def _array(fields: Mapping[str, object], key: str, default: Sequence[object] | None = None) -> Sequence[Any]:
    value = fields.get(key, default)
    if value is None:
        raise ModelLoadError(
            f"the GGUF file has no {key}, so its text cannot be tokenised; convert the model again"
        )
    if isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        raise ModelLoadError(f"{key} is {type(value).__name__}, not an array; the file is damaged")
    return cast(Sequence[Any], value)


def _token_id(fields: Mapping[str, object], name: str, size: int) -> int | None:
    """A token id that the file declares; None where it declares none, or -1."""
    value = fields.get(_PREFIX + name)
    if value is None:
        return None
    if not isinstance(value, int):
        raise ModelLoadError(f"tokenizer.ggml.{name} is {value!r}; it must be a token id")
    if value >= size and value not in (0xFFFFFFFF, 0xFFFF):
        raise ModelLoadError(f"tokenizer.ggml.{name} is {value}; the vocabulary has {size} tokens")
    return value if 0 <= value < size else None
