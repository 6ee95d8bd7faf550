"""Chat messages as callers send them, checked and brought into the one form that templates expect."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.protocol.nesting import MAX_NESTING, is_nested_within, json_is_nested_within
from ramet.runtime.tokenizer.unicode_text import check_text

Message = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
_MAY_LACK_CONTENT = ("assistant", "tool")
TEXT_ALONE = "this model takes text alone; say in words what is in it, or leave it out"
"""Of an image, a sound or a file: what every dialect is told."""


class ToolArguments(dict[str, Any]):
    """The arguments of a tool call: a mapping that prints as JSON.

    Some templates dump the arguments with ``tojson``, others concatenate them as the JSON text that the OpenAI
    API sends. This serves both.
    """

    def __init__(self, arguments: Mapping[str, Any], text: str) -> None:
        super().__init__(arguments)
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __add__(self, other: object) -> str:
        return self.text + str(other)

    def __radd__(self, other: object) -> str:
        return str(other) + self.text


def normalise_messages(messages: object) -> list[Message]:
    """A deep copy of ``messages`` in which every content is a string.

    Null and missing contents (assistant and tool only) become "", text parts are concatenated, the arguments of
    tool calls are parsed. A refusal is what the assistant said. Other fields stay.

    Raises:
        InvalidRequestError: names ``messages[i].field`` and what is wrong with it.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        _fail("messages", f"is {_shown(messages)}; it must be a list of messages")
    if not messages:
        _fail("messages", "is empty; give at least one message")
    if not is_nested_within(messages):
        _fail("messages", f"is nested more than {MAX_NESTING} levels deep")
    return [_normalise(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _normalise(message: object, where: str) -> Message:
    if not isinstance(message, Mapping):
        _fail(where, f"is {_shown(message)}; it must be an object with role and content")
    result: Message = checked_copy({key: value for key, value in message.items() if value is not None}, where)
    role = result.get("role")
    if role not in ROLES:
        _fail(f"{where}.role", f"is {_shown(role)}; it must be one of {', '.join(ROLES)}")
    result["content"] = _content(_said(result, role), role, f"{where}.content")
    if "tool_calls" in result:
        result["tool_calls"] = _tool_calls(result["tool_calls"], role, f"{where}.tool_calls")
    return result


def _content(content: object, role: str, where: str) -> str:
    if content is None:
        if role not in _MAY_LACK_CONTENT:
            _fail(where, f"is missing; a {role} message needs a string or a list of text parts")
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        _fail(where, f"is {_shown(content)}; it must be a string or a list of text parts")
    return "".join(_part_text(part, role, f"{where}[{i}]") for i, part in enumerate(content))


def _said(message: Message, role: str) -> object:
    """The content; of an assistant that refused, and said nothing else, the refusal."""
    content = message.get("content")
    return message.get("refusal") if role == "assistant" and content is None else content


def _part_text(part: object, role: str, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        _fail(where, f'is {_shown(part)}; it must be {{"type": "text", "text": ...}}')
    if part.get("type") == "refusal":
        refusal = part.get("refusal")
        if role != "assistant":
            _fail(
                f"{where}.type", f"is 'refusal', which assistant messages alone have; this one's role is {role}"
            )
        if not isinstance(refusal, str):
            _fail(f"{where}.refusal", f"is {_shown(refusal)}; it must be a string")
        return refusal
    if part.get("type") != "text":
        _fail(f"{where}.type", f"is {_shown(part.get('type'))}; it must be 'text': {TEXT_ALONE}")
    text = part.get("text")
    if not isinstance(text, str):
        _fail(f"{where}.text", f"is {_shown(text)}; it must be a string")
    return text


def _tool_calls(calls: object, role: str, where: str) -> list[Message]:
    if role != "assistant":
        _fail(where, f"belongs to assistant messages; this message's role is {role}")
    if not isinstance(calls, list):
        _fail(where, f"is {_shown(calls)}; it must be a list")
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            _fail(f"{where}[{i}]", 'must be {"type": "function", "function": {"name": ..., "arguments": ...}}')
        function["arguments"] = _arguments(function.get("arguments"), f"{where}[{i}].function.arguments")
    return calls


def _arguments(arguments: object, where: str) -> ToolArguments | str:
    """Text that is no JSON object stays text: a model may have produced it, and the history must show it."""
    if isinstance(arguments, Mapping):
        return ToolArguments(arguments, json.dumps(arguments, ensure_ascii=False))
    if arguments is None or arguments == "":
        return ToolArguments({}, "{}")
    if not isinstance(arguments, str):
        _fail(where, f"is {_shown(arguments)}; it must be a JSON object as text")
    if not json_is_nested_within(arguments):
        return arguments
    try:
        parsed = checked_copy(json.loads(arguments), where)
    except (ValueError, InvalidRequestError):  # such as "\\ud800", half of a surrogate pair
        return arguments
    return ToolArguments(parsed, arguments) if isinstance(parsed, dict) else arguments


def checked_copy(value: object, where: str) -> Any:
    """A deep copy in plain JSON types, as a template may call the methods of whatever else it is given.

    Raises:
        InvalidRequestError: names a string that is no text, and a value that JSON has no form for.
    """
    match value:
        case str():
            check_text(value, where)
            return str.__str__(value)
        case None | bool():
            return value
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case Mapping():
            return {
                checked_copy(str(key), where): checked_copy(item, f"{where}.{key}")
                for key, item in value.items()
            }
        case list() | tuple():
            return [checked_copy(item, f"{where}[{i}]") for i, item in enumerate(value)]
        case _:
            _fail(
                where, f"is {_shown(value)}; it must be text, a number, true, false, null, a list or an object"
            )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _fail(field: str, message: str) -> NoReturn:
    raise InvalidRequestError(f"{field} {message}", field=field)
