"""The records of /v1/chat/completions: the chunks of a stream, and the whole answer that they fold into."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from ramet.runtime.server.token_logprobs import ContentLogprob
from ramet.runtime.server.usage import Usage


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    """The call's place in the answer."""
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChoiceLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    content: list[ContentLogprob]
    refusal: None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    """Null in all chunks but the last, where the usage was asked for."""


class Function(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str = "function"
    function: Function


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str | None
    refusal: None = None
    annotations: list[str] = []
    """None: there is no search here that an answer could cite."""
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


def fold(chunks: Sequence[ChatChunk], usage: Usage) -> ChatCompletion:
    """The answer that a stream of these chunks tells."""
    choices = [choice for chunk in chunks for choice in chunk.choices]
    first = chunks[0]
    return ChatCompletion(
        id=first.id,
        created=first.created,
        model=first.model,
        system_fingerprint=first.system_fingerprint,
        choices=[
            _fold_choice([choice for choice in choices if choice.index == index])
            for index in sorted({choice.index for choice in choices})
        ],
        usage=usage,
    )


def _fold_choice(parts: Sequence[ChunkChoice]) -> ChatChoice:
    finish_reason = parts[-1].finish_reason
    assert finish_reason is not None
    content = "".join(part.delta.content for part in parts if isinstance(part.delta.content, str))
    reasoning = [p.delta.reasoning_content for p in parts if isinstance(p.delta.reasoning_content, str)]
    calls = _fold_calls([call for part in parts for call in part.delta.tool_calls or ()])
    logprobs = [entry for part in parts if part.logprobs is not None for entry in part.logprobs.content]
    has_logprobs = any(part.logprobs is not None for part in parts)
    return ChatChoice(
        index=parts[0].index,
        message=ChatMessage(
            content=content if content or not calls else None,
            reasoning_content="".join(reasoning) if reasoning else UNSET,
            tool_calls=calls or UNSET,
        ),
        logprobs=ChoiceLogprobs(content=logprobs) if has_logprobs else None,
        finish_reason=finish_reason,
    )


def _fold_calls(deltas: Sequence[ToolCallDelta]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for delta in deltas:
        if delta.index == len(calls):
            assert isinstance(delta.id, str)
            assert isinstance(delta.function.name, str)
            calls.append(
                ToolCall(
                    id=delta.id, function=Function(name=delta.function.name, arguments=delta.function.arguments)
                )
            )
            continue
        call = calls[delta.index]
        function = Function(
            name=call.function.name, arguments=call.function.arguments + delta.function.arguments
        )
        calls[delta.index] = ToolCall(id=call.id, function=function)
    return calls
