"""From a transcript to the text that the model reads, by the model's own chat template, in pieces between which
stands what was generated.

The whole conversation is rendered each time, so a template that treats turns by their place, adds a system
message of its own or trims what it is given has its way. In place of generated parts the template sees private
text, which it carries along like any other; that is where the rendering is cut.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from ramet.lang.backends.base import ToolSpec
from ramet.lang.backends.local_transcript import OUTSIDE, Generated, Opening, Part, Transcript, Turn
from ramet.lang.backends.tool_dialect import TemplateDialect, ToolDialect, dialect_of
from ramet.lang.backends.tool_json import describe
from ramet.lang.errors import UnsupportedError
from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.tokenizer import Segment, Tokenizer
from ramet.runtime.tokenizer.chat_encoding import ContentGuard
from ramet.runtime.tokenizer.private_text import number_of, numbered_character, private_text

Piece = tuple[Segment, ...]
"""A text in segments that say whether the texts of special tokens in it stand for those tokens."""

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Rendering:
    """``pieces[i]`` stands before ``generated[i]``; one piece more stands at the end."""

    pieces: tuple[Piece, ...]
    generated: tuple[Generated, ...]
    opening: Opening | None = None
    """Of the last turn, if it is an assistant's and does not begin with text."""

    def text(self) -> str:
        texts = [piece_text(piece) for piece in self.pieces]
        return texts[0] + "".join(
            generated.text + text for generated, text in zip(self.generated, texts[1:], strict=True)
        )


def piece_text(piece: Piece) -> str:
    return "".join(text for text, _ in piece)


class TranscriptRenderer:
    """Renders transcripts for one model. Immutable but for what it remembers of the template."""

    def __init__(
        self, tokenizer: Tokenizer, *, special_text: bool = False, structural_tags: bool = False
    ) -> None:
        """``special_text``: outside roles, the texts of special tokens stand for those tokens.
        ``structural_tags``: calls of tools can be enforced in the template's own form."""
        self._tokenizer = tokenizer
        self._special_text = special_text
        self._structural_tags = structural_tags

    def render(self, transcript: Transcript) -> Rendering:
        """The transcript's text; an open turn stays open, and an open assistant's turn without any content ends
        as the template asks for an answer.

        Raises:
            InvalidRequestError: the template refuses these messages, in its own words.
            UnsupportedError: it has no place for a part of them.
        """
        draft = _Draft(ContentGuard(self._tokenizer.special_text))
        if transcript.tools and isinstance(self.tool_dialect, TemplateDialect):
            draft.tools = [_as_json(tool) for tool in transcript.tools]
        messages, outside = self._arrange(draft, transcript)
        if not messages:
            return Rendering(draft.pieces("".join(text for _, text in outside)), tuple(draft.generated))
        text, opening = self._conversation(draft, messages, transcript)
        text = self._place(draft, messages, outside, text)
        for mark, turn_opening in draft.openings:
            head, found, tail = text.partition(mark)
            if found and head.endswith(turn_opening.rendered):
                text = head.removesuffix(turn_opening.rendered) + turn_opening.asked + mark + tail
        return Rendering(draft.pieces(text), tuple(draft.generated), opening)

    @cached_property
    def has_system_role(self) -> bool:
        """Whether the template has a place for a system message, be it in the user's turn."""
        system, user = private_text(), private_text()
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        try:
            return system in self._tokenizer.chat_template.render(messages, add_generation_prompt=False)
        except InvalidRequestError:
            return False

    @cached_property
    def tool_dialect(self) -> ToolDialect:
        return dialect_of(self._tokenizer, structural_tags=self._structural_tags)

    @cached_property
    def has_tool_role(self) -> bool:
        """Whether the template has a place for what a tool gave."""
        result = private_text()
        messages = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "."},
            {"role": "tool", "content": result},
        ]
        try:
            return result in self._tokenizer.chat_template.render(messages, add_generation_prompt=False)
        except InvalidRequestError:
            return False

    def _arrange(self, draft: "_Draft", transcript: Transcript) -> tuple[list[Message], list[tuple[int, str]]]:
        """The chat messages; and the texts outside them, each with the number of messages before it.

        Where the template has no system role, its text begins the user's turn that follows, or is one.
        """
        messages: list[Message] = []
        outside: list[tuple[int, str]] = []
        described = self._described_tools(draft, transcript)
        system = described if not self.has_system_role else ""
        last_role = next((turn for turn in reversed(transcript.turns) if turn.role != OUTSIDE), None)
        for turn in transcript.turns:
            if turn.role == OUTSIDE:
                text = draft.content(turn)
                outside.append((len(messages), text if self._special_text else draft.guard.protect(text)))
                continue
            # The opening of the last turn is rendered anew.
            content = draft.content(turn, keep_opening=turn is not last_role)
            if turn.role in ("system", "developer") and not self.has_system_role:
                system = f"{system}\n\n{content}" if system else content
                continue
            if system and turn.role == "user":
                content = f"{system}\n\n{content}"
            elif system:
                messages.append({"role": "user", "content": system})
            system = ""
            if described and self.has_system_role:
                if turn.role in ("system", "developer"):
                    content = f"{content}\n\n{described}" if content else described
                else:
                    messages.append({"role": "system", "content": described})
                described = ""
            messages.append({"role": turn.role, "content": content})
        if system:
            messages.append({"role": "user", "content": system})
        return messages, outside

    def _described_tools(self, draft: "_Draft", transcript: Transcript) -> str:
        """What the model is told of the tools where its template does not tell it."""
        return describe(transcript.tools) if transcript.tools and draft.tools is None else ""

    def _conversation(
        self, draft: "_Draft", messages: list[Message], transcript: Transcript
    ) -> tuple[str, Opening | None]:
        text = self._render(draft, messages, is_open=transcript.is_open)
        last = next(turn for turn in reversed(transcript.turns) if turn.role != OUTSIDE)
        begins_with_text = bool(last.parts) and isinstance(last.parts[0], str)
        if last.role != "assistant" or begins_with_text or len(messages) < 2:
            return text, None
        if not last.parts and not transcript.is_open:
            return text, None
        earlier = messages[:-1]
        asked = self._render(draft, earlier, asks=True)
        before = self._render(draft, earlier)
        mark = draft.first_mark(last)
        head, found, tail = text.partition(mark) if mark else (text, "", "")
        if mark and not found:
            return text, None
        opening = None
        if asked.startswith(before) and head.startswith(before):
            opening = Opening(rendered=head[len(before) :], asked=asked[len(before) :])
            if not opening.asked.strip() and opening.rendered.strip():
                # The template does not know how to ask.
                return text, None
        is_alike = opening is None or opening.rendered == opening.asked
        return asked + mark + tail, None if is_alike else opening

    def _place(
        self, draft: "_Draft", messages: list[Message], outside: Sequence[tuple[int, str]], text: str
    ) -> str:
        """Put the texts that stand outside roles between the messages."""
        for count, added in reversed(outside):
            if count == len(messages):
                text += added
            elif count == 0:
                text = added + text.removeprefix(self._bos_text)
            else:
                head = self._render(draft, messages[:count])
                if not text.startswith(head):
                    raise UnsupportedError(
                        "text stands between two roles, and this model's chat template does not render the "
                        "turns before it the same way when others follow; move the text into a role"
                    )
                text = head + added + text[len(head) :]
        return text

    @property
    def _bos_text(self) -> str:
        bos = self._tokenizer.bos_token_id
        return next((text for text, i in self._tokenizer.special_tokens.items() if i == bos), "")

    def _render(
        self, draft: "_Draft", messages: Sequence[Message], *, is_open: bool = False, asks: bool = False
    ) -> str:
        return self._tokenizer.chat_template.render_with(
            draft.guard.protect,
            messages,
            draft.tools,
            add_generation_prompt=asks,
            continue_final_message=is_open,
            template_kwargs={},
        )


