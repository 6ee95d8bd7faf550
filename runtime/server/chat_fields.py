"""The body of /v1/chat/completions."""

from typing import Any

import msgspec

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.shared_fields import StreamOptions

MAX_TOP_LOGPROBS = 20
"""OpenAI's own limit."""


class ChatFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is the conversation's own; the rest is in ``shared_fields``."""

    messages: list[dict[str, Any]]
    model: str | None = None
    """Refused where another one is served; null: whatever is."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    """Most tokens to generate, reasoning included; null: until the context is full."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    """Taken where the model's chat template reads it."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the model's chat template."""
    add_generation_prompt: bool | None = None
    """End the prompt with the beginning of an assistant's turn; null: unless the final message is continued."""
    continue_final_message: bool = False
    """The last message stays open, and the answer goes on where it stops."""
    separate_reasoning: bool = True
    """Reasoning is split off the content into ``reasoning_content``."""


def output_limit(fields: ChatFields) -> tuple[int | None, str]:
    """Most tokens to generate, and what the client calls that.

    Raises:
        InvalidRequestError: both of its names were given, and differ.
    """
    old, new = fields.max_tokens, fields.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequestError(
            f"max_tokens is {old} and max_completion_tokens is {new}; give one of them",
            field="max_completion_tokens",
        )
    return (new, "max_completion_tokens") if new is not None else (old, "max_tokens")


def wanted_logprobs(fields: ChatFields) -> int | None:
    """The engine's ``logprobs``: None for off, else how many alternatives.

    Raises:
        InvalidRequestError: top_logprobs without logprobs, or out of range.
    """
    top = fields.top_logprobs
    if not fields.logprobs:
        if top:
            raise InvalidRequestError(
                f"top_logprobs is {top}, and logprobs is not true; set logprobs to true", field="top_logprobs"
            )
        return None
    if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
        raise InvalidRequestError(
            f"top_logprobs is {top}; it must be an integer from 0 to {MAX_TOP_LOGPROBS}", field="top_logprobs"
        )
    return top or 0


def check_stream_options(stream: bool | None, options: StreamOptions | None) -> None:
    """Raises InvalidRequestError for stream_options without stream."""
    if options is not None and not stream:
        raise InvalidRequestError(
            "stream_options is only allowed when stream is true; remove it", field="stream_options"
        )
