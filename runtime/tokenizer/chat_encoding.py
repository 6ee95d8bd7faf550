"""Chat messages to token ids, so that nothing in a message can pass for a control token."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ramet.runtime.tokenizer.chat_messages import ToolArguments
from ramet.runtime.tokenizer.private_text import number_of, numbered_character, private_text
from ramet.runtime.tokenizer.special_text import SpecialTextScanner
from ramet.runtime.tokenizer.tokenizer import Segment, Tokenizer


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    /,
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool = False,
    **template_kwargs: Any,
) -> list[int]:
    """Token ids of the conversation. Parameters and errors are those of ``ChatTemplate.render``.

    The template's own markers become control tokens; the same markers inside messages, tools and keyword
    arguments are spelled with ordinary tokens. Where those contain no such marker, the ids are those of the
    rendered text as a whole. BOS comes first where the model wants one, once, whether or not the template
    writes it.
    """
    guard = ContentGuard(tokenizer.special_text)
    text = tokenizer.chat_template.render_with(
        guard.protect,
        messages,
        tools,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        template_kwargs=template_kwargs,
    )
    return tokenizer.encode_segments(guard.segments(text), add_bos=True)


class ContentGuard:
    """Takes the texts of control tokens out of content before the template sees it, and puts them back after.

    In their place stands private text that the template carries along like any other: it may trim, split, or
    dump content as JSON around it. What is still found in the rendered text is the template's own. The same is
    done to the beginnings and ends of content that could form a control token's text together with their
    neighbours.
    """

    def __init__(self, scanner: SpecialTextScanner) -> None:
        self._scanner = scanner
        self._nonce = private_text()
        self._hidden: list[str] = []

    def protect(self, value: Any) -> Any:
        """A copy of ``value`` with the strings in it rewritten."""
        match value:
            case str():
                return self._protect_text(value)
            case ToolArguments():
                return ToolArguments(self._protect_mapping(value), self._protect_text(value.text))
            case Mapping():
                return self._protect_mapping(value)
            case list() | tuple():
                return [self.protect(item) for item in value]
            case _:
                return value

    def segments(self, text: str) -> list[Segment]:
        """The rendered text with the hidden texts put back, in segments that say what may be a control
        token."""
        if not self._hidden:
            return [(text, True)]
        pieces = re.split(f"{self._nonce}(.)", text, flags=re.DOTALL)
        # The pieces at odd places are the numbers of hidden texts, those between are the template's own text.
        return [
            (self._hidden[number_of(piece)], False) if i % 2 else (piece, True)
            for i, piece in enumerate(pieces)
        ]

    def _protect_mapping(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        return {self.protect(key): self.protect(item) for key, item in value.items()}

    def _protect_text(self, text: str) -> str:
        parts: list[str] = []
        at = 0
        for start, end, _ in self._scanner.spans(text):
            parts += (text[at:start], self._hide(text[start:end]))
            at = end
        parts.append(text[at:])
        parts[-1] = self._protect_end(parts[-1])
        parts[0] = self._protect_beginning(parts[0])
        return "".join(parts)

    def _protect_end(self, text: str) -> str:
        # A template may trim, so the last characters that are not white space count.
        end = len(text.rstrip())
        start = end - self._scanner.ending_part(text[:end])
        return text if start == end else text[:start] + self._hide(text[start:end]) + text[end:]

    def _protect_beginning(self, text: str) -> str:
        start = len(text) - len(text.lstrip())
        end = start + self._scanner.beginning_part(text[start:])
        return text if start == end else text[:start] + self._hide(text[start:end]) + text[end:]

    def _hide(self, text: str) -> str:
        if text not in self._hidden:
            self._hidden.append(text)
        return self._nonce + numbered_character(self._hidden.index(text))
