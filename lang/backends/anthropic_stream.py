"""Answers of Anthropic's Messages API as they come: events in, increments out."""

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ramet.lang.backends.answer_text import AnswerText
from ramet.lang.backends.anthropic_request import Letter
from ramet.lang.backends.base import GenerateDelta, ToolCall
from ramet.lang.backends.http_errors import answered_error
from ramet.lang.backends.sse import ServerSentEvent
from ramet.lang.errors import GenerationError
from ramet.runtime.protocol import FinishReason, RequestStats

FINISH_REASONS = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
}


@dataclass(slots=True)
class _Block:
    """A part of the answer: text, thinking, or a tool's use."""

    kind: str
    id: str = ""
    name: str = ""
    parts: list[str] = field(default_factory=list)


class MessageReader:
    """Reads the events of one streamed message."""

    def __init__(self, name: str, letter: Letter) -> None:
        """name: of the server, for errors."""
        self._name = name
        self._text = AnswerText(name, letter.reading)
        self._unseen = letter.hidden_space
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, Any] = {}
        self._reason: str | None = None
        self._stop_sequence: str | None = None
        self._started = time.monotonic()
        self._first: float | None = None

    @property
    def is_over(self) -> bool:
        """What follows is no part of the answer."""
        return self._text.is_over

    def push(self, event: ServerSentEvent) -> list[GenerateDelta]:
        """Raises GenerationError: the server reports an error, or what it says is no event."""
        try:
            said = msgspec.json.decode(event.data)
        except msgspec.DecodeError as error:
            raise GenerationError(
                f"{self._name} sent an event that is no JSON: {event.data[:200]!r}"
            ) from error
        match said:
            case {"type": "error"}:
                raise answered_error(self._name, None, event.data)
            case {"type": "message_start", "message": {"usage": usage}}:
                self._usage |= usage
            case {"type": "content_block_start", "index": index, "content_block": block}:
                self._blocks[index] = _Block(block["type"], block.get("id", ""), block.get("name", ""))
                return self._grow(index, block.get("text") or block.get("thinking") or "")
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                return self._grow(
                    index, delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
                )
            case {"type": "message_delta", "delta": delta}:
                self._reason = delta.get("stop_reason") or self._reason
                self._stop_sequence = delta.get("stop_sequence") or self._stop_sequence
                self._usage |= {
                    key: value for key, value in (said.get("usage") or {}).items() if value is not None
                }
        return []

    def finish(self) -> GenerateDelta:
        """The last increment. Raises GenerationError where the message did not end by itself."""
        if not self._text.is_over:
            if self._reason == "refusal":
                raise GenerationError("the model refuses to answer")
            if self._reason not in FINISH_REASONS:
                how = (
                    "broke off its answer"
                    if self._reason is None
                    else f"ended the answer with {self._reason!r}"
                )
                raise GenerationError(f"{self._name} {how}")
        text, finish_reason, stop_reason = self._text.finish(
            FINISH_REASONS.get(str(self._reason), FinishReason.STOP), self._stop_sequence
        )
        calls = tuple(
            ToolCall(id=block.id, name=block.name, arguments="".join(block.parts) or "{}")
            for _, block in sorted(self._blocks.items())
            if block.kind == "tool_use"
        )
        return GenerateDelta(
            text=text,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            stats=self._stats(),
            tool_calls=calls,
        )

    def _grow(self, index: int, text: str) -> list[GenerateDelta]:
        block = self._blocks.setdefault(index, _Block("text"))
        if not text:
            return []
        if self._first is None:
            self._first = time.monotonic()
        match block.kind:
            case "thinking":
                return [GenerateDelta(reasoning=text)]
            case "text":
                shown = self._text.push(self._behind_hidden_space(text))
                return [GenerateDelta(text=shown)] if shown else []
            case _:
                block.parts.append(text)
        return []

    def _behind_hidden_space(self, text: str) -> str:
        """The text without what of it spells the white space again that stood before the answer."""
        while self._unseen and text.startswith(self._unseen[0]):
            self._unseen, text = self._unseen[1:], text[1:]
        if text:
            self._unseen = ""
        return text

    def _stats(self) -> RequestStats:
        """Times are the client's."""
        usage = self._usage
        cached = usage.get("cache_read_input_tokens") or 0
        written = usage.get("cache_creation_input_tokens") or 0
        return RequestStats(
            # What the API calls input tokens are those that are neither read from a cache nor written to one.
            num_prompt_tokens=(usage.get("input_tokens") or 0) + cached + written,
            num_cached_tokens=cached,
            num_output_tokens=usage.get("output_tokens") or 0,
            ttft=None if self._first is None else self._first - self._started,
            e2e=time.monotonic() - self._started,
        )
