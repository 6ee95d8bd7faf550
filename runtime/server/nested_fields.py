"""Which fields the objects inside a body may have: messages, parts, calls, tools and choices of every dialect.

What changes an answer is read or refused by name, what is listed as ignored is taken, and all else is refused:
a misspelled field must not pass for one that was honoured. Of what is refused, null asks for nothing.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ramet.runtime.server.errors import bad_request
from ramet.runtime.server.shared_fields import is_one_of
from ramet.runtime.tokenizer.chat_messages import TEXT_ALONE

Object = dict[str, Any]
Refused = Mapping[str, tuple[tuple[object, ...], str]]
"""Fields that are not honoured: the values that ask for nothing, and what to do instead."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


CACHE_MARKS = _names("cache_control prompt_cache_breakpoint")
"""Of Anthropic and OpenAI: where a prefix is to be cached. Every prefix is."""
OTHERS_NOTES = _names("provider_specific_fields extra_content images reasoning_items thinking_blocks")
"""What client libraries write into the answers they keep, for servers of others."""
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Fields:
    """What an object may have."""

    read: frozenset[str]
    ignored: frozenset[str] = NOTHING
    """Taken, and no answer is changed by it."""
    refused: Refused = field(default_factory=dict)

    def kept(self, given: Mapping[str, Any], where: str) -> Object:
        """What is read of it. Raises HttpError (400) that names the field which would not be honoured."""
        for name, value in given.items():
            if name in self.read or name in self.ignored:
                continue
            path = f"{where}.{str(name)[:80]}"
            if name not in self.refused:
                near = difflib.get_close_matches(str(name)[:80], [*self.read, *self.refused], n=1)
                hint = f"did you mean {near[0]!r}?" if near else "remove it"
                raise bad_request(
                    f"there is no parameter {path!r}; {hint}", param=path, code="unknown_parameter"
                )
            harmless, remedy = self.refused[name]
            if value is not None and not is_one_of(value, harmless):
                raise bad_request(
                    f"{path} is not supported: {remedy}", param=path, code="unsupported_parameter"
                )
        return {name: value for name, value in given.items() if name in self.read}


_CONTINUE = ((False,), "set continue_final_message to true")
_NAMED = _names("role content name")
_CHAT_MESSAGES = {
    **dict.fromkeys(("system", "developer", "user"), Fields(_NAMED, CACHE_MARKS)),
    "tool": Fields(_NAMED | _names("tool_call_id"), CACHE_MARKS),
    "assistant": Fields(
        # The reasoning is there for templates that show that of earlier turns.
        _NAMED | _names("tool_calls refusal reasoning reasoning_content"),
        CACHE_MARKS | OTHERS_NOTES | _names("annotations parsed reasoning_details"),
        {
            "audio": ((), TEXT_ALONE),
            "function_call": ((), "use tool_calls"),
            "partial": _CONTINUE,
            "prefix": _CONTINUE,
        },
    ),
}
_CHAT_PARTS = {
    # Some libraries keep their own marks in the parts of an answer.
    "text": Fields(_names("type text"), CACHE_MARKS | _names("annotations citations id index")),
    "refusal": Fields(_names("type refusal"), CACHE_MARKS),
}
_CHAT_CALL = Fields(_names("id type function"), CACHE_MARKS | OTHERS_NOTES | _names("index"))
_CALLED_FUNCTION = Fields(_names("name arguments"), OTHERS_NOTES | _names("parsed_arguments"))
_CHAT_TOOL = Fields(_names("type function"), CACHE_MARKS)
_FUNCTION = _names("name description parameters strict")
_BY_CODE = ((["direct"],), "no code is run here; the model calls tools itself")
_DEFERRED = ((False,), "every tool is shown to the model; leave out those that it is not to see")
_CHOSEN_FUNCTION = Fields(_names("name"))

_ITEMS = {
    "message": Fields(_names("type role content"), _names("id status phase created_by")),
    "function_call": Fields(
        _names("type call_id name arguments"),
        _names("id status created_by parsed_arguments caller"),
        {"namespace": ((), "tools have no name spaces here; put it into the name")},
    ),
    "function_call_output": Fields(_names("type call_id output"), _names("id status created_by caller name")),
    "reasoning": Fields(_names("type"), _names("id status summary content encrypted_content created_by")),
    "compaction": Fields(_names("type encrypted_content"), _names("id created_by")),
}
_ITEM_PARTS = {
    **dict.fromkeys(
        ("input_text", "output_text", "text"),
        Fields(_names("type text"), CACHE_MARKS | _names("annotations logprobs parsed")),
    ),
    "refusal": Fields(_names("type refusal"), CACHE_MARKS),
}
_RESPONSES_TOOL = Fields(
    _names("type") | _FUNCTION, CACHE_MARKS, {"allowed_callers": _BY_CODE, "defer_loading": _DEFERRED}
)

_TURN = Fields(_names("role content"))
_BLOCKS = {
    "text": Fields(_names("type text"), CACHE_MARKS | _names("citations parsed_output")),
    "tool_use": Fields(_names("type id name input"), CACHE_MARKS | _names("caller toolset_name")),
    "tool_result": Fields(_names("type tool_use_id content"), CACHE_MARKS | _names("is_error toolset_name")),
    # Templates leave the reasoning of earlier turns out.
    "thinking": Fields(_names("type"), _names("thinking signature") | CACHE_MARKS),
    "redacted_thinking": Fields(_names("type"), _names("data") | CACHE_MARKS),
}
_ANTHROPICS_TOOL = Fields(
    _names("type name description input_schema strict"),
    CACHE_MARKS | _names("eager_input_streaming"),
    {
        "allowed_callers": _BY_CODE,
        "defer_loading": _DEFERRED,
        "input_examples": (([],), "put them into the description"),
    },
)
_ANTHROPICS_CHOICE = Fields(_names("type name disable_parallel_tool_use"))
_THINKING = Fields(_names("type"), _names("budget_tokens display"))
_METADATA = Fields(_names("user_id"))


