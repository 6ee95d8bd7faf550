"""A transcript: what a prompt has said, for backends that keep it as text and messages themselves."""

from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from ramet.lang.backends.base import (
    GenerateDelta,
    SelectRequest,
    SelectResult,
    ToolCall,
    ToolOffer,
)
from ramet.lang.errors import ProgramStructureError
from ramet.runtime.protocol import ProgramTag, SamplingParams

ROLES = ("system", "user", "assistant", "tool", "developer")


@dataclass(frozen=True, slots=True)
class Piece:
    """kind: text, image, begin or end (of a role), call (of a tool), result (of a call, before its text);
    content: the text, the URL, the role, the call's JSON, the call's id."""

    kind: str
    content: str


@dataclass(slots=True)
class Transcript:
    """Text, images and roles in their order. Roles neither nest nor end before they begin."""

    pieces: list[Piece] = field(default_factory=list)
    role: str | None = None
    num_shared: int = 0
    """How many pieces were said before the last fork: the branches beside this one begin with them too."""
    told: tuple[str, ...] = ()
    """The names of the tools that were offered last."""
    adapter: str | None = None
    """The LoRA adapter that the answer being generated is given with."""

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

    def tell_of(self, offer: ToolOffer) -> None:
        self.told = tuple(tool.name for tool in offer.tools)

    def append_tool_calls(self, calls: Sequence[ToolCall]) -> None:
        for call in calls:
            self.pieces.append(Piece("call", msgspec.json.encode(call).decode()))

    def append_tool_results(self, results: Sequence[tuple[ToolCall, str]]) -> None:
        """In an open assistant's turn; one is open afterwards."""
        self.end_role("assistant")
        for call, text in results:
            self.begin_role("tool")
            self.pieces.append(Piece("result", call.id))
            self.append_text(text)
            self.end_role("tool")
        self.begin_role("assistant")

    def fork(self) -> "Transcript":
        return Transcript(list(self.pieces), self.role, len(self.pieces), self.told)

    def identity(self) -> tuple[tuple[str, str], ...]:
        """Equal for transcripts that say the same, however their text was cut."""
        said: list[tuple[str, str]] = []
        for piece in self.pieces:
            if piece.kind == "text" and said and said[-1][0] == "text":
                said[-1] = ("text", said[-1][1] + piece.content)
            else:
                said.append((piece.kind, piece.content))
        return tuple(said)

    def text(self) -> str:
        """In the form of ChatML; text outside of roles as it is."""
        shown = {
            "text": "{}",
            "image": "<|image|>",
            "begin": "<|im_start|>{}\n",
            "end": "<|im_end|>\n",
            "call": "<tool_call>{}</tool_call>",
            "result": "",
        }
        return "".join(shown[piece.kind].replace("{}", piece.content) for piece in self.pieces)

    def messages(self) -> list[dict[str, object]]:
        """The roles, in the form of OpenAI's API; content is text, or a list of parts where there is an image.
        Text outside is left out."""
        messages: list[dict[str, object]] = []
        parts: list[Piece] = []
        role: str | None = None
        for piece in self.pieces:
            match piece.kind:
                case "begin":
                    role, parts = piece.content, []
                case "end":
                    messages.append(_message(str(role), parts))
                    role = None
                case _ if role is not None:
                    parts.append(piece)
        if role is not None:
            messages.append(_message(role, parts))
        return messages


class Answers(Protocol):
    """Who answers for prompts that are transcripts. Inherit from it where the transcript itself says what was
    said."""

    def text_of(self, transcript: Transcript) -> str:
        return transcript.text()

    def messages_of(self, transcript: Transcript) -> list[dict[str, object]]:
        return transcript.messages()

    def generate(
        self,
        transcript: Transcript,
        params: SamplingParams,
        *,
        tag: ProgramTag,
        priority: int,
        offer: ToolOffer | None,
    ) -> AsyncGenerator[GenerateDelta, None]: ...

    async def select(self, transcript: Transcript, request: SelectRequest) -> SelectResult: ...


class TranscriptPrompt:
    """A prompt that is a transcript and no more: somebody else answers."""

    def __init__(self, answers: Answers, transcript: Transcript) -> None:
        self.transcript = transcript
        self._answers = answers
        self._offer: ToolOffer | None = None

    def append_text(self, text: str) -> None:
        self.transcript.append_text(text)

    def begin_role(self, role: str) -> None:
        self.transcript.begin_role(role)

    def end_role(self, role: str) -> None:
        self.transcript.end_role(role)

    def append_image(self, data_url: str) -> None:
        self.transcript.append_image(data_url)

    def offer_tools(self, offer: ToolOffer) -> None:
        self._offer = offer
        self.transcript.tell_of(offer)

    def use_adapter(self, name: str) -> None:
        self.transcript.adapter = name

    def append_tool_calls(self, calls: Sequence[ToolCall]) -> None:
        self.transcript.append_tool_calls(calls)

    def append_tool_results(self, results: Sequence[tuple[ToolCall, str]]) -> None:
        self.transcript.append_tool_results(results)

    def fork(self) -> "TranscriptPrompt":
        return TranscriptPrompt(self._answers, self.transcript.fork())

    def text(self) -> str:
        return self._answers.text_of(self.transcript)

    def messages(self) -> list[dict[str, object]]:
        return self._answers.messages_of(self.transcript)

    def told(self) -> object:
        return self.transcript.told

    def text_telling(self, told: object) -> str:
        assert isinstance(told, tuple)
        return self._answers.text_of(replace(self.transcript, told=told))

    def identity(self) -> Hashable:
        return self.transcript.identity()

    async def generate(
        self, params: SamplingParams, *, tag: ProgramTag, priority: int = 0
    ) -> AsyncIterator[GenerateDelta]:
        offer, self._offer = self._offer, None
        texts: list[str] = []
        calls: tuple[ToolCall, ...] = ()
        stream = self._answers.generate(self.transcript, params, tag=tag, priority=priority, offer=offer)
        try:
            async for delta in stream:
                texts.append(delta.text)
                calls += delta.tool_calls
                yield delta
        finally:
            await stream.aclose()
            self.transcript.adapter = None
        if params.n == 1:
            self.transcript.append_text("".join(texts))
            self.transcript.append_tool_calls(calls)

    async def select(self, request: SelectRequest) -> SelectResult:
        result = await self._answers.select(self.transcript, request)
        self.transcript.append_text(result.option)
        return result


def _message(role: str, parts: list[Piece]) -> dict[str, object]:
    content = [part for part in parts if part.kind in ("text", "image")]
    message: dict[str, object] = {"role": role, "content": _content(content)}
    for part in parts:
        if part.kind == "result":
            message["tool_call_id"] = part.content
    calls = [msgspec.json.decode(part.content, type=ToolCall) for part in parts if part.kind == "call"]
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def _content(parts: list[Piece]) -> str | list[dict[str, Any]]:
    if all(part.kind == "text" for part in parts):
        return "".join(part.content for part in parts)
    return [
        {"type": "text", "text": part.content}
        if part.kind == "text"
        else {"type": "image_url", "image_url": {"url": part.content}}
        for part in parts
    ]
