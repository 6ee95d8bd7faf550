"""ResponsesWriter: the increments of an answer as the events of OpenAI's responses."""

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ramet.runtime.engine import Increment
from ramet.runtime.server.chat_chunks import Delta, ToolCallDelta
from ramet.runtime.server.chat_writer import AnswerHead, ChatWriter
from ramet.runtime.server.usage import Usage

Event = dict[str, Any]
"""One server-sent event's data; its ``type`` is the event's name."""


class ResponsesWriter:
    """Chat's chunks as items: reasoning, messages and function calls, one at a time, in the order they come.

    The last event has the whole response, which is also the answer without a stream.
    """

    def __init__(self, chat: ChatWriter, head: AnswerHead, echoed: Event) -> None:
        """``echoed``: what a response repeats of its request."""
        self._chat = chat
        self._head = head
        self._echoed = echoed
        self._sequence = 0
        self._begun = False
        self._items: list[Event] = []
        self._open: tuple[str, int] | None = None
        """Kind of the open item, and which tool call it is."""
        self._is_cut = False

    def push(self, increment: Increment) -> list[Event]:
        return [self._numbered(event) for event in self._events(increment)]

    def end(self) -> list[Event]:
        events = [*self._close_item()]
        kind = "response.incomplete" if self._is_cut else "response.completed"
        events.append({"type": kind, "response": self._response("incomplete" if self._is_cut else "completed")})
        return [self._numbered(event) for event in events]

    def encode(self, chunk: Event) -> bytes:
        return msgspec.json.encode(chunk)

    def fold(self, chunks: Sequence[Event]) -> Event:
        response: Event = chunks[-1]["response"]
        return response

    def _numbered(self, event: Event) -> Event:
        self._sequence += 1
        return {**event, "sequence_number": self._sequence - 1}

    def _events(self, increment: Increment) -> Iterator[Event]:
        if not self._begun:
            self._begun = True
            yield {"type": "response.created", "response": self._response("in_progress")}
            yield {"type": "response.in_progress", "response": self._response("in_progress")}
        for chunk in self._chat.push(increment):
            for choice in chunk.choices:
                yield from self._delta(choice.delta)
                self._is_cut |= choice.finish_reason == "length"

    def _delta(self, delta: Delta) -> Iterator[Event]:
        if isinstance(delta.reasoning_content, str):
            content = [{"type": "reasoning_text", "text": ""}]
            item = {"id": _new_id("rs"), "type": "reasoning", "summary": [], "content": content}
            yield from self._open_item(("reasoning", 0), item)
            yield from self._text("response.reasoning_text.delta", delta.reasoning_content)
        if isinstance(delta.content, str) and delta.content:
            item = {"id": _new_id("msg"), "type": "message", "role": "assistant", "content": []}
            yield from self._open_item(("message", 0), item)
            if not self._items[-1]["content"]:
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                self._items[-1]["content"].append(part)
                yield {**self._place(content=True), "type": "response.content_part.added", "part": dict(part)}
            yield from self._text("response.output_text.delta", delta.content)
        for call in delta.tool_calls or ():
            yield from self._call(call)

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        self._items[-1]["content"][0]["text"] += text
        logprobs: Event = {"logprobs": []} if kind == "response.output_text.delta" else {}
        yield {**self._place(content=True), "type": kind, "delta": text, **logprobs}

    def _call(self, call: ToolCallDelta) -> Iterator[Event]:
        item = {
            "id": _new_id("fc"),
            "type": "function_call",
            "call_id": call.id,
            "name": call.function.name,
            "arguments": "",
        }
        yield from self._open_item(("function_call", call.index), item)
        if call.function.arguments:
            self._items[-1]["arguments"] += call.function.arguments
            yield {
                **self._place(),
                "type": "response.function_call_arguments.delta",
                "delta": call.function.arguments,
            }

    def _open_item(self, wanted: tuple[str, int], item: Event) -> Iterator[Event]:
        if self._open == wanted:
            return
        yield from self._close_item()
        self._open = wanted
        self._items.append({**item, "status": "in_progress"})
        yield {"type": "response.output_item.added", "output_index": len(self._items) - 1, "item": self._copy()}

    def _close_item(self) -> Iterator[Event]:
        if self._open is None:
            return
        kind, self._open = self._open[0], None
        item = self._items[-1]
        item["status"] = "incomplete" if self._is_cut else "completed"
        match kind:
            case "message":
                (part,) = item["content"]
                text = {**self._place(content=True), "type": "response.output_text.done", "text": part["text"]}
                yield {**text, "logprobs": []}
                yield {**self._place(content=True), "type": "response.content_part.done", "part": dict(part)}
            case "reasoning":
                text = item["content"][0]["text"]
                yield {**self._place(content=True), "type": "response.reasoning_text.done", "text": text}
            case _:
                yield {
                    **self._place(),
                    "type": "response.function_call_arguments.done",
                    "name": item["name"],
                    "arguments": item["arguments"],
                }
        yield {"type": "response.output_item.done", "output_index": len(self._items) - 1, "item": self._copy()}

    def _place(self, *, content: bool = False) -> Event:
        place = {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}
        return {**place, "content_index": 0} if content else place

    def _copy(self) -> Event:
        """Of the latest item, as it stands."""
        copied: Event = msgspec.json.decode(msgspec.json.encode(self._items[-1]))
        return copied

    def _response(self, status: str) -> Event:
        is_over = status != "in_progress"
        return {
            "id": self._head.id,
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "error": None,
            "completed_at": int(time.time()) if status == "completed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._head.model,
            "output": list(self._items) if is_over else [],
            "usage": responses_usage(self._chat.usage()) if is_over else None,
            **self._echoed,
        }


def responses_usage(usage: Usage) -> Event:
    """The same in the names of responses."""
    details = usage.completion_tokens_details
    reasoning_tokens = 0 if isinstance(details, msgspec.UnsetType) else details.reasoning_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(16)}"