def _as_json(tool: ToolSpec) -> dict[str, Any]:
    return {"type": "function", "function": msgspec.to_builtins(tool)}


@dataclass(slots=True)
class _Draft:
    """One rendering in the making: what stands for generated parts, and for special tokens' texts."""

    guard: ContentGuard
    generated: list[Generated] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    """In OpenAI's form, for a template that has a place for them."""
    openings: list[tuple[str, Opening]] = field(default_factory=list)
    """With the mark that they stand before."""
    _nonce: str = field(default_factory=private_text)
    _first_marks: dict[int, str] = field(default_factory=dict)

    def content(self, turn: Turn, *, keep_opening: bool = False) -> str:
        """The turn's content with a mark for each generated part. Once a turn, in their order."""
        texts = [self._write(part) for part in turn.parts]
        if turn.parts and isinstance(turn.parts[0], Generated):
            self._first_marks[id(turn)] = texts[0]
            if keep_opening and turn.opening is not None:
                self.openings.append((texts[0], turn.opening))
        return "".join(texts)

    def first_mark(self, turn: Turn) -> str:
        """What stands for the generated part that the turn begins with; "" where there is none."""
        return self._first_marks.get(id(turn), "")

    def pieces(self, text: str) -> tuple[Piece, ...]:
        """The rendered text between the marks."""
        parts = re.split(f"{self._nonce}(.)", text, flags=re.DOTALL)
        found = [number_of(character) for character in parts[1::2]]
        if found != list(range(len(self.generated))):
            raise UnsupportedError(
                "this model's chat template leaves out, repeats or reorders what was generated in earlier "
                "turns, so the conversation cannot be continued; write the prompt as text, outside roles"
            )
        return tuple(
            tuple(segment for segment in self.guard.segments(part) if segment[0]) for part in parts[::2]
        )

    def _write(self, part: Part) -> str:
        if isinstance(part, str):
            return part
        self.generated.append(part)
        return self._nonce + numbered_character(len(self.generated) - 1)
