"""Tools in the prompt of a model whose chat template has no place for them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ramet.runtime.server.tools.definitions import ToolDefinition
from ramet.runtime.server.tools.formats import ToolFormat

Message = dict[str, Any]


def describe(tools: Sequence[ToolDefinition], format: ToolFormat) -> str:
    """What to tell a model of the tools and of how to call them."""
    lines = "\n".join(json.dumps(tool.source["function"], ensure_ascii=False) for tool in tools)
    call = f'{{"name": "...", "{format.arguments_key}": {{...}}}}'
    written = f"{format.begin}{call}{format.end}"
    return (
        f"You may call these functions:\n{lines}\n"
        f"To call one, answer with nothing but: {written}\nYou are then told its result."
    )


def with_description(messages: Sequence[Message], text: str) -> list[Message]:
    """``text`` at the end of the system message, or as one."""
    first = messages[0] if messages else {}
    if first.get("role") in ("system", "developer"):
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def with_calls_as_content(messages: Sequence[Message], format: ToolFormat) -> list[Message]:
    """The calls of earlier answers as the text that the model would have written."""
    return [_with_calls(message, format) if message.get("tool_calls") else message for message in messages]


def _with_calls(message: Message, format: ToolFormat) -> Message:
    calls = [_written(call["function"], format) for call in message["tool_calls"]]
    text = ", ".join(calls)
    if format.is_list and len(calls) > 1:
        text = f"[{text}]"
    elif not format.is_list:
        text = "\n".join(calls)
    content = f"{message['content']}\n{text}" if message["content"] else text
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}


def _written(function: Mapping[str, Any], format: ToolFormat) -> str:
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else str(arguments)
    call = f'{{"name": {json.dumps(function["name"])}, "{format.arguments_key}": {text}}}'
    return f"{format.begin}{call}{format.end}"
