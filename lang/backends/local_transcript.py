"""What one branch has said so far, as an immutable record: turns, and in them text and what was generated."""

from collections.abc import Hashable
from dataclasses import dataclass, replace

import msgspec

from ramet.lang.backends.base import ToolSpec

OUTSIDE = ""
"""The role of text outside any role."""


@dataclass(frozen=True, slots=True)
class Generated:
    """Token ids that the model gave, or that were chosen: carried from then on, never tokenised again.

    With token healing they take the place of the last tokens of the text before them: they begin with the
    bytes ``replaced``, which ``num_replaced`` tokens spelled there. ``text`` is what they add behind those.
    """

    token_ids: tuple[int, ...]
    text: str
    num_replaced: int = 0
    replaced: bytes = b""


Part = str | Generated


@dataclass(frozen=True, slots=True)
class Opening:
    """How a template begins an assistant's turn in a conversation (``rendered``) and where it asks for one
    (``asked``), where the two differ. A turn that begins with generated ids keeps what they were asked with."""

    rendered: str
    asked: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What one role says; OUTSIDE: text that stands outside the chat template."""

    role: str
    parts: tuple[Part, ...] = ()
    opening: Opening | None = None

    @property
    def content(self) -> str:
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class Transcript:
    """Turns in order. ``is_open``: the last one is a role's and goes on."""

    turns: tuple[Turn, ...] = ()
    is_open: bool = False
    tools: tuple[ToolSpec, ...] = ()
    """What the model is told that it may call."""

    def with_tools(self, tools: tuple[ToolSpec, ...]) -> "Transcript":
        return replace(self, tools=tools)

    def with_text(self, text: str) -> "Transcript":
        return self._with_part(text) if text else self

    def with_generated(self, generated: Generated, opening: Opening | None = None) -> "Transcript":
        """``opening``: where it is the first part of an assistant's turn."""
        extended = self._with_part(generated)
        if opening is None:
            return extended
        last = replace(extended.turns[-1], opening=opening)
        return replace(extended, turns=(*extended.turns[:-1], last))

    def with_role(self, role: str) -> "Transcript":
        """Not inside another role."""
        assert not self.is_open
        return replace(self, turns=(*self.turns, Turn(role)), is_open=True)

    def without_role(self) -> "Transcript":
        """The open role ends."""
        assert self.is_open
        return replace(self, is_open=False)

    def identity(self) -> Hashable:
        """Equal for transcripts of the same token ids: it does not matter how their text was cut."""
        turns = tuple(replace(turn, parts=_merged(turn.parts)) for turn in self.turns)
        return turns, self.is_open, msgspec.json.encode(self.tools)

    @property
    def role(self) -> str:
        """The open one, or OUTSIDE."""
        return self.turns[-1].role if self.is_open else OUTSIDE

    def trailing_text(self) -> str:
        """The program's text at the very end, behind everything generated; "" at a template's seam."""
        if not self.turns or (self.turns[-1].role != OUTSIDE and not self.is_open):
            return ""
        texts: list[str] = []
        for part in reversed(self.turns[-1].parts):
            if not isinstance(part, str):
                break
            texts.append(part)
        return "".join(reversed(texts))

    def _with_part(self, part: Part) -> "Transcript":
        if not self.turns or (not self.is_open and self.turns[-1].role != OUTSIDE):
            return replace(self, turns=(*self.turns, Turn(OUTSIDE, (part,))), is_open=False)
        last = self.turns[-1]
        return replace(self, turns=(*self.turns[:-1], replace(last, parts=(*last.parts, part))))


def _merged(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part != "":
            merged.append(part)
    return tuple(merged)


NOTHING_SAID = Transcript()