def chat_messages(messages: Iterable[Any]) -> list[Any]:
    """The messages of chat completions, less what is ignored. What is no message stays as it is.

    Raises:
        HttpError: 400 for a field that would not be honoured; names it, as ``messages[2].foo``.
    """
    return [_chat_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def chat_tools(tools: Iterable[Any]) -> list[Any]:
    """The tools of chat completions, as ``chat_messages``."""
    return [
        _with(_kept(tool, _CHAT_TOOL, f"tools[{index}]"), "function", Fields(_FUNCTION), f"tools[{index}]")
        for index, tool in enumerate(tools)
    ]


def check_chat_choice(choice: object) -> None:
    """A ``tool_choice`` of chat completions. Raises HttpError as ``chat_messages`` does."""
    match choice:
        case {"type": "function"}:
            kept = _kept(choice, Fields(_names("type function")), "tool_choice")
            _with(kept, "function", _CHOSEN_FUNCTION, "tool_choice")
        case {"type": "allowed_tools"}:
            kept = _kept(choice, Fields(_names("type allowed_tools")), "tool_choice")
            _with(kept, "allowed_tools", Fields(_names("mode tools")), "tool_choice")


def check_items(items: Iterable[Any], where: str) -> None:
    """The input of responses. Raises HttpError as ``chat_messages`` does."""
    for index, item in enumerate(items):
        at = f"{where}[{index}]"
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if isinstance(kind, str) and kind in _ITEMS:
            _ITEMS[kind].kept(item, at)
            for name in ("content", "output") if kind != "reasoning" else ():
                _check_parts(item.get(name), _ITEM_PARTS, f"{at}.{name}")


def check_responses_tools(tools: Iterable[Any], choice: object) -> None:
    """Tools and ``tool_choice`` of responses. Raises HttpError as ``chat_messages`` does."""
    for index, tool in enumerate(tools):
        if isinstance(tool, dict) and tool.get("type") == "function":
            _RESPONSES_TOOL.kept(tool, f"tools[{index}]")
    match choice:
        case {"type": "function"}:
            _kept(choice, Fields(_names("type name")), "tool_choice")
        case {"type": "allowed_tools"}:
            _kept(choice, Fields(_names("type mode tools")), "tool_choice")


def check_turns(messages: Iterable[Any], system: object) -> None:
    """The messages and the system prompt of Anthropic's form. Raises HttpError as ``chat_messages`` does."""
    _check_parts(system, {"text": _BLOCKS["text"]}, "system")
    for index, message in enumerate(messages):
        if isinstance(message, dict):
            _TURN.kept(message, f"messages[{index}]")
            _check_parts(message.get("content"), _BLOCKS, f"messages[{index}].content")


def check_anthropics_tools(tools: Iterable[Any], choice: object) -> None:
    """Tools and ``tool_choice`` of Anthropic's form. Raises HttpError as ``chat_messages`` does."""
    for index, tool in enumerate(tools):
        # Those that run at Anthropic's are refused as such.
        if isinstance(tool, dict) and tool.get("type") in (None, "custom"):
            _ANTHROPICS_TOOL.kept(tool, f"tools[{index}]")
    _kept(choice, _ANTHROPICS_CHOICE, "tool_choice")


def check_thinking(thinking: object, metadata: object) -> None:
    """Of Anthropic's form. Raises HttpError as ``chat_messages`` does."""
    _kept(thinking, _THINKING, "thinking")
    _kept(metadata, _METADATA, "metadata")


def _chat_message(message: Any, where: str) -> Any:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or role not in _CHAT_MESSAGES:
        return message
    kept = _CHAT_MESSAGES[role].kept(message, where)
    _check_parts(kept.get("content"), _CHAT_PARTS, f"{where}.content")
    calls = kept.get("tool_calls")
    if isinstance(calls, list):
        kept["tool_calls"] = [_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]
    return kept


def _call(call: Any, where: str) -> Any:
    if not isinstance(call, dict) or call.get("type", "function") != "function":
        return call
    return _with(_CHAT_CALL.kept(call, where), "function", _CALLED_FUNCTION, where)


def _check_parts(content: object, known: Mapping[str, Fields], where: str) -> None:
    for index, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind in known:
            known[kind].kept(part, f"{where}[{index}]")
            if kind == "tool_result":
                _check_results(part.get("content"), f"{where}[{index}].content")


def _check_results(content: object, where: str) -> None:
    _check_parts(content, {"text": _BLOCKS["text"]}, where)


def _kept(given: Any, fields: Fields, where: str) -> Any:
    """What is no object is refused by whoever reads it."""
    return fields.kept(given, where) if isinstance(given, dict) else given


def _with(given: Any, name: str, fields: Fields, where: str) -> Any:
    """The same with what is read of its object ``name``."""
    if not isinstance(given, dict) or not isinstance(given.get(name), dict):
        return given
    return {**given, name: fields.kept(given[name], f"{where}.{name}")}
