"""A tokenizer without a model: one token a byte. For tests and for models that are not trained."""

from collections.abc import Iterable, Mapping, Sequence

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.tokenizer.chat_template import ChatTemplate
from ramet.runtime.tokenizer.spec import TokenizerSpec
from ramet.runtime.tokenizer.special_text import SpecialTextScanner
from ramet.runtime.tokenizer.spelling import Spelling
from ramet.runtime.tokenizer.tokenizer import Segment
from ramet.runtime.tokenizer.unicode_text import check_text

BOS_ID = 256
EOS_ID = 257

_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


class ByteTokenizer:
    """256 bytes, ``<s>`` (256) and ``</s>`` (257): a small, exact implementation of ``Tokenizer``.

    ``vocab_size`` may be larger than 258, as a model's logits may be; the ids above spell nothing.
    """

    def __init__(self, *, vocab_size: int = 258, add_bos: bool = False) -> None:
        if vocab_size < 258:
            raise InvalidRequestError(
                f"vocab_size is {vocab_size}; it must be at least 258", field="vocab_size"
            )
        self._vocab_size = vocab_size
        self._add_bos = add_bos
        self._special = {"<s>": BOS_ID, "</s>": EOS_ID}
        self._scanner = SpecialTextScanner(self._special)
        self._chat_template = ChatTemplate(
            TokenizerSpec(
                tokenizer_json="",
                num_tokens=258,
                vocab_size=vocab_size,
                spelling=Spelling("byte_level"),
                chat_template=_TEMPLATE,
                special_token_names={"bos_token": "<s>", "eos_token": "</s>"},
            )
        )

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return BOS_ID

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return (EOS_ID,)

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
        return False

    def encode(
        self, text: str, *, add_bos: bool = False, allow_special: bool = False, at_start: bool = True
    ) -> list[int]:
        return self.encode_segments([(text, allow_special)], add_bos=add_bos, at_start=at_start)

    def encode_batch(
        self, texts: Sequence[str], *, add_bos: bool = False, allow_special: bool = False
    ) -> list[list[int]]:
        return [self.encode(text, add_bos=add_bos, allow_special=allow_special) for text in texts]

    def encode_segments(
        self, segments: Iterable[Segment], *, add_bos: bool = False, at_start: bool = True
    ) -> list[int]:
        ids: list[int] = []
        for text, allow_special in segments:
            check_text(text, "prompt")
            at = 0
            for start, end, token_id in self._scanner.spans(text) if allow_special else ():
                ids += text[at:start].encode("utf-8")
                ids.append(token_id)
                at = end
            ids += text[at:].encode("utf-8")
        return [BOS_ID, *ids] if add_bos and self._add_bos and ids[:1] != [BOS_ID] else ids

    def decode(
        self, token_ids: Iterable[int], *, skip_special_tokens: bool = True, at_start: bool = True
    ) -> str:
        data = b"".join([self.output_bytes(i, skip_special_tokens=skip_special_tokens) for i in token_ids])
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes | None:
        return bytes([token_id]) if 0 <= token_id < BOS_ID else None

    def output_bytes(self, token_id: int, *, skip_special_tokens: bool) -> bytes:
        if not 0 <= token_id < self._vocab_size:
            raise InvalidRequestError(
                f"token_ids contains {token_id}; this model's token ids run from 0 to {self._vocab_size - 1}",
                field="token_ids",
            )
        if token_id < BOS_ID:
            return bytes([token_id])
        return b"" if skip_special_tokens else (self.id_to_token(token_id) or "").encode("utf-8")

    def id_to_token(self, token_id: int) -> str | None:
        if 0 <= token_id < BOS_ID:
            return f"<0x{token_id:02X}>"
        return {BOS_ID: "<s>", EOS_ID: "</s>"}.get(token_id)
