"""The body of /v1/responses, and the conversation that it means."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.chat_fields import ChatFields
from ramet.runtime.server.compaction import PREAMBLE, unpacked
from ramet.runtime.server.errors import HttpError, bad_request
from ramet.runtime.server.shared_fields import ConstraintFields, is_one_of
from ramet.runtime.server.tools.definitions import ToolChoice, tool_choice
from ramet.runtime.tokenizer.chat_messages import TEXT_ALONE

Message = dict[str, Any]

IGNORED = frozenset(("user", "stream_options"))
REFUSED: Mapping[str, tuple[tuple[object, ...], str]] = {
    "background": ((False,), "send the request again instead"),
    "context_management": ((), "send the history that the model is to see"),
    "conversation": (
        (),
        "conversations are not kept by name; send the history as input, or previous_response_id where "
        "responses are stored (--response-store)",
    ),
    "include": (([],), "there is nothing to include"),
    "max_tool_calls": ((), "tools run at the client's"),
    "moderation": ((), "there is none here"),
    "previous_response_id": (
        (),
        "nothing is stored here; send the history as input, or start the server with --response-store",
    ),
    "prompt": ((), "no prompts are kept by id; send its text as instructions and input"),
    "prompt_cache_options": ((), "every prefix is cached"),
    "prompt_cache_retention": (("in_memory",), "every prefix is cached"),
    "service_tier": (("auto", "default"), "use priority"),
    "store": ((False,), "nothing is stored here; send store: false, or start the server with --response-store"),
    "top_logprobs": ((0,), "use /v1/chat/completions"),
    "truncation": (("disabled",), "shorten the input"),
}
"""Parameters that are not honoured: the values that ask for nothing, and what to do instead."""


_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text")

STORED = frozenset(("store", "previous_response_id"))
"""Honoured where responses are stored."""


class ResponsesFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request says; null is the default."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    """``format``: text, json_object or json_schema."""
    reasoning: dict[str, Any] | None = None
    """``effort``, where the model's chat template reads it."""
    store: bool | None = None
    """Keep the response; null: don't."""
    metadata: dict[str, Any] | None = None
    """Repeated in the response, as are the two below; they change no answer."""
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    previous_response_id: str | None = None
    """A stored response that this one follows: its conversation comes before the input; its instructions don't.
    """


def without_refused(body: Mapping[str, Any], *, stores: bool) -> dict[str, Any]:
    """The body less what is ignored. Raises HttpError (400) for a parameter that would not be honoured.

    ``stores``: the server keeps responses.
    """
    refused = {name: one for name, one in REFUSED.items() if not (stores and name in STORED)}
    for name, (harmless, remedy) in refused.items():
        value = body.get(name)
        if value is not None and not is_one_of(value, harmless):
            raise bad_request(f"{name} is not supported: {remedy}", param=name, code="unsupported_parameter")
    return {name: value for name, value in body.items() if name not in refused and name not in IGNORED}


