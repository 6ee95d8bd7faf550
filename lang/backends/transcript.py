"""A transcript: what a prompt has said, for backends that keep it as text and messages themselves."""

from dataclasses import dataclass, field
from typing import Any

from ramet.lang.errors import ProgramStructureError

ROLES = ("system", "user", "assistant", "tool", "developer")


@dataclass(frozen=True, slots=True)
class Piece:
    """kind: text, image, begin or end (of a role); content: the text, the URL, the role."""

    kind: str
    content: str


@dataclass(slots=True)
class Transcript:
    """Text, images and roles in their order. Roles neither nest nor end before they begin."""

    pieces: list[Piece] = field(default_factory=list)
    role: str | None = None

    def append_text(self, text: str) -> None:
        if text:
            self.pieces.append(Piece("text", text))

    def append_image(self, url: str) -> None:
        self.pieces.append(Piece("image", url))

    def begin_role(self, role: str) -> None:
        if role not in ROLES:
            raise ProgramStructureError(f"there is no role {role!r}; there are {', '.join(ROLES)}")
        if self.role is not None:
            raise ProgramStructureError(f"the {role} role begins inside the {self.role} role; end that first")
        self.role = role
        self.pieces.append(Piece("begin", role))

    def end_role(self, role: str) -> None:
        if self.role != role:
            raise ProgramStructureError(f"the {role} role ends, but the open role is {self.role}")
        self.role = None
        self.pieces.append(Piece("end", role))

    def fork(self) -> "Transcript":
        return Transcript(list(self.pieces), self.role)

    def text(self) -> str:
        """In the form of ChatML; text outside of roles as it is."""
        shown = {"text": "{}", "image": "<|image|>", "begin": "<|im_start|>{}\n", "end": "<|im_end|>\n"}
        return "".join(shown[piece.kind].replace("{}", piece.content) for piece in self.pieces)

    def messages(self) -> list[dict[str, object]]:
        """The roles; content is text, or a list of parts where there is an image. Text outside is left out."""
        messages: list[dict[str, object]] = []
        parts: list[Piece] = []
        role: str | None = None
        for piece in self.pieces:
            match piece.kind:
                case "begin":
                    role, parts = piece.content, []
                case "end":
                    messages.append({"role": role, "content": _content(parts)})
                    role = None
                case _ if role is not None:
                    parts.append(piece)
        if role is not None:
            messages.append({"role": role, "content": _content(parts)})
        return messages


def _content(parts: list[Piece]) -> str | list[dict[str, Any]]:
    if all(part.kind == "text" for part in parts):
        return "".join(part.content for part in parts)
    return [
        {"type": "text", "text": part.content}
        if part.kind == "text"
        else {"type": "image_url", "image_url": {"url": part.content}}
        for part in parts
    ]
