"""The body of Anthropic's /v1/messages, and the conversation that it means."""

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import msgspec

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.chat_fields import ChatFields
from ramet.runtime.server.shared_fields import SamplingFields
from ramet.runtime.server.tools.definitions import ToolChoice, tool_choice
from ramet.runtime.tokenizer.chat_messages import TEXT_ALONE

Message = dict[str, Any]
_MEDIA = ("image", "document", "audio", "video")


class MessagesFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request says. ``cache_control`` in blocks is taken and needs nothing: every prefix is cached."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    """Needed, but for counting tokens."""
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    """Says who asks, and changes no answer."""


def conversation(fields: MessagesFields, *, reads_thinking: bool) -> ChatFields:
    """The same in the form of chat completions. ``reads_thinking``: the chat template can turn thinking on.

    Raises:
        InvalidRequestError: names the block that is wrong or not supported.
    """
    messages: list[Message] = []
    if fields.system:
        messages.append({"role": "system", "content": _text(fields.system, "system")})
    for index, message in enumerate(fields.messages):
        messages += _turns(message, f"messages[{index}]")
    return ChatFields(
        messages=messages,
        max_tokens=fields.max_tokens,
        chat_template_kwargs=_thinking(fields.thinking, reads_thinking=reads_thinking),
    )


def sampling(fields: MessagesFields) -> SamplingFields:
    return SamplingFields(
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        stop=fields.stop_sequences or None,
    )


def chosen_tools(fields: MessagesFields) -> ToolChoice:
    """Raises InvalidRequestError for tools that run at Anthropic's, and for a choice that is none."""
    tools = []
    for index, tool in enumerate(fields.tools or ()):
        if tool.get("type", "custom") != "custom":
            _fail(f"tools[{index}].type", f"is {str(tool['type'])[:80]!r}; only tools of your own are taken")
        function = {
            "name": tool.get("name"),
            "description": tool.get("description"),
            "parameters": tool.get("input_schema"),
            "strict": tool.get("strict"),
        }
        tools.append(
            {"type": "function", "function": {key: one for key, one in function.items() if one is not None}}
        )
    wanted = fields.tool_choice or {"type": "auto"}
    choices: dict[str, object] = {"auto": "auto", "none": "none", "any": "required"}
    choices["tool"] = {"type": "function", "function": {"name": wanted.get("name")}}
    kind = wanted.get("type")
    if not isinstance(kind, str) or kind not in choices:
        _fail("tool_choice.type", f"is {str(kind)[:80]!r}; it must be auto, any, tool or none")
    return tool_choice(tools, choices[kind], parallel=not wanted.get("disable_parallel_tool_use"))


def _turns(message: Mapping[str, Any], where: str) -> Iterator[Message]:
    """A turn of results is one tool message a result, and then what the user says besides."""
    role = message.get("role")
    if role not in ("user", "assistant"):
        _fail(
            f"{where}.role", f"is {str(role)[:80]!r}; it must be user or assistant (system has its own field)"
        )
    content = message.get("content")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    if not isinstance(content, list):
        _fail(f"{where}.content", "must be a text or a list of blocks")
    texts: list[str] = []
    calls: list[Message] = []
    for index, block in enumerate(content):
        at = f"{where}.content[{index}]"
        match block:
            case {"type": "text", "text": str() as text}:
                texts.append(text)
            case {"type": "tool_use", "id": id, "name": str() as name} if role == "assistant":
                function = {"name": name, "arguments": block.get("input") or {}}
                calls.append({"id": id, "type": "function", "function": function})
            case {"type": "tool_result", "tool_use_id": id} if role == "user":
                yield {
                    "role": "tool",
                    "tool_call_id": id,
                    "content": _text(block.get("content") or "", f"{at}.content"),
                }
            case {"type": "thinking" | "redacted_thinking"} if role == "assistant":
                # Templates leave the reasoning of earlier turns out.
                continue
            case _:
                _refuse(block, at, f"{role} messages")
    if calls:
        yield {"role": role, "content": "".join(texts) or None, "tool_calls": calls}
    elif texts or role == "assistant" or not content:
        yield {"role": role, "content": "".join(texts)}


def _text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        _fail(where, "must be a text or a list of text blocks")
    texts = []
    for index, block in enumerate(content):
        match block:
            case {"type": "text", "text": str() as text}:
                texts.append(text)
            case _:
                _refuse(block, f"{where}[{index}]", where.rpartition(".")[2])
    return "".join(texts)


def _refuse(block: object, where: str, place: str) -> NoReturn:
    kind = block.get("type") if isinstance(block, dict) else block
    if kind in _MEDIA:
        _fail(f"{where}.type", f"is {kind!r}: {TEXT_ALONE}")
    _fail(f"{where}.type", f"is {str(kind)[:80]!r}, which {place} cannot have here, or is not whole")


def _thinking(wanted: Mapping[str, Any] | None, *, reads_thinking: bool) -> dict[str, Any] | None:
    match (wanted or {}).get("type"):
        case None | "disabled" if not reads_thinking:
            return None
        case None:
            return None
        case "enabled" | "adaptive" if reads_thinking:
            return {"enable_thinking": True}
        case "disabled":
            return {"enable_thinking": False}
        case _:
            _fail("thinking", "is not supported by this model's chat template; leave it out")


def _fail(field: str, message: str) -> NoReturn:
    raise InvalidRequestError(f"{field} {message}", field=field)
