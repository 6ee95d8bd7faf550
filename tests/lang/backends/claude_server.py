"""A server that speaks Anthropic's Messages API, with a test's answers, in events of the official types'
shape."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.lang.backends.chat_server import Body, Recorder, tokens
from tests.lang.backends.loopback import Answer, Handler, Request, of_events, of_json

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


@dataclass
class Speaks:
    """One answer. The text is sent token by token: words with the white space before them."""

    text: str = ""
    thinking: str = ""
    stop_reason: str = "end_turn"
    stop_sequence: str | None = None
    calls: Sequence[tuple[str, str, str]] = ()
    """Tool calls: id, name, arguments."""


def claude_handler(script: Callable[[Body], Speaks | Answer], recorder: Recorder | None = None) -> Handler:
    async def handler(request: Request) -> Answer:
        if request.method == "GET":
            return of_json({"id": request.path.rsplit("/", 1)[1], "type": "model"})
        assert request.path == "/v1/messages"
        assert request.headers["anthropic-version"] == "2023-06-01"
        if recorder is not None:
            recorder.bodies.append(request.json)
        answer = script(request.json)
        return answer if isinstance(answer, Answer) else of_events(*_events(answer), done=False)

    return handler


def _events(says: Speaks) -> list[str]:
    usage = {
        "input_tokens": 5,
        "cache_read_input_tokens": 7,
        "cache_creation_input_tokens": 2,
        "output_tokens": 1,
    }
    message: dict[str, Any] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    index = 0
    if says.thinking:
        deltas = [{"type": "thinking_delta", "thinking": token} for token in tokens(says.thinking)]
        deltas.append({"type": "signature_delta", "signature": "xyz"})
        events += _block(index, {"type": "thinking", "thinking": "", "signature": ""}, deltas)
        index += 1
    if says.text:
        deltas = [{"type": "text_delta", "text": token} for token in tokens(says.text)]
        events += _block(index, {"type": "text", "text": "", "citations": None}, deltas)
        index += 1
    for call_id, name, arguments in says.calls:
        pieces = [arguments[at : at + 4] for at in range(0, len(arguments), 4)]
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces]]
        events += _block(index, {"type": "tool_use", "id": call_id, "name": name, "input": {}}, deltas)
        index += 1
    end = {"stop_reason": says.stop_reason, "stop_sequence": says.stop_sequence}
    events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": len(tokens(says.text))}})
    events.append({"type": "message_stop"})
    for event in events:
        EVENT.validate_python(event)
    events.insert(1, {"type": "ping"})
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


def _block(index: int, begin: dict[str, Any], deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": begin},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]