def input_items(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An input as items."""
    if isinstance(given, list):
        return given
    return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]


def user_items(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The user's messages among them, as items of an output. Raises InvalidRequestError as ``conversation``."""
    return [
        {
            "id": f"msg_{secrets.token_hex(16)}",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": _content(item["content"], f"input[{index}].content")}],
        }
        for index, item in enumerate(items)
        if item.get("role") == "user" and "content" in item
    ]


def conversation(fields: ResponsesFields) -> ChatFields:
    """The same in the form of chat completions.

    Raises:
        InvalidRequestError: names the item that is wrong or not supported.
    """
    messages: list[Message] = []
    if fields.instructions:
        messages.append({"role": "system", "content": fields.instructions})
    if isinstance(fields.input, str):
        messages.append({"role": "user", "content": fields.input})
    else:
        for index, item in enumerate(fields.input):
            _add(messages, item, f"input[{index}]")
    reasoning = fields.reasoning or {}
    for name in reasoning:
        if name not in ("effort", "summary", "generate_summary"):
            _fail(f"reasoning.{name[:80]}", "is not known; remove it")
    if reasoning.get("summary") or reasoning.get("generate_summary"):
        _fail("reasoning.summary", "is not supported: the reasoning itself is in the answer; leave it out")
    return ChatFields(
        messages=messages,
        max_completion_tokens=fields.max_output_tokens,
        reasoning_effort=reasoning.get("effort"),
    )


def constraint(fields: ResponsesFields) -> ConstraintFields:
    """``text.format`` in the form of chat's ``response_format``."""
    text = dict(fields.text or {})
    if text.pop("verbosity", None) not in (None, "medium"):
        _fail("text.verbosity", "is not supported; ask for it in a message")
    wanted = text.pop("format", None)
    if text:
        _fail(f"text.{next(iter(text))[:80]}", "is not known; remove it")
    if wanted is None:
        return ConstraintFields()
    if not isinstance(wanted, dict):
        _fail("text.format", "must be an object with a type")
    if wanted.get("type") != "json_schema":
        return ConstraintFields(response_format=wanted)
    inner = {name: value for name, value in wanted.items() if name != "type"}
    return ConstraintFields(response_format={"type": "json_schema", "json_schema": inner})


def in_our_names(error: HttpError) -> HttpError:
    """An error of ``constraint``'s result with the names that the client has written."""
    detail = error.detail

    def renamed(text: str) -> str:
        for theirs in ("response_format.json_schema", "response_format"):
            text = text.replace(theirs, "text.format")
        return text

    param = None if detail.param is None else renamed(detail.param)
    detail = msgspec.structs.replace(detail, message=renamed(detail.message), param=param)
    return HttpError(error.status, detail, error.headers)


def chosen_tools(fields: ResponsesFields) -> ToolChoice:
    """Raises InvalidRequestError for tools that run at OpenAI's, and for a choice that is none."""
    tools = [_nested(tool) for tool in fields.tools or ()]
    choice: object = fields.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        named = [_nested(tool) for tool in choice.get("tools") or ()]
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": named}}
    elif isinstance(choice, dict):
        choice = _nested(choice)
    return tool_choice(tools, choice, parallel=fields.parallel_tool_calls)


def _nested(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in chat's form, in which what it is stands one level deeper."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return dict(tool) if isinstance(tool, dict) else {"type": tool}
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _add(messages: list[Message], item: Mapping[str, Any], where: str) -> None:
    match item:
        case {"role": role, "content": content} if item.get("type", "message") == "message":
            if role not in _ROLES:
                _fail(f"{where}.role", f"is {str(role)[:80]!r}; it must be one of {', '.join(_ROLES)}")
            messages.append({"role": role, "content": _content(content, f"{where}.content")})
        case {"type": "function_call", "call_id": id, "name": str() as name, "arguments": str() as arguments}:
            call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            last = messages[-1] if messages else {}
            # Several calls, and the text before them, are one answer.
            if last.get("role") == "assistant":
                last.setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        case {"type": "function_call_output", "call_id": id, "output": output}:
            content = _content(output, f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": id, "content": content})
        case {"type": "compaction", "encrypted_content": str() as summary}:
            summary = unpacked(summary, f"{where}.encrypted_content")
            messages.append({"role": "assistant", "content": PREAMBLE + summary})
        case {"type": "reasoning"}:
            # Templates leave the reasoning of earlier turns out.
            return
        case _:
            kind = item.get("type", item.get("role"))
            _fail(where, f"is a {str(kind)[:80]!r} that is not supported here, or not whole; leave it out")


def _content(content: object, where: str) -> str:
    return content if isinstance(content, str) else "".join(_texts(content, where))


def _texts(content: object, where: str) -> Iterator[str]:
    if not isinstance(content, list):
        _fail(where, "must be a text or a list of parts")
    for index, part in enumerate(content):
        match part:
            case {"type": "input_text" | "output_text" | "text", "text": str() as text}:
                yield text
            case {"type": "refusal", "refusal": str() as text}:
                yield text
            case _:
                if not isinstance(part, dict):
                    _fail(
                        f"{where}[{index}]", f"is {str(part)[:80]!r}; it must be a part with a type and a text"
                    )
                kind = part.get("type")
                if kind in _TEXT_PARTS:
                    _fail(f"{where}[{index}].text", f"is {str(part.get('text'))[:80]!r}; it must be a text")
                _fail(f"{where}[{index}].type", f"is {str(kind)[:80]!r}; it must be 'input_text': {TEXT_ALONE}")


def _fail(field: str, message: str) -> NoReturn:
    raise InvalidRequestError(f"{field} {message}", field=field)
