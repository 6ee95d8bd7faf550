"""Text to token ids and back: the interface, and its implementation on the `tokenizers` library."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from tokenizers import AddedToken
from tokenizers import Tokenizer as LibraryTokenizer

from ramet.runtime.protocol import InvalidRequestError, ModelLoadError
from ramet.runtime.tokenizer.chat_template import ChatTemplate
from ramet.runtime.tokenizer.continuation import puts_leading_space, without_leading_space
from ramet.runtime.tokenizer.private_text import numbered_character, private_text
from ramet.runtime.tokenizer.spec import TokenizerSpec
from ramet.runtime.tokenizer.special_text import SpecialTextScanner
from ramet.runtime.tokenizer.unicode_text import check_text

Segment = tuple[str, bool]
"""A piece of text, and whether the texts of special tokens in it stand for those tokens."""


class Tokenizer(Protocol):
    """What the runtime needs of a tokenizer. Thread-safe; nothing below changes it.

    Text that a user wrote never becomes a control token: the texts of special tokens are spelled with ordinary
    tokens unless ``allow_special`` (or a segment's flag) says otherwise.
    """

    @property
    def vocab_size(self) -> int:
        """Width of the model's logits (padding included)."""
        ...

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Every token that ends a turn of this model."""
        ...

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text -> id of each control token."""
        ...

    @property
    def special_text(self) -> SpecialTextScanner:
        """Finds the texts of ``special_tokens``."""
        ...

    @property
    def chat_template(self) -> ChatTemplate: ...

    def encode(
        self, text: str, *, add_bos: bool = False, allow_special: bool = False, at_start: bool = True
    ) -> list[int]:
        """Token ids of ``text``; ``add_bos`` puts BOS first where the model wants one and none is there.

        ``at_start`` False: the text continues other text, so no space is put in front of it (see ``decode``).

        Bytes that no token spells are left out, as llama.cpp and transformers leave them out (a few
        vocabularies lack control characters).

        Raises:
            InvalidRequestError: the text has a lone surrogate, which is no character (field ``prompt``).
        """
        ...

    def encode_batch(
        self, texts: Sequence[str], *, add_bos: bool = False, allow_special: bool = False
    ) -> list[list[int]]:
        """``encode`` of each text."""
        ...

    def encode_segments(
        self, segments: Iterable[Segment], *, add_bos: bool = False, at_start: bool = True
    ) -> list[int]:
        """Token ids of the segments' text as one text; merges go across the seams.

        A special token's text stands for the token only where it lies whole within a segment that allows it.
        """
        ...

    def decode(
        self, token_ids: Iterable[int], *, skip_special_tokens: bool = True, at_start: bool = True
    ) -> str:
        """The text of token ids. Bytes that are no UTF-8 become U+FFFD.

        ``at_start``: the ids begin a text, so a space that encoding puts in front of every text is removed
        again; False for the continuation of a prompt.

        Raises:
            InvalidRequestError: an id is outside 0..vocab_size-1 (field ``token_ids``).
        """
        ...

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes that a token spells; None for special and unused tokens and ids out of range."""
        ...

    def output_bytes(self, token_id: int, *, skip_special_tokens: bool) -> bytes:
        """What a token adds to decoded text. Raises like ``decode``."""
        ...

    @property
    def leading_space(self) -> bool:
        """Encoding puts a space in front of a text (see ``decode``)."""
        ...

    def id_to_token(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it; None for ids that it does not have."""
        ...


class FastTokenizer:
    """A ``TokenizerSpec`` at work.

    The library's own switch for special tokens is a setting of the whole tokenizer; a switch per call would not
    be thread-safe, and a switch per segment would break merges at the seams. So special tokens never match
    their own text here. Each has an alias, an added token that nobody can write: random private-use characters,
    drawn anew in each process. Where special text is allowed it is replaced by the alias before encoding, and
    the alias's id by the token's after.
    """

    def __init__(self, spec: TokenizerSpec) -> None:
        """Raises ModelLoadError where ``spec.tokenizer_json`` cannot be read."""
        self.spec = spec
        try:
            self._library = LibraryTokenizer.from_str(spec.tokenizer_json)
        except Exception as error:  # the library has no exception class of its own
            raise ModelLoadError(f"the tokenizer cannot be read: {error}") from error
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True
        added = self._library.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        silent = frozenset(spec.special_token_ids)
        # Some tokenizers know special tokens that the model has no embedding for: those stay text.
        self._special = {text: i for i, text in self._added.items() if i in silent and i < spec.vocab_size}
        rivals = [text for token_id, text in self._added.items() if token_id not in silent]
        self._scanner = SpecialTextScanner(self._special, rivals)
        self._silent = silent | frozenset(spec.unused_token_ids)
        self._sparse_tokens = self._tokens_if_sparse()
        self._nonce = private_text()
        self._alias = self._add_aliases(added)
        self._token_of_alias = {self._library.token_to_id(alias): i for i, alias in self._alias.items()}
        self._bytes: list[bytes | None] = [None] * max(spec.num_tokens, spec.vocab_size)
        self._stop_token_ids = tuple(i for i in spec.eos_token_ids if i < spec.vocab_size)
        self._chat_template = ChatTemplate(spec)

    @property
    def vocab_size(self) -> int:
        return self.spec.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self.spec.bos_id

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stop_token_ids

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return self._special

    @property
    def special_text(self) -> SpecialTextScanner:
        return self._scanner

    @property
    def chat_template(self) -> ChatTemplate:
        return self._chat_template

    @property
    def leading_space(self) -> bool:
        return self.spec.spelling.leading_space

    def encode(
        self, text: str, *, add_bos: bool = False, allow_special: bool = False, at_start: bool = True
    ) -> list[int]:
        return self.encode_segments([(text, allow_special)], add_bos=add_bos, at_start=at_start)

    def encode_batch(
        self, texts: Sequence[str], *, add_bos: bool = False, allow_special: bool = False
    ) -> list[list[int]]:
        written = [self._write([(text, allow_special)]) for text in texts]
        encodings = self._library.encode_batch_fast(written, add_special_tokens=False)
        return [self._finish(encoding.ids, add_bos) for encoding in encodings]

    def encode_segments(
        self, segments: Iterable[Segment], *, add_bos: bool = False, at_start: bool = True
    ) -> list[int]:
        written = self._write(segments)
        ids: list[int] = []
        if not at_start and self._puts_leading_space:
            # Behind a control token the space comes again, so only the text before the first one differs.
            first, alias, rest = written.partition(self._nonce)
            ids = self._continuing.encode(first, add_special_tokens=False).ids
            written = alias + rest
        return self._finish(ids + self._library.encode(written, add_special_tokens=False).ids, add_bos)

    def decode(
        self, token_ids: Iterable[int], *, skip_special_tokens: bool = True, at_start: bool = True
    ) -> str:
        data = b"".join([self.output_bytes(i, skip_special_tokens=skip_special_tokens) for i in token_ids])
        text = data.decode("utf-8", errors="replace")
        return text.removeprefix(" ") if at_start and self.leading_space else text

    def token_bytes(self, token_id: int) -> bytes | None:
        if (
            token_id in self._silent
            or not 0 <= token_id < self.vocab_size
            or self.id_to_token(token_id) is None
        ):
            return None
        return self.output_bytes(token_id, skip_special_tokens=True)

    def output_bytes(self, token_id: int, *, skip_special_tokens: bool) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            raise InvalidRequestError(
                f"token_ids contains {token_id}; this model's token ids run from 0 to {self.vocab_size - 1}",
                field="token_ids",
            )
        if skip_special_tokens and token_id in self._silent:
            return b""
        spelled = self._bytes[token_id]
        if spelled is None:
            spelled = self._bytes[token_id] = self._spell(token_id)
        return spelled

    def id_to_token(self, token_id: int) -> str | None:
        if self._sparse_tokens is not None:
            return self._sparse_tokens.get(token_id)
        return self._library.id_to_token(token_id) if 0 <= token_id < self.spec.num_tokens else None

    def _spell(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode("utf-8")
        token = self.id_to_token(token_id)
        return b"" if token is None else self.spec.spelling.token_bytes(token)

    def _write(self, segments: Iterable[Segment]) -> str:
        """The segments' text with an alias for each special token that it may contain."""
        parts: list[str] = []
        for text, allow_special in segments:
            check_text(text, "prompt")
            at = 0
            for start, end, token_id in self._scanner.spans(text) if allow_special else ():
                parts += (text[at:start], self._alias[token_id])
                at = end
            parts.append(text[at:])
        return "".join(parts)

    @cached_property
    def _puts_leading_space(self) -> bool:
        """Not the same as ``leading_space``: a byte-level decoder keeps the space that encoding put there."""
        return puts_leading_space(self.spec.tokenizer_json)

    @cached_property
    def _continuing(self) -> LibraryTokenizer:
        """The library's tokenizer for text that continues other text; its special tokens do not match
        either."""
        library = LibraryTokenizer.from_str(without_leading_space(self.spec.tokenizer_json))
        library.encode_special_tokens = True
        return library

    def _finish(self, ids: list[int], add_bos: bool) -> list[int]:
        if self._token_of_alias:
            ids = [self._token_of_alias.get(token_id, token_id) for token_id in ids]
        if add_bos and self.spec.add_bos and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            ids.insert(0, self.bos_token_id)
        return ids

    def _tokens_if_sparse(self) -> dict[int, str] | None:
        """Id -> token where ids have gaps: the library gives the aliases ids that other tokens have then."""
        if self._library.get_vocab_size(with_added_tokens=True) >= self.spec.num_tokens:
            return None
        return {i: token for token, i in self._library.get_vocab(with_added_tokens=True).items()}

    def _add_aliases(self, added: Mapping[int, AddedToken]) -> dict[int, str]:
        """An alias for each special token, with the token's own rules for the space around it."""
        aliases = {
            token_id: self._nonce + numbered_character(i) for i, token_id in enumerate(self._special.values())
        }
        self._library.add_tokens(
            [
                AddedToken(
                    alias,
                    single_word=False,
                    lstrip=added[token_id].lstrip,
                    rstrip=added[token_id].rstrip,
                    normalized=False,
                    special=False,
                )
                for token_id, alias in aliases.items()
            ]
        )
        if self._sparse_tokens is not None:
            taken = self._sparse_tokens.keys() & {
                self._library.token_to_id(alias) for alias in aliases.values()
            }
            if taken:
                raise ModelLoadError(
                    f"the tokenizer's ids have gaps, and an added token would get the id {min(taken)}"
                )
        return aliases
