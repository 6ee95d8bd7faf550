"""MessagesWriter: the increments of an answer as Anthropic's events."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ramet.runtime.engine import Increment
from ramet.runtime.server.chat_chunks import ChunkChoice, Delta, ToolCallDelta
from ramet.runtime.server.chat_writer import AnswerHead, ChatWriter

Event = dict[str, Any]
"""One server-sent event's data; its ``type`` is the event's name."""

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesWriter:
    """Chat's chunks in blocks, one at a time: of thinking, of text, or of a tool's use."""

    def __init__(self, chat: ChatWriter, head: AnswerHead, num_prompt_tokens: int) -> None:
        self._chat = chat
        self._head = head
        self._num_prompt_tokens = num_prompt_tokens
        self._begun = False
        self._block: tuple[str, int] | None = None
        """Kind of the open block, and which tool call it is."""
        self._num_blocks = 0
        self._stop: tuple[str, str | None] = ("end_turn", None)

    def push(self, increment: Increment) -> list[Event]:
        events = [] if self._begun else [self._message_start()]
        self._begun = True
        for chunk in self._chat.push(increment):
            for choice in chunk.choices:
                events += self._choice(choice, increment)
        return events

    def end(self) -> list[Event]:
        usage = self._chat.usage()
        reason, sequence = self._stop
        num_cached = usage.prompt_tokens_details.cached_tokens
        counts = _usage(usage.prompt_tokens - num_cached, num_cached, usage.completion_tokens)
        return [
            *self._close_block(),
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": sequence},
                "usage": counts,
            },
            {"type": "message_stop"},
        ]

    def encode(self, chunk: Event) -> bytes:
        return msgspec.json.encode(chunk)

    def fold(self, chunks: Sequence[Event]) -> Event:
        message: dict[str, Any] = {}
        arguments: dict[int, str] = {}
        for event in chunks:
            match event:
                case {"type": "message_start", "message": started}:
                    message = {**started, "content": []}
                case {"type": "content_block_start", "content_block": block}:
                    message["content"].append(dict(block))
                case {"type": "content_block_delta", "index": index, "delta": delta}:
                    block = message["content"][index]
                    match delta["type"]:
                        case "text_delta":
                            block["text"] += delta["text"]
                        case "thinking_delta":
                            block["thinking"] += delta["thinking"]
                        case _:
                            arguments[index] = arguments.get(index, "") + delta["partial_json"]
                case {"type": "message_delta", "delta": delta, "usage": usage}:
                    message |= {**delta, "usage": usage}
        for index, text in arguments.items():
            message["content"][index]["input"] = _object(text)
        return message

    def _message_start(self) -> Event:
        message: dict[str, Any] = {
            "id": self._head.id,
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": _usage(self._num_prompt_tokens, 0, 0),
        }
        return {"type": "message_start", "message": message}

    def _choice(self, choice: ChunkChoice, increment: Increment) -> Iterator[Event]:
        yield from self._delta(choice.delta)
        if choice.finish_reason is not None:
            reason = STOP_REASONS.get(choice.finish_reason, choice.finish_reason)
            if reason == "end_turn" and isinstance(increment.stop_reason, str):
                self._stop = ("stop_sequence", increment.stop_reason)
            else:
                self._stop = (reason, None)

    def _delta(self, delta: Delta) -> Iterator[Event]:
        if isinstance(delta.reasoning_content, str):
            yield from self._open_block(("thinking", 0), {"type": "thinking", "thinking": "", "signature": ""})
            yield self._block_delta({"type": "thinking_delta", "thinking": delta.reasoning_content})
        if isinstance(delta.content, str) and delta.content:
            yield from self._open_block(("text", 0), {"type": "text", "text": "", "citations": None})
            yield self._block_delta({"type": "text_delta", "text": delta.content})
        for call in delta.tool_calls or ():
            yield from self._call(call)

    def _call(self, call: ToolCallDelta) -> Iterator[Event]:
        block: Event = {
            "type": "tool_use",
            "id": call.id,
            "name": call.function.name,
            "input": {},
            "caller": {"type": "direct"},
        }
        yield from self._open_block(("tool_use", call.index), block)
        if call.function.arguments:
            yield self._block_delta({"type": "input_json_delta", "partial_json": call.function.arguments})

    def _open_block(self, wanted: tuple[str, int], block: Event) -> Iterator[Event]:
        if self._block == wanted:
            return
        yield from self._close_block()
        self._block = wanted
        self._num_blocks += 1
        yield {"type": "content_block_start", "index": self._num_blocks - 1, "content_block": block}

    def _close_block(self) -> list[Event]:
        if self._block is None:
            return []
        self._block = None
        return [{"type": "content_block_stop", "index": self._num_blocks - 1}]

    def _block_delta(self, delta: Event) -> Event:
        return {"type": "content_block_delta", "index": self._num_blocks - 1, "delta": delta}


def _usage(input_tokens: int, num_cached: int, output_tokens: int) -> Event:
    """``input_tokens``: those that did not come from the cache."""
    return {
        "input_tokens": input_tokens,
        "cache_read_input_tokens": num_cached,
        "cache_creation_input_tokens": 0,
        "cache_creation": None,
        "output_tokens": output_tokens,
        "output_tokens_details": None,
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }


def _object(text: str) -> dict[str, Any]:
    """A call's arguments; none of them where max_tokens cut the call."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
