"""A server that speaks OpenAI's API, with a test's answers, in chunks of the official types' shape."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from tests.lang.backends.loopback import Answer, Handler, Request, of_events, of_json

Body = dict[str, Any]


@dataclass
class Says:
    """One answer. The text is sent token by token: words with the white space before them."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str = "stop"
    refusal: str = ""
    calls: Sequence[tuple[str, str, str]] = ()
    """Tool calls: id, name, arguments."""
    stop_reason: object = None
    token_ids: bool = False


Script = Callable[[Body], Says | list[Says] | Answer]


@dataclass
class Recorder:
    """What was asked."""

    bodies: list[Body] = field(default_factory=list)


def chat_handler(script: Script, recorder: Recorder | None = None) -> Handler:
    async def handler(request: Request) -> Answer:
        if request.method == "GET":
            return of_json({"object": "list", "data": [{"id": "m", "object": "model"}]})
        body = request.json
        if recorder is not None:
            recorder.bodies.append(body)
        answer = script(body)
        if isinstance(answer, Answer):
            return answer
        is_chat = request.path.endswith("/chat/completions")
        says = answer if isinstance(answer, list) else [answer]
        return of_events(*_chunks(body, says, is_chat=is_chat))

    return handler


def tokens(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def _chunks(body: Body, says: list[Says], *, is_chat: bool) -> list[object]:
    chunks: list[object] = []
    for index, one in enumerate(says):
        chunks += _special(index, one)
        for number, token in enumerate(tokens(one.text)):
            choice: dict[str, Any] = {"index": index, "finish_reason": None}
            if is_chat:
                choice["delta"] = {"content": token}
            else:
                choice["text"] = token
            if body.get("logprobs") not in (None, False):
                choice["logprobs"] = _logprobs(token, is_chat=is_chat)
            if one.token_ids:
                choice["token_ids"] = [100 + number]
            chunks.append(_chunk([choice], is_chat=is_chat))
        last = {"index": index, "finish_reason": one.finish_reason, "delta": {}}
        if not is_chat:
            last = {"index": index, "finish_reason": one.finish_reason, "text": "", "logprobs": None}
        if one.stop_reason is not None:
            last["stop_reason"] = one.stop_reason
        chunks.append(_chunk([last], is_chat=is_chat))
    if (body.get("stream_options") or {}).get("include_usage"):
        num_output = sum(len(tokens(one.text)) for one in says)
        usage = {
            "prompt_tokens": 11,
            "completion_tokens": num_output,
            "total_tokens": 11 + num_output,
            "prompt_tokens_details": {"cached_tokens": 7},
        }
        chunks.append(_chunk([], is_chat=is_chat, usage=usage))
    return chunks


def _special(index: int, one: Says) -> Sequence[object]:
    deltas: list[dict[str, Any]] = []
    if one.reasoning:
        deltas += [{"reasoning_content": token} for token in tokens(one.reasoning)]
    if one.refusal:
        deltas.append({"refusal": one.refusal})
    for number, (call_id, name, arguments) in enumerate(one.calls):
        head = {"index": number, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        deltas += [
            {"tool_calls": [{"index": number, "function": {"arguments": arguments[at : at + 3]}}]}
            for at in range(0, len(arguments), 3)
        ]
    chunks = [
        _chunk([{"index": index, "finish_reason": None, "delta": delta}], is_chat=True) for delta in deltas
    ]
    # Reasoning comes first, and this list is put behind the text: the order is no matter to a client.
    return chunks


def _chunk(choices: list[dict[str, Any]], *, is_chat: bool, usage: object = None) -> dict[str, Any]:
    chunk: dict[str, Any] = {"id": "c", "created": 1, "model": "m", "choices": choices, "usage": usage}
    chunk["object"] = "chat.completion.chunk" if is_chat else "text_completion"
    chunk["system_fingerprint"] = "fp"
    if is_chat:
        ChatCompletionChunk.model_validate(chunk)
    elif all(choice["finish_reason"] for choice in choices):
        Completion.model_validate(chunk)
    return chunk


def _logprobs(token: str, *, is_chat: bool) -> dict[str, Any]:
    if not is_chat:
        return {
            "tokens": [token],
            "token_logprobs": [-0.5],
            "top_logprobs": [{token: -0.5, "other": -0.25}],
            "text_offset": [0],
        }
    tops = [
        {"token": text, "logprob": value, "bytes": None} for text, value in ((token, -0.5), ("other", -0.25))
    ]
    return {
        "content": [{"token": token, "logprob": -0.5, "bytes": None, "top_logprobs": tops}],
        "refusal": None,
    }
